"""HTTP around the handlers: connections with deadlines and JSON errors; what every request passes
(key, body limit, wait for the engine, error form, counters)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from http.client import responses
from typing import Any

from aiohttp import HttpVersion10, HttpVersion11, web
from aiohttp.abc import AbstractAccessLogger
from aiohttp.web_protocol import RequestHandler

from vivace.config.http import SERVER
from vivace.frontend.errors import BadRequest
from vivace.frontend.fairness import CURRENT_BEGIN, CURRENT_CLIENT, discard
from vivace.frontend.frontend import Frontend
from vivace.observability.log import level_number
from vivace.server.access import CLIENT, Access, check_headers, is_text
from vivace.server.body import Body, read_body
from vivace.server.context import CONTEXT, Context
from vivace.server.half_closed import HalfClosedWatch
from vivace.server.responses import (
    ErrorForm,
    HTTPError,
    error_body,
    error_response,
    free_frames,
)
from vivace.server.route import FULL, NO_BODY, Route
from vivace.server.unknown_paths import aiohttp_error, without_slash

# -- connections -----------------------------------------------------------------------------------

log = logging.getLogger("vivace.server")

HTTP2 = "PRI/Upgrade"
"""in aiohttp's words about a client that begins with HTTP/2"""


class Connection(RequestHandler):
    """One client connection. The head of a request must be complete `header_timeout` seconds after
    its first byte; for the first request, after the connection was made.

    How long a connection may rest between requests is aiohttp's keep-alive timeout. A client that
    has closed its side, which aiohttp takes as gone, may wait for answers (server/half_closed.py).
    """

    __slots__ = ("_answering", "_begun", "_deadline", "_half_closed", "_header_timeout", "_last")

    def __init__(self, server: web.Server, *, header_timeout: float, **limits: Any) -> None:
        super().__init__(server, **limits)
        self._header_timeout = header_timeout
        self._deadline: asyncio.TimerHandle | None = None
        self._answering = False
        self._begun = False
        """bytes behind the last whole request have come"""
        self._half_closed: HalfClosedWatch | None = None
        self._last: tuple[Any, Any] | None = None
        """the head and the body of the request that came last"""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: BaseException | None) -> None:
        self.on_headers()
        if self._half_closed is not None:
            self._half_closed.cancel()
            self._half_closed = None  # it holds this
        self._last = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self._answering and self._deadline is None:
            self._expect_head()
        behind = self._last is not None and self._last[1].is_eof()
        before = self._last
        super().data_received(data)
        if self._messages:
            self._last = self._messages[-1]
        self._begun = behind and self._last is before

    @property
    def expects_head(self) -> bool:
        """It was made just now, or has sent the beginning of a request."""
        return self._deadline is not None

    def _expect_head(self) -> None:
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(self._header_timeout, self.force_close)

    def on_headers(self) -> None:
        """A request's headers are complete: the deadline is met."""
        self._answering = True
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def on_answered(self) -> None:
        """The next bytes belong to another request."""
        self._answering = False
        if self._begun and self._deadline is None and self.transport is not None:
            self._expect_head()

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
            http_error = HTTPError(status, "internal error")
        elif HTTP2 in (message or ""):
            http_error = HTTPError(505, "HTTP/2 is not spoken here; use HTTP/1.1")
        else:
            log.debug("malformed HTTP from %s: %s", request.remote, message)
            reason = f"malformed HTTP request: {message}"
            http_error = HTTPError(status, reason.split("\n")[0])
        response = error_response(http_error)
        response.headers["Server"] = SERVER
        response.force_close()
        return response

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


async def name_server(_request: web.Request, response: web.StreamResponse) -> None:
    response.headers["Server"] = SERVER


async def end_connection(request: web.Request, response: web.StreamResponse) -> None:
    """While the server drains a client's next request would be refused, or cut off at the end."""
    if request.app[CONTEXT].frontend.status == "draining":
        response.force_close()
        response.headers["Connection"] = "close"


# -- one line for each request, in uvicorn's form ------------------------------------------------

PROBE_PATHS = frozenset({"/health", "/health_generate", "/ready", "/metrics"})
"""asked every few seconds by whatever looks after the server"""
access_log = logging.getLogger("vivace.access")


class AccessLog(AbstractAccessLogger):
    """`INFO: 127.0.0.1:52345 - "POST /generate HTTP/1.1" 200 OK`."""

    @property
    def enabled(self) -> bool:
        return self.logger.isEnabledFor(logging.INFO)

    def log(self, request: web.BaseRequest, response: web.StreamResponse, time: float) -> None:
        """`time` (seconds) is not shown: the form has no place for it."""
        if not is_left_out(request, response.status):
            self.logger.info("%s", access_line(request, response.status))


def is_left_out(request: web.BaseRequest, status: int) -> bool:
    """Whether a line would tell nobody anything, or is not wanted. One that failed is told, but
    that a server that starts is not ready is no failure."""
    if not isinstance(request, web.Request) or request._match_info is None:
        return False  # it could not be read, or was answered before a route was looked for
    context = request.app[CONTEXT]
    if request.raw_path.startswith(context.settings.access_log_excluded):
        return True
    resource = request.match_info.route.resource
    if resource is None or resource.canonical not in PROBE_PATHS:
        return False
    return status == 200 or (status == 503 and context.status == "starting")


def access_line(request: web.BaseRequest, status: int) -> str:
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


# -- around every handler --------------------------------------------------------------------------

Handle = Callable[[web.Request], Awaitable[web.StreamResponse]]

CLIENT_LEFT = 499
MAX_NAMED = 256
"""Characters of a path that are looked at for the API that it is of."""


def bind(context: Context, route: Route) -> Handle:
    """aiohttp's handler of a route: check the key, read the body up to the limit, run it."""
    settings = context.settings
    limit = settings.body_limit if route.body_limit == FULL else route.body_limit

    async def handle(request: web.Request) -> web.StreamResponse:
        client = context.keys.check(request, route.auth)
        if client is None:
            context.browsers.check(
                request,
                route.effect,
                reads_body=route.accepts is not None,
                # probes call a server by any name; what they read is no secret
                any_host=route.auth is Access.PUBLIC,
            )
        request[CLIENT] = client or 0
        CURRENT_CLIENT.set(-id(request.protocol) if client is None else client)
        CURRENT_BEGIN.set(time.monotonic())
        if limit == NO_BODY and not request.can_read_body:
            return await route.handler(context, request, Body())
        if route.body_limit != FULL:
            return await answer(request)
        async with context.pending.admit():
            return await answer(request)

    async def answer(request: web.Request) -> web.StreamResponse:
        body = await read_body(request, limit, settings.body_timeout, context.bodies)
        try:
            if route.task is not None:
                context.require_task(route.task)
                await context.start_queue.wait()
                context.require_ready()
                accept(context.frontend)
            return await route.handler(context, request, body)
        except (HTTPError, BadRequest) as error:
            free_frames(error)  # they hold the lists too
            raise
        finally:
            body.release()
            if body.lists:
                await context.slicer.run(discard(body.lists))

    return handle


def accept(frontend: Frontend) -> None:
    """This request is answered before the frontend ends, be it with a refusal, also when no engine
    has heard of it yet: its prompt may be in the template process."""

    def on_sent(_: object) -> None:
        frontend.accepted -= 1

    task = asyncio.current_task()  # aiohttp's own, which sends the answer, too
    assert task is not None
    frontend.accepted += 1
    task.add_done_callback(on_sent)


def with_folders(forms: Mapping[str, ErrorForm]) -> dict[str, ErrorForm]:
    """Forms of paths, and of the folders in which all paths have the same: a client that asks for
    one that there is not reads the same errors."""
    folders: dict[str, set[ErrorForm]] = {}
    for path, form in forms.items():
        folders.setdefault(path.rpartition("/")[0], set()).add(form)
    return {name: found.pop() for name, found in folders.items() if len(found) == 1} | dict(forms)


def error_form(forms: Mapping[str, ErrorForm], path: str) -> ErrorForm:
    """That of a route, also asked with another method, or of the folder that the path is in."""
    name = path[:MAX_NAMED]
    while name and name not in forms:
        name = name.rpartition("/")[0]
    return forms.get(name, error_body)


def guard(
    context: Context, forms: Mapping[str, ErrorForm], told: Mapping[str, ErrorForm]
) -> Callable[..., Awaitable[web.StreamResponse]]:
    """The middleware: every answer, also to an unknown path, leaves in one form and is counted.
    `forms`: of paths, and of folders for what is unknown in them; `told`: of requests with a
    header, whatever their path."""

    @web.middleware
    async def answer(request: web.Request, handler: Handle) -> web.StreamResponse:
        connection = request.protocol
        if isinstance(connection, Connection):
            connection.on_headers()
        resource = request.match_info.route.resource
        endpoint = resource.canonical if resource is not None else None
        label = context.http_metrics.begin(endpoint, request.method)
        status = CLIENT_LEFT
        try:
            form = error_form(forms, endpoint or request.path)
            form = next((told[name] for name in told if name in request.headers), form)
            response = await outcome(context, request, handler, form)
            status = response.status
            return response
        finally:
            context.http_metrics.end(label, status)
            if isinstance(connection, Connection):
                connection.on_answered()

    return answer


async def outcome(
    context: Context, request: web.Request, handler: Handle, form: ErrorForm
) -> web.StreamResponse:
    """Run the handler; turn what it raises into an answer."""
    try:
        try:
            check_headers(request)
            return context.browsers.preflight(request) or await handler(request)
        except (HTTPError, BadRequest, web.HTTPException) as error:
            free_frames(error)
            return await answer_error(context, request, error, form)
    except (asyncio.CancelledError, ConnectionError) as error:
        free_frames(error)
        raise
    except Exception as error:  # also one of those that make the answer to an error
        log.exception("%s %r failed", request.method, request.path)
        free_frames(error)
        wrong = HTTPError(500, "internal error; the server's log has the details")
        return error_response(wrong, form)


async def answer_error(
    context: Context,
    request: web.Request,
    error: HTTPError | BadRequest | web.HTTPException,
    form: ErrorForm,
) -> web.StreamResponse:
    """The answer to what a handler raised."""
    http_error = to_http_error(context, request, error)
    unknown = isinstance(error, web.HTTPException) and http_error.status == 404
    moved = await without_slash(request) if unknown else None
    return moved or error_response(http_error, form)


def to_http_error(
    context: Context, request: web.Request, error: HTTPError | BadRequest | web.HTTPException
) -> HTTPError:
    """What an answer other than 2xx says."""
    if isinstance(error, HTTPError):
        return error
    if isinstance(error, web.HTTPException):
        return aiohttp_error(context, request, error)
    return HTTPError(
        error.status,
        str(error),
        param=error.field or None,
        code=error.code,
        retry_after=error.retry_after,
    )
