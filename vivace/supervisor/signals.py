"""Signals as events of a selector."""

from __future__ import annotations

import contextlib
import logging
import selectors
import signal
import socket
import time
from collections.abc import Callable, Iterator

log = logging.getLogger(__name__)
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SAME_SIGNAL_SECONDS = 0.3
"""Wrappers such as `timeout` signal a process and then its group: that is one wish, not two."""


@contextlib.contextmanager
def handle_signals(
    selector: selectors.BaseSelector, handler: Callable[[int], None]
) -> Iterator[None]:
    """While inside, the stopping signals call `handler(number)` from the selector's turn, once for
    those that come together.

    The data of the registered key is a function without arguments, as for all keys here. What the
    parent had this process ignore (nohup SIGHUP, a shell SIGINT of its background jobs) stays
    ignored; SIGTERM always stops."""
    reader, writer = socket.socketpair()
    for end in (reader, writer):
        end.setblocking(False)
    ignored_until = 0.0

    def on_signal() -> None:
        nonlocal ignored_until
        for number in reader.recv(64):
            if (now := time.monotonic()) >= ignored_until:
                ignored_until = now + SAME_SIGNAL_SECONDS
                handler(number)

    before = {number: signal.signal(number, lambda *_: None) for number in not_ignored()}
    wakeup = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    selector.register(reader, selectors.EVENT_READ, on_signal)
    try:
        yield
    finally:
        signal.set_wakeup_fd(wakeup)
        for number, old in before.items():
            signal.signal(number, old)
        selector.unregister(reader)
        reader.close()
        writer.close()


@contextlib.contextmanager
def block_signals() -> Iterator[None]:
    """What starts in here begins with the stopping signals blocked: until it says what they are to
    it, Ctrl-C, which reaches every process of the terminal, would end it with a traceback."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def not_ignored() -> list[signal.Signals]:
    """Those of STOPPING that may stop this process; says which may not."""
    ignored = [number for number in STOPPING if signal.getsignal(number) is signal.SIG_IGN]
    ignored = [number for number in ignored if number is not signal.SIGTERM]
    if ignored:
        log.info(
            "%s: ignored here, as in the process that started this one; SIGTERM stops the server",
            " and ".join(number.name for number in ignored),
        )
    return [number for number in STOPPING if number not in ignored]
