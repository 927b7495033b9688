"""A terminal, as far as the start of a server uses one: lines that wrap, a cursor that goes up."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Sequence

from descriptors import is_readable

SEQUENCE = re.compile(r"\x1b\[(\??)([\d;]*)([A-Za-z])")
ROWS = 24


class Terminal:
    """Knows what rich's progress bars send, and raises ValueError for anything else."""

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self.cursor_is_shown = True
        self._rows: list[list[str]] = [[]]
        self._joined: set[int] = set()
        """rows that go on in the next one"""
        self._row = self._column = 0

    def feed(self, text: str) -> None:
        at = 0
        while at < len(text):
            if text[at] == "\x1b":
                found = SEQUENCE.match(text, at)
                if found is None:
                    raise ValueError(f"unknown control sequence {text[at : at + 8]!r}")
                self._control(*found.groups())
                at = found.end()
            else:
                self._character(text[at])
                at += 1

    def lines(self) -> list[str]:
        """What is to be seen and what has been scrolled away, rows of one line joined."""
        found, line = [], ""
        for index, row in enumerate(self._rows):
            line += "".join(row)
            if index not in self._joined:
                found.append(line.rstrip())
                line = ""
        return [line for line in found if line]

    def _character(self, character: str) -> None:
        if character == "\r":
            self._column = 0
        elif character == "\n":
            self._joined.discard(self._row)
            self._down()
        elif character < " ":
            raise ValueError(f"unknown control character {character!r}")
        else:
            self._put(character)

    def _put(self, character: str) -> None:
        if self._column == self.columns:
            self._joined.add(self._row)
            self._down()
            self._column = 0
        row = self._rows[self._row]
        row += " " * (self._column + 1 - len(row))
        row[self._column] = character
        self._column += 1

    def _down(self) -> None:
        self._row += 1
        if self._row == len(self._rows):
            self._rows.append([])

    def _control(self, private: str, numbers: str, letter: str) -> None:
        if private and numbers == "25" and letter in "hl":
            self.cursor_is_shown = letter == "h"
        elif letter == "A":
            self._row = max(0, self._row - int(numbers or 1))
        elif letter == "K" and numbers == "2":
            self._rows[self._row] = []
        elif letter != "m" or private:
            raise ValueError(f"unknown control sequence {private}{numbers}{letter}")


class ProcessOnTerminal:
    """A program whose standard streams are a new terminal. `text` is all that it has sent there."""

    def __init__(self, words: Sequence[str], columns: int, **environment: str) -> None:
        self.terminal = Terminal(columns)
        self.text = ""
        self._unread = b""
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, columns, 0, 0))
        plain = {name: text for name, text in os.environ.items() if name not in OF_A_TERMINAL}
        self.process = subprocess.Popen(
            list(words),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**plain, "TERM": "xterm", **environment},
            start_new_session=True,
        )
        os.close(theirs)

    def __enter__(self) -> ProcessOnTerminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def wait_for(self, text: str, seconds: float = 60.0) -> None:
        self._read_until(lambda: text in self.text, f"no {text!r}", seconds)

    def wait(self, seconds: float = 60.0) -> int:
        """Its exit code; then all of its text is there."""
        self._read_until(lambda: False, "it does not end", seconds)
        return self.process.wait(seconds)

    def _read_until(self, enough: Callable[[], bool], complaint: str, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not enough():
            assert time.monotonic() < deadline, f"{complaint} in\n{self.text}"
            if is_readable(self._ours, 0.1) and not self._read():
                break

    def _read(self) -> bool:
        try:
            data = os.read(self._ours, 1 << 16)
        except OSError:  # the last process has closed it
            return False
        data, self._unread = self._unread + data, b""
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            text, self._unread = data[: error.start].decode(), data[error.start :]
        self.text += text
        self.terminal.feed(text if "\x1b" not in text[-16:] else self._held(text))
        return True

    def _held(self, text: str) -> str:
        """All but a control sequence that is not complete yet."""
        start = text.rindex("\x1b")
        if SEQUENCE.match(text, start):
            return text
        self._unread = text[start:].encode() + self._unread
        self.text = self.text[: len(self.text) - len(text) + start]
        return text[:start]


OF_A_TERMINAL = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "COLORTERM")
