"""The listening side: connections with deadlines, JSON errors and the server's limits."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Any

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from vivace.server.access_log import AccessLog, configure_access_log
from vivace.server.browsers import is_text
from vivace.server.errors import HTTPError, error_response
from vivace.server.settings import ServerSettings

log = logging.getLogger("vivace.server")

MAX_LINE = 16 << 10
MAX_FIELD = 16 << 10
MAX_HEADERS = 128
LINGER = 2.0
BACKLOG = 1024
SERVER = "vivace"
"""The Server header: not which HTTP library runs here, nor its version."""


class Connection(RequestHandler):
    """One client connection. The head of a request must be complete `header_timeout` seconds after
    its first byte; for the first request, after the connection was made.

    How long a connection may rest between requests is aiohttp's keep-alive timeout.
    """

    __slots__ = ("_answering", "_deadline", "_header_timeout")

    def __init__(self, server: web.Server, *, header_timeout: float, **limits: Any) -> None:
        super().__init__(server, **limits)
        self._header_timeout = header_timeout
        self._deadline: asyncio.TimerHandle | None = None
        self._answering = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: BaseException | None) -> None:
        self.arrived()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self._answering and self._deadline is None:
            self._expect_head()
        super().data_received(data)

    def _expect_head(self) -> None:
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(self._header_timeout, self.force_close)

    def arrived(self) -> None:
        """A request's headers are complete: the deadline is met."""
        self._answering = True
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def answered(self) -> None:
        """The next bytes belong to another request."""
        self._answering = False

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The answer to bytes that are not HTTP: JSON, without a traceback, and the end."""
        if request.writer.output_size > 0:
            raise ConnectionError("an answer is already on its way")
        if not is_text(request.headers.get("Expect", "")):
            status, message = 417, "the header Expect is no UTF-8 text"  # aiohttp fails to say so
        if status >= 500:
            log.error("%s: the answer failed", request.remote, exc_info=exc)
        else:
            log.debug("malformed HTTP from %s: %s", request.remote, message)
        reason = "internal error" if status >= 500 else f"malformed HTTP request: {message}"
        response = error_response(HTTPError(status, reason.split("\n")[0]))
        response.headers["Server"] = SERVER
        response.force_close()
        return response


class Site(web.BaseSite):
    """Serves a listening socket with `Connection`s."""

    def __init__(self, runner: web.AppRunner, sock: socket.socket, **options: Any) -> None:
        super().__init__(runner, backlog=BACKLOG)
        self._sock = sock
        self._options = options

    @property
    def name(self) -> str:
        return str(self._sock.getsockname())

    async def start(self) -> None:
        await super().start()
        loop = asyncio.get_running_loop()
        server = self._runner.server
        assert server is not None  # BaseSite refuses a runner without one
        self._server = await loop.create_server(
            lambda: Connection(server, loop=loop, **self._options),
            sock=self._sock,
            backlog=self._backlog,
        )


async def start_site(
    app: web.Application, sock: socket.socket, settings: ServerSettings
) -> web.AppRunner:
    """Serve `app` on a bound socket until the returned runner is cleaned up."""
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=5.0)
    await runner.setup()
    site = Site(
        runner,
        sock,
        header_timeout=settings.header_timeout,
        keepalive_timeout=settings.keepalive_timeout,
        access_log_class=AccessLog,
        access_log=configure_access_log(settings.access_log_level),
        max_line_size=MAX_LINE,
        max_field_size=MAX_FIELD,
        max_headers=MAX_HEADERS,
        lingering_time=LINGER,
        auto_decompress=False,
    )
    await site.start()
    return runner
