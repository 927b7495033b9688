"""The listening side: connections with deadlines, JSON errors, limits, and the access log."""

from __future__ import annotations

import asyncio
import logging
import socket
from http.client import responses
from typing import Any

from aiohttp import web
from aiohttp.abc import AbstractAccessLogger
from aiohttp.web import BaseRequest, Request, StreamResponse
from aiohttp.web_protocol import RequestHandler

from vivace.observability.log import level_number
from vivace.server.access import is_text
from vivace.server.context import CONTEXT
from vivace.server.responses import HTTPError, error_response
from vivace.server.settings import ServerSettings

PROBES = frozenset({"/health", "/health_generate", "/ready", "/metrics"})
"""asked every few seconds by whatever looks after the server"""
access_log = logging.getLogger("vivace.access")


class AccessLog(AbstractAccessLogger):
    """`INFO: 127.0.0.1:52345 - "POST /generate HTTP/1.1" 200 OK`."""

    @property
    def enabled(self) -> bool:
        return self.logger.isEnabledFor(logging.INFO)

    def log(self, request: BaseRequest, response: StreamResponse, time: float) -> None:
        """`time` (seconds) is not shown: the form has no place for it."""
        if not is_left_out(request, response.status):
            self.logger.info("%s", access_line(request, response.status))


def is_left_out(request: BaseRequest, status: int) -> bool:
    """Whether a line would tell nobody anything, or is not wanted. One that failed is told, but
    that a server that starts is not ready is no failure."""
    if not isinstance(request, Request) or request._match_info is None:
        return False  # it could not be read, or was answered before a route was looked for
    context = request.app[CONTEXT]
    if request.raw_path.startswith(context.settings.access_log_excluded):
        return True
    resource = request.match_info.route.resource
    if resource is None or resource.canonical not in PROBES:
        return False
    return status == 200 or (status == 503 and context.frontend.status == "starting")


def access_line(request: BaseRequest, status: int) -> str:
    """One line; the path is shown as sent (percent-encoded), so it cannot break the line."""
    peer = request.transport.get_extra_info("peername") if request.transport else None
    address = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "unix"
    version = f"{request.version.major}.{request.version.minor}"
    phrase = responses.get(status, "")
    target = request.raw_path.encode("ascii", "backslashreplace").decode()
    return (
        f'INFO: {address} - "{request.method} {target} HTTP/{version}" {status} {phrase}'.rstrip()
    )


def configure_access_log(level: str) -> logging.Logger:
    """The access logger at `--log-level-http`."""
    access_log.setLevel(level_number(level))
    return access_log


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


async def name_server(_request: web.Request, response: web.StreamResponse) -> None:
    response.headers["Server"] = SERVER


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
