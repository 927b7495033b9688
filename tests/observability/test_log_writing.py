"""Lines are written, or dropped and counted: nothing raises, nothing waits, no line is torn."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from descriptors import is_readable

from vivace.observability.log import LineWriter, SafeStream

FULL = os.strerror(errno.ENOSPC)
ERRORS = ("ENOSPC", "EROFS", "EACCES", "EDQUOT", "EIO", "EPIPE", "EBADF", "EFBIG")


class Reports:
    def __init__(self) -> None:
        self.heard: list[str | int] = []

    def __call__(self, report: str | int) -> None:
        self.heard.append(report)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    yield descriptor
    os.close(descriptor)


@pytest.mark.parametrize("name", ERRORS)
def test_every_error_is_told_once_and_so_is_its_end(
    name: str, file: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number, reports = getattr(errno, name), Reports()
    lines = LineWriter(file, troubled=reports, recovered=reports)
    lines.write("first\n")
    with monkeypatch.context() as patch:

        def fail(descriptor: int, data: bytes) -> int:
            raise OSError(number, os.strerror(number))

        patch.setattr("os.write", fail)
        for _ in range(5):
            lines.write("lost\n")
    lines.write("second\n")
    lines.write("third\n")
    assert reports.heard == [os.strerror(number), 5]
    assert (tmp_path / "log").read_text() == "first\nsecond\nthird\n"


def test_without_reports_the_next_line_tells(file: int, tmp_path: Path) -> None:
    lines = LineWriter(file)
    broken = LineWriter(os.open("/dev/full", os.O_WRONLY))
    for _ in range(3):
        broken.write("lost\nlost too\n")
    broken._put = lines._put
    broken.write("here\n")
    assert (tmp_path / "log").read_text() == (
        "[6 log lines before this one could not be written]\nhere\n"
    )


def test_a_line_that_was_cut_off_does_not_swallow_the_next(
    file: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.write
    room = [8]

    def nearly_full(descriptor: int, data: bytes) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, FULL)
        done = real(descriptor, data[: room[0]])
        room[0] -= done
        return done

    reports = Reports()
    lines = LineWriter(file, troubled=reports, recovered=reports)
    with monkeypatch.context() as patch:
        patch.setattr("os.write", nearly_full)
        lines.write("one\n")
        lines.write("two and more\n")
        lines.write("three\n")
    lines.write("four\n")
    assert (tmp_path / "log").read_text() == "one\ntwo \nfour\n"
    assert reports.heard == [FULL, 2]


def test_a_report_may_write_to_the_same_place(file: int, tmp_path: Path) -> None:
    writers: list[LineWriter] = []
    broken = LineWriter(os.open("/dev/full", os.O_WRONLY), troubled=lambda _: writers[0].write("x"))
    writers.append(broken)
    broken.write("lost\n")


def quickly(lines: LineWriter, count: int) -> None:
    """So many lines, of which the first may wait a little."""
    lines.write("x" * 3000 + "\n")
    begun = time.monotonic()
    for _ in range(count):
        lines.write("x" * 3000 + "\n")
    assert time.monotonic() - begun < 5.0, "a blocked write would take for ever"


@pytest.mark.parametrize("kind", ["pipe", "foreign pipe", "socket", "terminal"])
def test_nobody_reads(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer goes on, and the reader finds whole lines when it comes back. A pipe that another
    user has made (as in a container) cannot be opened again."""
    if kind == "foreign pipe":
        monkeypatch.setattr("vivace.observability.log.not_blocking", lambda descriptor: descriptor)
    if "pipe" in kind:
        reader, writer = os.pipe()
    elif kind == "socket":
        pair = socket.socketpair()
        reader, writer = (end.detach() for end in pair)
    else:
        reader, writer = os.openpty()
    before = os.get_blocking(writer)
    stream = SafeStream(writer)
    quickly(stream._lines, 500)
    if kind != "terminal":
        assert os.get_blocking(writer) == before, "others write there too"
    seen = drain(reader)
    stream.write("back again\n")
    seen += drain(reader)
    *rest, last = seen.replace(b"\r\n", b"\n").rstrip(b"\n").split(b"\n")
    assert last == b"back again"
    notes = [line for line in rest if b"log lines before this one" in line]
    assert len(notes) == 1
    os.close(reader)
    os.close(writer)


def drain(reader: int) -> bytes:
    os.set_blocking(reader, False)
    seen = b""
    while is_readable(reader, 0.2):
        try:
            seen += os.read(reader, 1 << 16)
        except BlockingIOError:
            break
    return seen


def test_a_reader_that_is_gone() -> None:
    reader, writer = os.pipe()
    stream = SafeStream(writer)
    os.close(reader)
    for _ in range(3):
        stream.write("into the void\n")
    os.close(writer)


SPEAKER = """
import faulthandler, logging, os, signal, sys, warnings
from vivace.observability import log
from vivace.observability.log import protect_standard_streams
protect_standard_streams()
log.setup("info", "test")
faulthandler.register(signal.SIGUSR1)
for number in range(200):
    logging.info("x" * 1000)
    print("y" * 1000)
    warnings.warn(str(number))
os.kill(os.getpid(), signal.SIGUSR1)
socket = os.open("/dev/null", os.O_RDONLY)
assert socket > 2, socket
os.kill(int(sys.argv[1]), 0)
with open(sys.argv[2], "w") as file:
    file.write("survived")
"""


@pytest.mark.parametrize("case", ["full", "closed", "broken", "unread"])
def test_a_process_survives_what_its_streams_do(case: str, tmp_path: Path) -> None:
    """`> /dev/full`, `>&-`, `| head -0`, `| sleep`."""
    proof = tmp_path / "proof"
    reader, writer = os.pipe()
    command = [sys.executable, "-c", SPEAKER, str(os.getpid()), str(proof)]
    if case == "closed":
        words = " ".join(f"'{word}'" for word in command[:1])
        command = ["sh", "-c", f'exec {words} "$@" 1>&- 2>&-', "sh", *command[1:]]
    target = os.open("/dev/full", os.O_WRONLY) if case == "full" else writer
    process = subprocess.Popen(command, stdout=target, stderr=target)
    if case == "broken":
        os.close(reader)
    try:
        assert process.wait(30) == 0 and proof.read_text() == "survived"
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
