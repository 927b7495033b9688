"""Clients that close their side of a connection behind a request and wait for the answer.

TCP does not tell them from clients that are gone until something is sent: the system of a client
that is gone answers with a reset. So an interim answer is sent, which every client of HTTP/1.1
skips. A client that goes later is noticed by the answer's own bytes, or by the next interim one.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

from aiohttp import HttpVersion10, HttpVersion11, web
from aiohttp.web_protocol import RequestHandler

INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"
PROBES = (0.0, 1.0, 5.0, 25.0, 125.0)
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
        self._probes = list(PROBES)
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


class PatientHandler(RequestHandler):
    """aiohttp's connection, which otherwise takes a client that has closed its side as gone."""

    __slots__ = ("_half_closed", "_last")

    def __init__(self, server: web.Server, **limits: Any) -> None:
        super().__init__(server, **limits)
        self._half_closed: HalfClosedWatch | None = None
        self._last: tuple[Any, Any] | None = None
        """the head and the body of the request that came last"""

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._messages:
            self._last = self._messages[-1]

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._half_closed is not None:
            self._half_closed.cancel()
            self._half_closed = None  # it holds this
        self._last = None
        super().connection_lost(exc)

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client sends nothing more. Returns whether the connection stays: the client may wait
        for the answers to whole requests of HTTP/1.1."""
        if self.transport is None or not self._may_be_awaited():
            return False
        if self._half_closed is None:
            self._half_closed = HalfClosedWatch(
                self.transport, self._may_send, self._end_after_last
            )
        return True

    def _may_be_awaited(self) -> bool:
        if self._last is None or self._is_idle():
            return False
        head, body = self._last  # when it is whole, so is what came before it
        return getattr(head, "version", HttpVersion10) >= HttpVersion11 and body.is_eof()

    def _end_after_last(self) -> None:
        if self._is_idle():
            self.force_close()
        elif not self._messages:
            self.close()  # after the answer

    def _is_idle(self) -> bool:
        return not self._messages and self._current_request is None and self._waiter is not None

    def _may_send(self) -> bool:
        request = self._current_request
        if request is None:
            return False
        return request.version >= HttpVersion11 and not request.writer.output_size
