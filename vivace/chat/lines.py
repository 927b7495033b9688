"""From lines to messages, and what was typed in earlier sessions."""

from __future__ import annotations

import _thread
import contextlib
import json
import os
import signal
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import BinaryIO, TextIO

from vivace.chat.backend import ChatError
from vivace.chat.interrupts import WAKING, wait_for_foreground
from vivace.chat.screen import drop_controls
from vivace.echo import ENDING, restored_by_signals
from vivace.files import open_own_file

MOST_ENTRIES = 1000
LONGEST_ENTRY = 10_000
"""characters; longer ones are not kept"""
LARGEST_FILE = 16 << 20
"""bytes that are read of a history, at its end"""
LARGEST_INPUT = 16 << 20
"""characters of a message"""
PROMPT, NEXT_PROMPT = ">>> ", "... "
FENCE = '"""'


class Lines:
    """Messages from a terminal or a pipe. `ask` shows a prompt and reads one line."""

    def __init__(
        self, ask: Callable[[str], str], remember: Callable[[str], None] = lambda _: None
    ) -> None:
        self._ask = ask
        self._remember = remember

    def read(self) -> str:
        """The next message, of one or of several lines. Raises EOFError, KeyboardInterrupt, and
        ChatError for one that is too long."""
        line = self._ask(PROMPT)
        text = (
            self._read_fenced(line)
            if line.lstrip().startswith(FENCE)
            else self._read_continuation(line)
        )
        if text.strip():
            self._remember(text)
        return text

    def _read_continuation(self, line: str) -> str:
        lines = self._read_until(lambda last: not last.endswith("\\"), line)
        return "\n".join(line.removesuffix("\\") for line in lines)

    def _read_fenced(self, line: str) -> str:
        first = line.lstrip()[len(FENCE) :]
        text = "\n".join(self._read_until(lambda last: last.rstrip().endswith(FENCE), first))
        return text.rstrip().removesuffix(FENCE).strip("\n")

    def _read_until(self, ends: Callable[[str], bool], first: str) -> list[str]:
        """Lines up to the one that ends a message."""
        lines, length = [first], len(first)
        with contextlib.suppress(EOFError):  # the end of the input ends the message too
            while not ends(lines[-1]):
                lines.append(self._ask(NEXT_PROMPT))
                length += len("\n") + len(lines[-1])
                check_length(length)
        return lines


def check_length(length: int) -> None:
    """Raises ChatError for more characters than one message may have."""
    if length > LARGEST_INPUT:
        raise ChatError(f"a message has more than {LARGEST_INPUT:,} characters")


def read_line(prompt: str) -> str:
    """A line of the terminal; the prompt never goes into a file that takes the answers."""
    if not sys.stdin.isatty():
        return read_piped_line(sys.stdin)
    try:
        return read_edited(prompt, sys.stdin.fileno())
    except EOFError:
        if prompt == PROMPT:  # whoever pressed Ctrl-D again during an answer means no shell
            with contextlib.suppress(termios.error):
                termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
        print(file=sys.stdout if sys.stdout.isatty() else sys.stderr)  # Ctrl-D ends no line
        raise


LATER = (signal.SIGINT, signal.SIGCONT, WAKING, *ENDING)
"""signals that wait while `input` ends by an exception of a handler: another one breaks it"""


class Resumption(Exception):
    """This process was stopped while a line was typed, and goes on. The text is what there was."""


def read_edited(prompt: str, terminal: int) -> str:
    """A line in the modes of readline, which neither gives the terminal back when it is stopped nor
    draws its line again: it begins anew with what was typed."""

    def go_on() -> None:
        wait_for_foreground(terminal)
        hold_signals()
        raise Resumption(line_buffer())

    def interrupt(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(Resumption):
            hold_signals()
        signal.default_int_handler(number, frame)

    typed = ""
    while True:
        wait_for_foreground(terminal)  # its modes are the shell's till then
        modes = termios.tcgetattr(terminal)
        try:
            with restored_by_signals(terminal, modes, go_on, interrupt), begun_with(typed):
                if sys.stdout.isatty():
                    return input(prompt)
                print(prompt, end="", file=sys.stderr, flush=True)
                return input()
        except Resumption as resumed:
            typed = str(resumed)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, LATER)


def hold_signals() -> None:
    """For a handler that is about to raise: signals that came with its own are handled now, others
    when they are let in again."""
    signal.pthread_sigmask(signal.SIG_BLOCK, LATER)
    _thread.interrupt_main(WAKING)  # the handlers that still have to run do so behind this call


def line_buffer() -> str:
    """What has been typed of a line so far, where readline is in use."""
    readline = sys.modules.get("readline")
    return readline.get_line_buffer() if readline is not None else ""


@contextlib.contextmanager
def begun_with(text: str) -> Iterator[None]:
    """Lines begin with this text, as if it were typed."""
    readline = sys.modules.get("readline")
    if readline is None or not text:
        yield
        return
    readline.set_startup_hook(lambda: readline.insert_text(text))
    try:
        yield
    finally:
        readline.set_startup_hook(None)


def read_piped_line(stream: TextIO) -> str:
    """Raises EOFError, and ChatError for a line that is too long."""
    line = stream.readline(LARGEST_INPUT + len("\n"))
    if not line:
        raise EOFError
    line = line.removesuffix("\n")
    check_length(len(line))
    return line


class History:
    """What was typed, one JSON string on a line, for nobody else to read.

    Every message is appended at once, so that sessions side by side lose nothing; when a session
    begins, the oldest are dropped. Trouble with the file is told once, to `complain`.
    """

    def __init__(self, file: Path, complain: Callable[[str], None]) -> None:
        self._file = file
        self._complain = complain

    def load(self) -> list[str]:
        """The newest entries, oldest first."""
        try:
            with self._open(os.O_RDONLY) as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - LARGEST_FILE))
                lines = file.read(LARGEST_FILE).splitlines()
        except FileNotFoundError:
            return []
        except OSError as error:
            self._trouble(error)
            return []
        found = [entry for line in lines if (entry := parse_entry(line)) is not None]
        kept = found[-MOST_ENTRIES:]
        if len(kept) < len(lines) or size > LARGEST_FILE:
            self._write(kept)
        return kept

    def add(self, text: str) -> None:
        if len(text) > LONGEST_ENTRY:
            return
        try:
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._open(os.O_WRONLY | os.O_APPEND | os.O_CREAT) as file:
                file.write(json.dumps(text).encode() + b"\n")
        except OSError as error:
            self._trouble(error)

    def _write(self, entries: list[str]) -> None:
        """Replace the file at once: whoever reads it finds the old or the new one."""
        beside = self._file.with_name(f"{self._file.name}.{os.getpid()}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        try:
            with os.fdopen(os.open(beside, flags, 0o600), "wb") as file:
                file.writelines(json.dumps(entry).encode() + b"\n" for entry in entries)
            beside.replace(self._file)
        except OSError as error:
            with contextlib.suppress(OSError):
                beside.unlink()
            self._trouble(error)

    def _open(self, flags: int) -> BinaryIO:
        descriptor = open_own_file(self._file, flags)
        os.fchmod(descriptor, 0o600)
        return os.fdopen(descriptor, "rb" if flags == os.O_RDONLY else "ab")

    def _trouble(self, error: OSError) -> None:
        complain, self._complain = self._complain, lambda _: None
        complain(f"no history: {self._file}: {error.strerror} (--no-history keeps none)")


def parse_entry(line: bytes) -> str | None:
    """None for what no session has written."""
    try:
        found = json.loads(line)
        if not isinstance(found, str) or not 0 < len(found) <= LONGEST_ENTRY or "\0" in found:
            return None
        found.encode()
    except (ValueError, RecursionError):
        return None
    return found


def edit_lines(history: History | None) -> Callable[[str], None]:
    """Line editing with the arrow keys, over what was typed before; what is to be called with
    each message. Without `history` it knows this session only."""
    try:
        import readline
    except ImportError:
        return history.add if history is not None else lambda _: None
    readline.set_auto_history(False)  # whole messages, not lines
    for entry in history.load() if history is not None else ():
        readline.add_history(drop_controls(entry))

    def remember(text: str) -> None:
        readline.add_history(drop_controls(text))
        if history is not None:
            history.add(text)

    return remember
