"""Signals as events of a selector."""

from __future__ import annotations

import contextlib
import selectors
import signal
import socket
from collections.abc import Callable, Iterator

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def caught(selector: selectors.BaseSelector, handler: Callable[[int], None]) -> Iterator[None]:
    """While inside, the stopping signals call `handler(number)` from the selector's turn.

    The data of the registered key is a function without arguments, as for all keys here."""
    reader, writer = socket.socketpair()
    for end in (reader, writer):
        end.setblocking(False)

    def arrived() -> None:
        for number in reader.recv(64):
            handler(number)

    before = {number: signal.signal(number, lambda *_: None) for number in STOPPING}
    wakeup = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    selector.register(reader, selectors.EVENT_READ, arrived)
    try:
        yield
    finally:
        signal.set_wakeup_fd(wakeup)
        for number, old in before.items():
            signal.signal(number, old)
        selector.unregister(reader)
        reader.close()
        writer.close()
