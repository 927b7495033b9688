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
LOCAL, CHARACTERS = 3, 6
"""where the local modes and the control characters stand in what `tcgetattr` returns"""

Modes = list[int | list[bytes | int]]
"""of a terminal, as termios has them"""
Handler = Callable[[int, FrameType | None], object]
"""of a signal"""


@contextlib.contextmanager
def echo_off(stream: IO[str], *, keep_end: bool = False) -> Iterator[None]:
    """The terminal that `stream` leads to shows nothing typed while the block runs, and keeps it
    for who reads next. Anything but a terminal in the foreground is left alone. `keep_end`: Ctrl-D
    too, for a line editor, which otherwise gets it as another key."""
    terminal, before = -1, []
    with contextlib.suppress(OSError, ValueError, termios.error):
        terminal = stream.fileno()
        before = termios.tcgetattr(terminal) if is_in_foreground(terminal) else []
    if not before or not before[LOCAL] & termios.ECHO:
        yield
        return
    silent = [*before]
    silent[LOCAL] &= ~termios.ECHO
    if keep_end:
        silent[CHARACTERS] = [*before[CHARACTERS]]
        silent[CHARACTERS][termios.VEOF] = bytes([os.fpathconf(terminal, "PC_VDISABLE")])
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
def restored_by_signals(
    terminal: int,
    modes: Modes,
    go_on: Callable[[], None],
    interrupt: Handler = signal.default_int_handler,
) -> Iterator[None]:
    """Signals that end or stop this process set `modes` before they do: not every shell has modes
    of its own. `go_on` is called when it goes on, in the foreground or not; it may raise.
    `interrupt` handles SIGINT, unless somebody else does."""

    def restore(number: int, frame: FrameType | None) -> None:
        set_modes(terminal, modes)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        signal.signal(number, restore)  # it was stopped, and goes on

    is_main = threading.current_thread() is threading.main_thread()
    handlers: dict[int, Handler] = dict.fromkeys(ENDING, restore)
    handlers |= {signal.SIGCONT: lambda *_: go_on(), signal.SIGINT: interrupt}
    usual = (signal.SIG_DFL, signal.default_int_handler)
    before = {n: was for n in handlers if is_main and (was := signal.getsignal(n)) in usual}
    for number in before:
        signal.signal(number, handlers[number])
    try:
        yield
    finally:
        for number, was in before.items():
            signal.signal(number, was)
