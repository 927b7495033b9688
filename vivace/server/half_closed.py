"""Clients that close their side of a connection behind a request and wait for the answer.

TCP does not tell them from clients that are gone until something is sent: the system of a client
that is gone answers with a reset. So an interim answer is sent, which every client of HTTP/1.1
skips. A client that goes later is noticed by the answer's own bytes, or by the next interim one.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"
PROBE_TIMES = (0.0, 1.0, 5.0, 25.0, 125.0)
"""Seconds after the client has closed its side; Go's client takes five interim answers."""
FIRST_LOOK, LONGEST_LOOK = 0.005, 1.0
"""Seconds between two looks at the connection's state, each twice the one before."""
TCP_CLOSE = 7
"""of TCP_INFO: it was reset"""


class HalfClosedWatch:
    """Ends a connection (`connection_lost` is called) when its client turns out to be gone."""

    def __init__(
        self,
        transport: asyncio.Transport,
        may_send: Callable[[], bool],
        end: Callable[[], None],
    ) -> None:
        """`may_send`: whether the answer itself has not begun. `end`: called time and again, closes
        the connection when the last answer is sent."""
        self._transport = transport
        self._may_send = may_send
        self._end = end
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._probes = list(PROBE_TIMES)
        self._wait = FIRST_LOOK
        self._timer = self._loop.call_later(0.0, self._look)

    def cancel(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        if self._transport.is_closing():
            return
        if is_reset(self._transport):
            self._transport.abort()
            return
        self._end()
        if self._probes and self._loop.time() >= self._began + self._probes[0]:
            del self._probes[0]
            if self._may_send():
                self._transport.write(INTERIM)
        self._timer = self._loop.call_later(self._wait, self._look)
        self._wait = min(2 * self._wait, LONGEST_LOOK)


def is_reset(transport: asyncio.Transport) -> bool:
    """Whether the other end has answered that it is gone."""
    connection = transport.get_extra_info("socket")
    try:
        return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == TCP_CLOSE
    except OSError:
        return True
