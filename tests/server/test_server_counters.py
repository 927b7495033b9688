"""Counters that several processes add to, each in its own file, and that survive their deaths."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vivace.server.counter_file import FIRST_SIZE, CounterFile, read_counts
from vivace.server.http_metrics import HttpMetrics

NAMES = st.tuples(st.text(st.characters(exclude_categories=["Cs"]), max_size=9), st.text("ab/"))
OTHER_PROCESS = """
import sys, time
from pathlib import Path
from vivace.server.http_metrics import HttpMetrics
metrics = HttpMetrics(Path(sys.argv[1]), 7)
for _ in range(3):
    metrics.end(metrics.begin("/generate", "POST"), 200)
metrics.begin("/generate", "POST")
print("counted", flush=True)
time.sleep(60)
"""


@given(st.lists(st.tuples(NAMES, st.integers(-5, 5)), max_size=40))
def test_counts_are_the_sums_of_what_was_added(steps: list[tuple[tuple[str, str], int]]) -> None:
    counters = CounterFile()
    wanted: dict[tuple[str, str], int] = {}
    for key, amount in steps:
        counters.add(key, amount)
        wanted[key] = wanted.get(key, 0) + amount
    assert dict(counters.counts()) == wanted


@pytest.mark.parametrize("alone", [True, False])
def test_the_memory_grows_with_the_names(tmp_path: Path, alone: bool) -> None:
    path = tmp_path / "counters"
    counters = CounterFile(None if alone else path)
    keys = [("x" * 100, str(number)) for number in range(2 * FIRST_SIZE // 100)]
    for number, key in enumerate(keys):
        counters.add(key, number)
    wanted = {key: number for number, key in enumerate(keys)}
    assert dict(counters.counts()) == wanted
    if not alone:
        assert read_counts(path) == (wanted, True)


def test_a_file_belongs_to_one_process(tmp_path: Path) -> None:
    CounterFile(tmp_path / "counters")
    with pytest.raises(FileExistsError):
        CounterFile(tmp_path / "counters")


def test_a_file_that_has_just_been_made_counts_nothing(tmp_path: Path) -> None:
    (tmp_path / "counters").touch()
    assert read_counts(tmp_path / "counters") == ({}, False)


def test_the_counts_of_a_killed_process_stay_and_its_activity_ends(tmp_path: Path) -> None:
    mine = HttpMetrics(tmp_path, 0)
    label = mine.begin("/generate", "POST")
    place = ("/generate", "POST")
    command = [sys.executable, "-c", OTHER_PROCESS, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"counted\n"
        while_alive = mine.totals()
        other.send_signal(signal.SIGKILL)
    mine.end(label, 503)
    after = mine.totals()
    assert while_alive[("active", *place)] == 2
    assert after[("active", *place)] == 0
    assert while_alive[("requests", *place)] == after[("requests", *place)] == 5
    assert after[("responses", *place, "200")] == 3
    assert after[("responses", *place, "503")] == 1
