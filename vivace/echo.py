"""What is typed while something is drawn does not show in it; who ends or stops leaves it sane."""

from __future__ import annotations

import contextlib
import os
import signal
import termios
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import IO

ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP)
"""signals after which nobody else would switch the echo on again"""
LOCAL = 3
"""where the local modes stand in what `tcgetattr` returns"""


Modes = list[int | list[bytes | int]]
"""of a terminal, as termios has them"""


@contextlib.contextmanager
def echo_off(stream: IO[str]) -> Iterator[None]:
    """The terminal that `stream` leads to shows nothing typed while the block runs, and keeps it
    for who reads next. Anything but a terminal in the foreground is left alone."""
    terminal, before = -1, []
    with contextlib.suppress(OSError, ValueError, termios.error):
        terminal = stream.fileno()
        before = termios.tcgetattr(terminal) if is_in_foreground(terminal) else []
    if not before or not before[LOCAL] & termios.ECHO:
        yield
        return
    silent = [*before]
    silent[LOCAL] &= ~termios.ECHO
    with restored_by_signals(terminal, before, lambda: set_modes(terminal, silent)):
        set_modes(terminal, silent)
        try:
            yield
        finally:
            set_modes(terminal, before)


def is_in_foreground(terminal: int) -> bool:
    """A process in the background is stopped when it changes the terminal."""
    return os.isatty(terminal) and os.tcgetpgrp(terminal) == os.getpgrp()


def set_modes(terminal: int, modes: Modes) -> None:
    """Unless the terminal is gone, or the shell has it."""
    with contextlib.suppress(OSError, termios.error):
        if is_in_foreground(terminal):
            termios.tcsetattr(terminal, termios.TCSANOW, modes)


@contextlib.contextmanager
def restored_by_signals(terminal: int, modes: Modes, go_on: Callable[[], None]) -> Iterator[None]:
    """Signals that end or stop this process set `modes` before they do: not every shell has modes
    of its own. `go_on` is called when it goes on, in the foreground or not; it may raise."""

    def restore(number: int, frame: FrameType | None) -> None:
        set_modes(terminal, modes)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        signal.signal(number, restore)  # it was stopped, and goes on

    is_main = threading.current_thread() is threading.main_thread()
    handlers = {**dict.fromkeys(ENDING, restore), signal.SIGCONT: lambda *_: go_on()}
    numbers = [n for n in handlers if is_main and signal.getsignal(n) is signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, handlers[number])
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)
