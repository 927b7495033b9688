"""The aiohttp application and its start."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from functools import cache, partial
from typing import Any

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from vivace.config.config import Config
from vivace.frontend.frontend import Frontend
from vivace.protocol.shared_memory import SharedMemory
from vivace.requests.answer_syntax import answer_syntax
from vivace.server.access import Access, BrowserPolicy, Keys
from vivace.server.apis.anthropic import anthropic_error
from vivace.server.apis.anthropic_models import VERSION
from vivace.server.context import CONTEXT, BodyBudget, Context, PendingRequests, StartQueue
from vivace.server.http import (
    AccessLog,
    Connection,
    bind,
    configure_access_log,
    end_connection,
    guard,
    name_server,
    with_folders,
)
from vivace.server.http_metrics import HttpMetrics
from vivace.server.openapi import document
from vivace.server.request_log import RequestLog, add_targets
from vivace.server.response_link import join_responses
from vivace.server.response_store import ResponseStore
from vivace.server.route import Route, check_routes, move_routes
from vivace.server.routes import ROUTES
from vivace.server.settings import ServerSettings, build_server_settings
from vivace.tool_servers.servers import ToolServers

MAX_LINE = 16 << 10
MAX_FIELD = 16 << 10
MAX_HEADERS = 128
LINGER = 2.0
LAST_REQUESTS = 0.3
"""Seconds in which clients that are connected when the server stops may still send a request."""
BACKLOG = 1024


def build_app(
    frontend: Frontend,
    config: Config,
    memory: SharedMemory | None = None,
    place: int = 0,
    tool_servers: ToolServers | None = None,
    responses: int = -1,
) -> web.Application:
    """The HTTP application of one frontend process; `memory` is shared with the other ones, and
    `place` is this one's there. `responses`: as of `join_responses`."""
    settings = build_server_settings(config)
    if settings.log_requests_targets:
        add_targets(settings.log_requests_targets)
    return make_app(
        frontend,
        settings,
        http_metrics=HttpMetrics(memory, place),
        request_log=make_request_log(settings, memory.request_log if memory else None),
        tool_servers=tool_servers,
        place=place,
        responses=responses,
    )


def make_request_log(settings: ServerSettings, memory: memoryview | None = None) -> RequestLog:
    return RequestLog(
        enabled=settings.log_requests,
        level=settings.log_requests_level,
        form=settings.log_requests_format,
        memory=memory,
    )


def make_app(
    frontend: Frontend,
    settings: ServerSettings,
    routes: tuple[Route, ...] = ROUTES,
    http_metrics: HttpMetrics | None = None,
    request_log: RequestLog | None = None,
    tool_servers: ToolServers | None = None,
    place: int = 0,
    responses: int = -1,
) -> web.Application:
    """The application from plain settings; ValueError when the route table is incomplete,
    CannotStart when a path cannot be moved."""
    check_routes(routes)
    routes = move_routes(routes, settings.moved_paths)
    keys = Keys(settings.api_keys, settings.admin_api_keys)
    browsers = BrowserPolicy(settings.allowed_origins, settings.allowed_hosts)
    store = ResponseStore(shared=keys.clients > 1)
    kept, link = join_responses(store, responses, place)
    context = Context(
        frontend=frontend,
        settings=settings,
        keys=keys,
        browsers=browsers,
        http_metrics=http_metrics or HttpMetrics(),
        request_log=request_log or make_request_log(settings),
        bodies=BodyBudget(max(settings.bodies_limit, settings.body_limit)),
        start_queue=StartQueue(frontend.engine, settings.start_queue_limit),
        pending=PendingRequests(frontend.engine),
        responses=kept,
        tool_servers=tool_servers or ToolServers(),
        syntax=answer_syntax(
            frontend,
            settings.tool_call_parser,
            settings.reasoning_parser,
            forwards=settings.forward_unknown_tools,
        ),
        document=cache(partial(document, routes, list(filter(keys.needed_for, Access)))),
    )
    prefixes = ("", settings.root_path) if settings.root_path else ("",)
    forms = {prefix + route.path: route.errors for prefix in prefixes for route in routes}
    middleware = guard(context, with_folders(forms), {VERSION: anthropic_error})
    app = web.Application(middlewares=[middleware], client_max_size=0)
    app[CONTEXT] = context
    if link is not None:
        app.on_startup.append(link.open)
        app.on_cleanup.append(link.close)
    for prefix in prefixes:
        add_routes(app, context, routes, prefix)
    app.on_response_prepare.extend((name_server, end_connection, browsers.mark))
    return app


def add_routes(
    app: web.Application, context: Context, routes: Sequence[Route], prefix: str
) -> None:
    for route in routes:
        handle = bind(context, route)
        for method in route.methods:
            app.router.add_route(method, prefix + route.path, handle)


# -- listening ------------------------------------------------------------------------------------


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


async def start_site(app: web.Application, sock: socket.socket) -> web.AppRunner:
    """Serve `app` on a bound socket until `stop_site` with the returned runner."""
    settings = app[CONTEXT].settings
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1.0)
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


async def stop_site(runner: web.AppRunner) -> None:
    """Accept no connection any more, and close all. Whose request is about to come, as the
    connection was made just now, still gets an answer."""
    for site in list(runner.sites):
        await site.stop()
    loop = asyncio.get_running_loop()
    until = loop.time() + LAST_REQUESTS
    while (server := runner.server) and any(map(is_awaited, server.connections)):
        if loop.time() > until:
            break
        await asyncio.sleep(0.01)
    await runner.cleanup()


def is_awaited(connection: RequestHandler) -> bool:
    return isinstance(connection, Connection) and connection.expects_head
