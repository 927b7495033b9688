"""`vivace bench collectives` on two ranks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from vivace.bench.collectives import ExchangeTime, line, main
from vivace.platforms.cpu.library import LIBRARY

needs_kernels = pytest.mark.skipif(not LIBRARY.is_file(), reason="the kernels were not built")


@needs_kernels
def test_both_ways_are_measured(tmp_path: Path) -> None:
    found = tmp_path / "new" / "found.json"
    words = ["--ranks", "2", "--rows", "2", "--columns", "8", "--rounds", "1"]
    command = [sys.executable, "-m", "vivace", "bench", "collectives", *words]
    ran = subprocess.run(
        [*command, "--output-file", str(found)], capture_output=True, text=True, timeout=120
    )
    assert ran.returncode == 0, ran.stderr
    times = json.loads(found.read_text())["collectives"]
    assert [(one["operation"], one["ranks"]) for one in times] == [
        ("sum", 2),
        ("gather", 2),
        ("pipe", 2),
    ]
    assert all(one["shared"] > 0 and one["gloo"] > 0 for one in times)
    assert len(ran.stdout.splitlines()) == 4


@pytest.mark.parametrize("words", [["--ranks", "1"], ["--ranks", "65"], ["--rows", "0"]])
def test_impossible_sizes_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert words[1] in capsys.readouterr().err


def test_the_ratio_stands_last() -> None:
    assert line(ExchangeTime("sum", 2, 16, 1024, 1e-5, 1e-3)).split()[-1] == "0.010"


@pytest.mark.parametrize(("words", "why"), [("--ranks two", "two"), ("--rounds 1.5", "1.5")])
def test_wrong_numbers_are_named(words: str, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(words.split())
    assert f"{words.split()[0]}: '{why}' is not a whole number" in capsys.readouterr().err
