"""`vivace bench scheduler` measures what it says it measures."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from vivace.bench import scheduler
from vivace.bench.scheduler import ROUNDS, Row, Shape, main, run


@pytest.mark.parametrize("page_size", [1, 16])
def test_one_result_per_size(page_size: int) -> None:
    results = run([2, 5], 40, page_size=page_size)
    assert [row["rows"] for row in results] == [2, 5]
    for row in results:
        assert 0 < row["total_median_ms"] <= row["total_p99_ms"]
        assert row["plan_median_ms"] <= row["total_p99_ms"]


def test_only_the_scheduler_is_timed() -> None:
    ticks = iter(range(10_000_000))
    (row,) = run([3], 10, clock=lambda: float(next(ticks)))
    assert row["plan_median_ms"] == row["commit_median_ms"] == 1000.0
    assert row["total_median_ms"] == 2000.0


def test_rounds_with_drafts_are_compared_with_as_many_without() -> None:
    rounds: list[int] = []

    def measure(shape: Shape, _clock: Callable[[], float]) -> Row:
        rounds.append(shape.drafts)
        return {"total_median_ms": 1.0 + shape.drafts + len(rounds) % 3}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scheduler, "_measure", measure)
        (row,) = run([3], 10, drafts=4)
    assert rounds == [0, 4] * ROUNDS
    assert row == {"total_median_ms": 6.0, "ratio": 3.0}


def test_the_table_and_the_json_form(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--rows", "2", "--steps", "5"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "null executor" in lines[0] and lines[-1].split()[0] == "2"
    assert main(["--rows", "2", "3", "--steps", "5", "--json"]) == 0
    rows = [json.loads(line)["rows"] for line in capsys.readouterr().out.splitlines()]
    assert rows == [2, 3]
    assert main(["--rows", "2", "--steps", "5", "--drafts", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2].endswith("of the total without") and float(lines[-1].split()[-1]) > 0


@pytest.mark.parametrize(("accepted", "tokens"), [(None, 3.0), (0, 1.0), (2, 3.0), (4, 5.0)])
def test_drafts_that_are_right_are_tokens(accepted: int | None, tokens: float) -> None:
    (row,) = run([8], 50, drafts=4, accepted=accepted)
    drawn = row["tokens_per_second"] * row["total_median_ms"] / 1e3 / row["rows"]
    assert drawn == pytest.approx(tokens, rel=0.02 if accepted is not None else 0.3)


@pytest.mark.parametrize(
    "words",
    [
        ["--drafts", "-1"],
        ["--drafts", "64"],
        ["--drafts", "4", "--accepted", "5"],
        ["--rows", "4", "0"],
        ["--rows", "1" + "0" * 30],
        ["--steps", "0"],
        ["--page-size", "0"],
    ],
)
def test_numbers_that_cannot_be_are_refused(words: list[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        main(words)
    assert refused.value.code == 2
