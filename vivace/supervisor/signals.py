"""Signals as events of a selector."""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable, Iterator
from types import FrameType

from vivace.config.child_process import STOPPING

log = logging.getLogger(__name__)
AT_ONCE = signal.SIGQUIT
"""of STOPPING: no request is waited for"""
SAME_SIGNAL_SECONDS = 0.3
"""Wrappers such as `timeout` signal a process and then its group: that is one wish, not two."""


@contextlib.contextmanager
def stop_on_signals(program: str) -> Iterator[None]:
    """Inside, a stopping signal ends the process at once, with one line and the exit status 128 +
    its number.

    For the time before a supervisor handles them. Even SIGTERM needs it: the first process of a
    container ignores what it has no handler for. Nothing is raised: the signal may come while a
    destructor runs or a library calls back, which lose an exception or crash over it. Nothing has
    to be undone either: the processes started so far end with their parent."""
    stopping = False

    def on_signal(number: int, _: FrameType | None) -> None:
        nonlocal stopping
        if stopping:  # a second one while the line is written
            return
        stopping = True
        name = signal.Signals(number).name
        with contextlib.suppress(OSError):
            os.write(2, f"{program}: {name}: stopped before the server was ready\n".encode())
        os._exit(128 + number)

    before = {number: signal.signal(number, on_signal) for number in not_ignored()}
    try:
        yield
    finally:
        for number, old in before.items():
            if signal.getsignal(number) is on_signal:  # `handle_signals` may have others ignored
                signal.signal(number, old)


@contextlib.contextmanager
def handle_signals(
    selector: selectors.BaseSelector, handler: Callable[[int], None]
) -> Iterator[None]:
    """While inside, the stopping signals call `handler(number)` from the selector's turn, once for
    those that come together; AT_ONCE is heard behind any other. Once one was handled they are
    ignored to the end of the process, which one that comes late would make its exit status. One
    that came and had no turn any more is left to whoever handled it before.

    The data of the registered key is a function without arguments, as for all keys here. What the
    parent had this process ignore (nohup SIGHUP, a shell SIGINT of its background jobs) stays
    ignored; SIGTERM always stops."""
    reader, writer = socket.socketpair()
    for end in (reader, writer):
        end.setblocking(False)
    ignored_until, last, waiting = 0.0, 0, list[int]()

    def on_signal() -> None:
        nonlocal ignored_until, last
        waiting.clear()
        for number in reader.recv(64):
            now = time.monotonic()
            if now >= ignored_until or (number == AT_ONCE and last != AT_ONCE):
                ignored_until, last = now + SAME_SIGNAL_SECONDS, number
                handler(number)

    tell_ignored()
    # The descriptor first: a signal between the two would be heard by nobody.
    wakeup = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    before = {
        number: signal.signal(number, lambda number, _: waiting.append(number))
        for number in not_ignored()
    }
    selector.register(reader, selectors.EVENT_READ, on_signal)
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, signal.SIG_IGN if last else old)
        signal.set_wakeup_fd(wakeup)
        selector.unregister(reader)
        reader.close()
        writer.close()
        if waiting:
            signal.raise_signal(waiting[0])


def not_ignored() -> list[signal.Signals]:
    """Those of STOPPING that may stop this process."""
    return [
        number
        for number in STOPPING
        if number is signal.SIGTERM or signal.getsignal(number) is not signal.SIG_IGN
    ]


def tell_ignored() -> None:
    ignored = [number.name for number in STOPPING if number not in not_ignored()]
    if ignored:
        log.info(
            "%s: ignored here, as in the process that started this one; SIGTERM stops the server",
            " and ".join(ignored),
        )
