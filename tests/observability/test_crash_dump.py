from __future__ import annotations

import errno
import gc
import logging
import os
import stat
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from vivace.observability import crash_dump
from vivace.observability.crash_dump import CrashDump
from vivace.observability.gc_pauses import PauseWatch, watch_gc
from vivace.protocol.messages import Delta, Finish, Request, SamplingParams


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def request(key: int, tokens: int = 4) -> Request:
    return Request(
        key=key,
        rid=f"r{key}",
        tokens=list(range(tokens)),
        sampling=SamplingParams(seed=3),
        cache_key="tenant-secret",
    )


def end(key: int, **finish: object) -> Delta:
    return Delta(key=key, index=0, tokens=[], finish=Finish(**finish))  # type: ignore[arg-type]


def dump_to(folder: Path, clock: Clock, **options: int) -> CrashDump:
    return CrashDump(folder, version="1.2", clock=clock, wall=lambda: 1.8e9, **options)


def read(path: Path) -> tuple[dict, list[dict]]:
    head, *lines = [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]
    return head, lines


def test_writes_the_requests_of_the_window_and_no_secrets(tmp_path: Path) -> None:
    clock = Clock()
    dump = dump_to(tmp_path / "new", clock)
    dump.add(request(1))
    clock.now += 301
    dump.add(request(2))
    dump.add(request(3))
    assert dump.finish(end(2, type="stop")) is None
    path = dump.write("the engine died: killed by SIGKILL")
    assert path is not None and stat.S_IMODE(path.stat().st_mode) == 0o600
    head, lines = read(path)
    assert [line["key"] for line in lines] == [2, 3]
    assert lines[0]["tokens"] == [0, 1, 2, 3] and lines[0]["sampling"]["seed"] == 3
    assert head["unfinished"] == [3] and head["reason"].startswith("the engine died")
    assert b"tenant-secret" not in path.read_bytes()


def test_a_failure_of_ours_writes_at_once_but_not_for_every_request(tmp_path: Path) -> None:
    clock = Clock()
    dump = dump_to(tmp_path, clock)
    for key in range(5):
        dump.add(request(key))
    assert dump.finish(end(0, type="abort", status=400, message="bad")) is None
    path = dump.finish(end(1, type="abort", status=500, message="NaN in logits"))
    assert path is not None and read(path)[0]["failed"] == {"1": "NaN in logits"}
    assert dump.finish(end(2, type="abort", status=500, message="again")) is None
    clock.now += 11
    later = dump.finish(end(3, type="abort", status=500, message="later"))
    assert later is not None and set(read(later)[0]["failed"]) == {"1", "2", "3"}


def test_memory_is_bounded(tmp_path: Path) -> None:
    dump = dump_to(tmp_path, Clock(), memory=20_000)
    for key in range(1000):
        dump.add(request(key, tokens=500))
        assert dump.bytes <= 20_000
    path = dump.write("x")
    assert path is not None
    assert read(path)[1][-1]["key"] == 999


def test_an_unwritable_folder_is_reported_not_raised(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    dump = dump_to(tmp_path / "file" / "folder", Clock())
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            assert not dump.write("x").parent.exists()
    assert caplog.text.count("cannot write the crash dump") == 1


@pytest.mark.parametrize("name", ["ENOSPC", "EROFS", "EDQUOT", "EMFILE"])
def test_a_disk_that_is_full_for_a_while(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No half file stays behind, and the next dump is whole."""
    dump = dump_to(tmp_path / "dumps", Clock())
    dump.add(request(1))

    def fail(*_: object) -> None:
        raise OSError(getattr(errno, name), os.strerror(getattr(errno, name)))

    with monkeypatch.context() as patch:
        patch.setattr("os.open" if name == "EMFILE" else "pathlib.Path.rename", fail)
        for _ in range(3):
            dump.write("the engine went down")
    assert list((tmp_path / "dumps").iterdir()) == []
    assert caplog.text.count("cannot write the crash dump") == 1
    head, lines = read(dump.write("again"))
    assert head["reason"] == "again" and len(lines) == 1


def test_the_disk_is_touched_in_the_background(tmp_path: Path) -> None:
    jobs: list[Callable[[], None]] = []
    dump = CrashDump(tmp_path, version="1", background=jobs.append)
    dump.add(request(1))
    path = dump.write("x")
    dump.add(request(2))
    assert not path.exists()
    jobs[0]()
    assert [line["key"] for line in read(path)[1]] == [1]


def test_who_killed_the_engine_is_in_the_dump(tmp_path: Path) -> None:
    dump = dump_to(tmp_path, Clock())
    dump.add(request(1))
    dump.add(request(2))
    dump.blame([2, 77], "it killed the engine: SIGSEGV")
    head, _ = read(dump.write("x"))
    assert head["failed"] == {"2": "it killed the engine: SIGSEGV"}


def test_long_collections_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    times = iter([0.0, 0.5, 10.0, 10.01])
    watch = PauseWatch(0.1, lambda: next(times))
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            watch("start", {"generation": 2, "collected": 0})
            watch("stop", {"generation": 2, "collected": 7})
    assert watch.warned == 1
    assert "generation 2 took 0.500 s and freed 7 objects" in caplog.text


def test_watch_is_off_at_zero() -> None:
    before = list(gc.callbacks)
    assert watch_gc(0.0) is None
    assert gc.callbacks == before
    watch = watch_gc(1e-9)
    assert watch is not None
    gc.collect()
    gc.callbacks.remove(watch)
    assert watch.warned == 1


def test_the_folder_does_not_grow_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(crash_dump, "MOST_FILES", 5)
    monkeypatch.setattr(crash_dump, "MOST_BYTES", 20_000)
    other = tmp_path / "notes.jsonl"
    other.write_text("x" * 90_000)
    dump = dump_to(tmp_path, Clock())
    dump.add(request(1))

    def write(number: int) -> Path:
        path = dump.write("test")
        os.utime(path, (number, number))  # written within one tick of the clock
        return path

    def kept() -> set[Path]:
        return set(tmp_path.iterdir()) - {other}

    paths = [write(number) for number in range(9)]
    assert kept() == set(paths[-5:])
    dump.add(request(2, tokens=3000))
    large = [write(number) for number in range(10, 13)]
    assert sum(path.stat().st_size for path in kept()) <= 20_000
    assert large[-1] in kept() and not kept() & set(paths[:6])
    assert other.exists()
    told = [record.getMessage() for record in caplog.records]
    assert sum("the oldest are removed" in line for line in told) == 1
