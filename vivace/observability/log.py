"""Log lines in SGLang's form: `[2026-11-21 04:34:00] Decode batch. ...`.

The bracket names the role and, when it is not plain information, the level:
`[2026-11-21 04:34:00 engine WARNING] ...`. One event is one line: control characters that came in
with a model name, an id or a header are escaped, so nobody can forge a line or color a terminal.
"""

from __future__ import annotations

import logging
import sys
from typing import Protocol

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


class Lines(Protocol):
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


def setup(level: str, role: str = "", *, stream: Lines | None = None) -> None:
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
