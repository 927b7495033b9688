"""`vivace bench broadcast` on two ranks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from vivace.bench.broadcast import main, make_plan, since
from vivace.bench.errors import BenchError


def test_both_ways_are_measured(tmp_path: Path) -> None:
    found = tmp_path / "new" / "found.json"
    words = ["--ranks", "2", "--rows", "3", "--plans", "5", "--prompt", "9"]
    command = [sys.executable, "-m", "vivace", "bench", "broadcast", *words]
    ran = subprocess.run(
        [*command, "--output-file", str(found)], capture_output=True, text=True, timeout=120
    )
    assert ran.returncode == 0, ran.stderr
    times = json.loads(found.read_text())["broadcasts"]
    assert [(one["way"], one["ranks"]) for one in times] == [("ring", 2), ("sockets", 2)]
    assert all(0 < one["middle_rank"] <= one["last_rank"] < one["answered"] for one in times)
    assert all(one["send"] > 0 for one in times)
    assert len(ran.stdout.splitlines()) == 3


def test_a_plan_has_the_requests_that_were_asked_for() -> None:
    plan = make_plan(3, 5)
    assert (plan.rows, len(plan.joins[0].tokens)) == ([0, 1, 2], 5)
    assert not make_plan(3, 0).joins


def test_the_middle_rank_is_told_apart() -> None:
    assert since(1000, 2000, [4000, 6000, 9000, 3000])[:3] == (1e-6, 5e-6, 8e-6)


def test_a_rank_that_says_nothing_is_an_error() -> None:
    with pytest.raises(BenchError, match="answered"):
        since(0, 1, [5, None])


@pytest.mark.parametrize("words", [["--ranks", "0"], ["--ranks", "65"], ["--rows", "0"]])
def test_impossible_sizes_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert words[1] in capsys.readouterr().err


def test_what_is_no_number_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--ranks", "two"])
    assert "'two' is not a whole number" in capsys.readouterr().err
