"""Which exit code a benchmark ends with."""

from __future__ import annotations

import pytest

from vivace.bench.errors import BenchError, run_benchmark
from vivace.errors import CannotStart
from vivace.frontend.errors import BadRequest, EngineUnavailable


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (CannotStart("no model"), 2),
        (BenchError("no server"), 1),
        (BadRequest("temperature", "must be at least 0"), 1),
        (EngineUnavailable("the engine died"), 1),
        (FileNotFoundError("gone"), 1),
        (CannotStart("line 1\n  of YAML, \x1b[31m"), 2),
    ],
)
def test_a_reason_is_one_line_and_a_code(
    error: Exception, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def work() -> int:
        raise error

    assert run_benchmark("vivace bench x", work) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("vivace bench x: ") and line.isprintable()
    assert str(error).split("\n")[0] in line


def test_a_fault_of_ours_stays_a_traceback() -> None:
    with pytest.raises(ValueError):
        run_benchmark("vivace bench x", lambda: int("none"))


def test_what_the_work_says_is_kept() -> None:
    assert run_benchmark("vivace bench x", lambda: 1) == 1
