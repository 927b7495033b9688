"""Where the time of a start goes."""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from terminal import ProcessOnTerminal

from vivace.launch.prefetch import link, read_ahead
from vivace.launch.startup_profile import SHORTEST, SUPERVISOR, StartupProfile
from vivace.observability.timeline import Stage, Timeline, boot_clock, process_start


def test_stages_follow_one_another() -> None:
    now = iter([1e9 + 1, 1e9 + 3, 1e9 + 7])
    timeline = Timeline("imports", lambda: next(now))
    timeline.begin("weights")
    timeline.begin("weights")
    timeline.begin("kernels")
    first, *rest = timeline.stages()
    assert first == Stage("imports", process_start(), 1e9 + 1)
    assert rest == [Stage("weights", 1e9 + 1, 1e9 + 3), Stage("kernels", 1e9 + 3, 1e9 + 7)]


def test_this_process_was_started_before_now() -> None:
    assert 0 < process_start() < boot_clock()


def test_times_count_from_the_start_of_the_supervisor(tmp_path: Path) -> None:
    profile = StartupProfile()
    profile.add("engine", [Stage("import torch", 12.0, 14.5)])
    profile.add(SUPERVISOR, [Stage("configuration", 10.0, 11.0)])
    assert [row["process"] for row in profile.rows()] == [SUPERVISOR, "engine"]
    assert profile.rows()[1] == {
        "process": "engine",
        "stage": "import torch",
        "begin": 2.0,
        "end": 4.5,
    }
    assert all(len(line) <= 80 for line in profile.table())
    profile.write(tmp_path / "profile.json")
    assert json.loads((tmp_path / "profile.json").read_text()) == profile.rows()


def test_a_profile_that_cannot_be_written_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    profile = StartupProfile()
    profile.add(SUPERVISOR, [Stage("configuration", 10.0, 11.0)])
    profile.write(tmp_path / "no folder" / "profile.json")
    assert "--startup-profile-file" in caplog.text and "No such file" in caplog.text


def test_every_process_tells_its_stages(tmp_path: Path) -> None:
    file = tmp_path / "profile.json"
    words = [sys.executable, "-m", "vivace", "serve", "--port", "0"]
    words += ["--startup-profile", "--startup-profile-file", str(file)]
    with ProcessOnTerminal(words, 80, VIVACE_EXECUTOR="oracle") as server:
        server.wait_for("URL")
        rows = json.loads(file.read_text())
        shown = server.terminal.lines()
        (at,) = [i for i, line in enumerate(shown) if line.split()[:2] == ["process", "stage"]]
        longer = [row for row in rows if row["end"] - row["begin"] >= SHORTEST]
        table = shown[at + 1 : at + 1 + len(longer)]
        server.process.send_signal(15)
        assert server.wait() == 0
    assert [line.split()[0] for line in table] == [row["process"].split()[0] for row in longer]
    stages = {name: [row for row in rows if row["process"] == name] for name in ALL}
    begun = list(dict.fromkeys(row["process"] for row in rows))
    assert begun[0] == SUPERVISOR and set(begun) == set(ALL)
    assert rows == [row for name in begun for row in stages[name]], "one process after the other"
    for own in stages.values():
        assert all(before["end"] == after["begin"] for before, after in pairwise(own))
    assert [row["stage"] for row in stages[SUPERVISOR]][-2:] == WAITING
    assert {"tokenizer", "HTTP"} <= {row["stage"] for row in stages["frontend 0"]}


ALL = (SUPERVISOR, "engine", "frontend 0")
WAITING = ["waiting for the children", "Warming up"]


def test_reading_ahead_harms_nothing(tmp_path: Path) -> None:
    file = tmp_path / "weights"
    file.write_bytes(b"x" * 4096)
    read_ahead([tmp_path / "none", tmp_path, file], 1 << 20)
    read_ahead([file], 0)
    link(tmp_path / "none.so")
    link(file)
    assert not [one for one in Path("/proc/self/fd").iterdir() if leads_into(tmp_path, one)]


def leads_into(folder: Path, descriptor: Path) -> bool:
    try:
        return descriptor.readlink().is_relative_to(folder)
    except OSError:  # other threads close theirs
        return False


def test_a_start_without_proc_begins_now(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("vivace.observability.timeline.Path", lambda _: tmp_path / "stat")
    before = boot_clock()
    assert before <= process_start() <= boot_clock()
