"""--log-requests-target: the log, and files in directories."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path

import pytest

from vivace.errors import CannotStart
from vivace.protocol.messages import Request, SamplingParams
from vivace.server.request_log import FILE_NAME, LineFile, RequestLog, add_targets, log


@pytest.fixture(autouse=True)
def restored():
    yield
    for handler in list(log.handlers):
        log.removeHandler(handler)
        handler.close()
    log.propagate = True


def one_line(*targets: str) -> None:
    add_targets(targets)
    request = Request(key=1, rid="r1", tokens=[1, 2], sampling=SamplingParams())
    RequestLog(enabled=True, level=0, form="text").log_received("/generate", [request], None)


def test_a_directory_gets_a_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        one_line(str(tmp_path / "logs"))
    assert "rid='r1'" in (tmp_path / "logs" / FILE_NAME).read_text()
    assert not caplog.records


def test_both_get_the_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        one_line("stdout", str(tmp_path))
    assert "rid='r1'" in (tmp_path / FILE_NAME).read_text()
    assert len(caplog.records) == 1


def test_a_full_disk_is_told_once_and_lines_stay_whole(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_targets([str(tmp_path)])
    requests = RequestLog(enabled=True, level=0, form="json")

    def ask(rid: str) -> None:
        request = Request(key=1, rid=rid, tokens=[1, 2], sampling=SamplingParams())
        requests.log_received("/generate", [request], None)

    def full(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    ask("before")
    with monkeypatch.context() as patch, caplog.at_level(logging.INFO):
        patch.setattr("os.write", full)
        for number in range(9):
            ask(f"lost-{number}")
    ask("after")
    lines = (tmp_path / FILE_NAME).read_text().splitlines()
    assert ["before" in lines[0], "after" in lines[1], len(lines)] == [True, True, 2]
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2 and "No space left" in told[0] and "9 lines lost" in told[1]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CannotStart, match="--log-requests-target"):
        add_targets([str(tmp_path / "file")])


def test_two_files_and_no_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two frontends write there; every line of the newest two files is whole and there once."""
    monkeypatch.setattr("vivace.server.request_log.MAX_FILE_BYTES", 10_000)
    writers = [LineFile(tmp_path / FILE_NAME) for _ in range(2)]
    for number in range(2000):
        writer = writers[number * 7 % 3 % 2]
        writer.emit(logging.makeLogRecord({"msg": f"line {number:06} {'x' * 80}"}))
    for writer in writers:
        writer.close()
    files = [tmp_path / f"{FILE_NAME}.1", tmp_path / FILE_NAME]
    assert set(tmp_path.iterdir()) == set(files)
    assert all(file.stat().st_size < 10_200 for file in files)
    numbers = [int(line.split()[1]) for file in files for line in file.read_text().splitlines()]
    assert numbers == list(range(numbers[0], 2000)) and len(numbers) > 100
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2 and "is now" in told[0], "each frontend once"


def test_a_file_that_cannot_be_renamed_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vivace.server.request_log.MAX_FILE_BYTES", 100)
    (tmp_path / f"{FILE_NAME}.1").mkdir()
    writer = LineFile(tmp_path / FILE_NAME)
    for number in range(20):
        writer.emit(logging.makeLogRecord({"msg": f"line {number}"}))
    writer.close()
    assert len((tmp_path / FILE_NAME).read_text().splitlines()) == 20
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 1 and "cannot be renamed" in told[0]
