"""--log-requests-target: the log, and files in directories."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path

import pytest

from vivace.errors import CannotStart
from vivace.protocol.request import Request, SamplingParams
from vivace.server.request_log import FILE_NAME, RequestLog, add_targets, log


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
    RequestLog(enabled=True, level=0, form="text").received("/generate", [request], None)


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
        requests.received("/generate", [request], None)

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
