"""Log lines, in SGLang's form: `[2026-11-21 04:34:00] Decode batch. ...`, and how they are written.

The bracket names the role and, when it is not plain information, the level:
`[2026-11-21 04:34:00 engine WARNING] ...`. One event is one line: control characters that came in
with a model name, an id or a header are escaped, so nobody can forge a line or color a terminal.

Writing can fail or wait: a full disk, a pipe nobody reads, no file at all. A server must not end,
or stand still, over its own log. What cannot be written is dropped and counted, and the next line
that gets through says so; it begins on a line of its own.
"""

from __future__ import annotations

import io
import logging
import os
import select
import socket
import stat
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol, TextIO

from vivace.terminal import open_closed_streams

DATE_FORMAT = "%Y-%m-%d %H:%M:%S"
LEVELS = {"warn": "warning", "fatal": "critical", "trace": "debug", "none": "critical"}
QUIET_LIBRARIES = ("asyncio", "aiohttp", "uvloop")


def _escapes() -> dict[int, str]:
    controls = [*range(0x20), *range(0x7F, 0xA0)]
    line_breaks = [0x2028, 0x2029]
    directions = [0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
    surrogates = range(0xD800, 0xE000)
    table = {code: f"\\x{code:02x}" for code in controls}
    table |= {code: f"\\u{code:04x}" for code in (*line_breaks, *directions, *surrogates)}
    table |= {ord("\n"): "\\n", ord("\r"): "\\r"}
    del table[ord("\t")]
    return table


ESCAPES = _escapes()


def escape(text: str) -> str:
    """`text` as one harmless line: CR, LF, ANSI, bidirectional marks and surrogates are escaped."""
    return text.translate(ESCAPES)


class LogStream(Protocol):
    """Where lines go: a stream, or what owns the terminal."""

    def write(self, text: str, /) -> int: ...

    def flush(self) -> None: ...


class LineFormatter(logging.Formatter):
    """One line per event; a traceback follows on indented lines, escaped like the rest."""

    def __init__(self, role: str = "") -> None:
        super().__init__(datefmt=DATE_FORMAT)
        self._role = role

    def format(self, record: logging.LogRecord) -> str:
        words = [self.formatTime(record, self.datefmt), self._role]
        if record.levelno != logging.INFO:
            words.append(record.levelname)
        prefix = " ".join(word for word in words if word)
        line = f"[{prefix}] {escape(record.getMessage())}"
        if record.exc_info:
            trace = self.formatException(record.exc_info)
            line += "".join(f"\n    {escape(part)}" for part in trace.splitlines())
        return line


def level_number(level: str) -> int:
    """Accepts the names that SGLang and uvicorn accept, in any case.

    Raises ValueError for another name."""
    name = level.strip().lower()
    number = logging.getLevelNamesMapping().get(LEVELS.get(name, name).upper())
    if number is None:
        raise ValueError(
            f"unknown log level {level!r}; choose debug, info, warning, error or critical"
        )
    return number


def setup(level: str, role: str = "", *, stream: LogStream | None = None) -> None:
    """Send all log records of this process to `stream` (standard error) as lines.

    `role` names the process in each line; empty for the supervisor and for a lone process."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(LineFormatter(role))
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level_number(level))
    for name in QUIET_LIBRARIES:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))


# -- writing ---------------------------------------------------------------------------------------

Put = Callable[[bytes, bool], tuple[int, str]]
"""(data, whether to wait a little) -> (bytes written, why not all of them)"""
PATIENCE_MILLISECONDS = 100
"""For a slow reader to catch up; one that did not is not waited for again before it has."""


class LineWriter:
    """Appends lines to a descriptor. Never raises; waits at most the patience, and then not again.

    `troubled` is called with a reason when lines begin to be lost, `recovered` with their number
    when that is over. Without `recovered` the number is written in front of the next line.
    """

    def __init__(
        self,
        descriptor: int,
        *,
        troubled: Callable[[str], None] | None = None,
        recovered: Callable[[int], None] | None = None,
    ) -> None:
        self.descriptor = descriptor
        self._put = patiently(descriptor)
        self._troubled = troubled
        self._recovered = recovered
        self._lock = threading.RLock()
        self._busy = False
        self._torn = False
        """the last line was cut off"""
        self._lost = 0

    def write(self, text: str) -> None:
        with self._lock:
            if self._busy:
                return  # a signal handler or a report of ours, in the middle of a line
            self._busy = True
            try:
                self._write(text.encode("utf-8", "backslashreplace"))
            finally:
                self._busy = False

    def close(self) -> None:
        with self._lock, suppress(OSError):
            os.close(self.descriptor)

    def _write(self, line: bytes) -> None:
        note = b""
        if self._lost and self._recovered is None:
            note = b"[%d log lines before this one could not be written]\n" % self._lost
        data = (b"\n" if self._torn else b"") + note + line
        written, reason = self._put(data, not self._lost)
        if written:
            self._torn = data[written - 1 : written] != b"\n" and written < len(data)
        if written < len(data):
            self._lose(line, reason)
        elif self._lost:
            lost, self._lost = self._lost, 0
            if self._recovered is not None:
                self._recovered(lost)

    def _lose(self, line: bytes, reason: str) -> None:
        first, self._lost = not self._lost, self._lost + max(1, line.count(b"\n"))
        if first and self._troubled is not None:
            self._troubled(reason)


def patiently(descriptor: int) -> Put:
    """Neither raises nor blocks."""
    write = write_to(descriptor)
    poller = select.poll()
    poller.register(descriptor, select.POLLOUT)

    def put(data: bytes, waiting: bool) -> tuple[int, str]:
        done = 0
        while done < len(data):
            try:
                done += write(data[done:])
            except BlockingIOError:
                if not waiting or not poller.poll(PATIENCE_MILLISECONDS):
                    return done, "nobody reads it"
                waiting = False
            except OSError as error:
                return done, error.strerror or str(error)
        return done, ""

    return put


def write_to(descriptor: int) -> Callable[[bytes], int]:
    """A function that writes as much as can be written now, or raises."""
    try:
        mode = os.fstat(descriptor).st_mode
    except OSError:
        mode = 0
    if stat.S_ISSOCK(mode):
        peer = socket.socket(fileno=os.dup(descriptor))
        return lambda data: peer.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
    if not (stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)) or not os.get_blocking(descriptor):
        return lambda data: os.write(descriptor, data)
    poller = select.poll()
    poller.register(descriptor, select.POLLOUT)

    def write_if_there_is_room(data: bytes) -> int:
        if not poller.poll(0):
            raise BlockingIOError
        return os.write(descriptor, data[: select.PIPE_BUF])

    return write_if_there_is_room


class SafeStream(io.TextIOBase):
    """A standard stream on top of a `LineWriter`."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = not_blocking(descriptor)
        self._lines = LineWriter(self._descriptor)

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"

    def write(self, text: str) -> int:
        self._lines.write(text)
        return len(text)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)


def not_blocking(descriptor: int) -> int:
    """Our own descriptor of the same pipe or terminal, which does not block: the mode of the one we
    inherited belongs to whoever started us too. Files and sockets stay as they are."""
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
            flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            return os.open(f"/proc/self/fd/{descriptor}", flags)
    except OSError:
        pass
    return descriptor


def protect_standard_streams() -> None:
    """Give this process a standard output and error that cannot end or hold it up. Streams that
    somebody has replaced stay."""
    open_closed_streams()
    if replaceable(sys.stdout, sys.__stdout__):
        sys.stdout = SafeStream(1)
    if replaceable(sys.stderr, sys.__stderr__):
        sys.stderr = SafeStream(2)


def replaceable(stream: TextIO | Any, original: TextIO | Any) -> bool:
    return stream is original and not isinstance(stream, SafeStream)


class LogSwitches:
    """What of requests is logged: whether at all, how much, in which form; small numbers.

    `memory` (3 bytes at least, zeros at first) is what all frontends share: in it lies what was
    changed since the start, so a change by one is a change for all, and for those started later."""

    def __init__(self, start: tuple[int, int, int], memory: memoryview | None = None) -> None:
        self._start = start
        self._changed = memory if memory is not None else memoryview(bytearray(len(start)))

    def _value(self, at: int) -> int:
        """As it was started while nobody has changed it: 0 stands for that."""
        return self._changed[at] - 1 if self._changed[at] else self._start[at]

    @property
    def enabled(self) -> bool:
        return self._value(0) == 1

    @property
    def level(self) -> int:
        return self._value(1)

    @property
    def form(self) -> int:
        return self._value(2)

    def change(self, *values: int | None) -> None:
        """Enabled, level, form; None leaves one as it is."""
        for at, value in enumerate(values):
            if value is not None:
                self._changed[at] = value + 1
