"""The aiohttp application and its start."""

from __future__ import annotations

import socket

from aiohttp import web

from vivace.config.config import Config
from vivace.frontend.frontend import Frontend
from vivace.protocol.shared_memory import SharedMemory
from vivace.server.access import Access, BrowserPolicy, Keys
from vivace.server.context import CONTEXT, BodyBudget, Context, StartQueue
from vivace.server.http import bind, end_connection, guard, name_server, start_site
from vivace.server.http_metrics import HttpMetrics
from vivace.server.openapi import document
from vivace.server.request_log import RequestLog, add_targets
from vivace.server.routes import ROUTES, Route, check_routes
from vivace.server.settings import ServerSettings, build_server_settings


def build_app(
    frontend: Frontend, config: Config, memory: SharedMemory | None = None, place: int = 0
) -> web.Application:
    """The HTTP application of one frontend process; `memory` is shared with the other ones, and
    `place` is this one's there."""
    settings = build_server_settings(config)
    if settings.log_requests_targets:
        add_targets(settings.log_requests_targets)
    return make_app(
        frontend,
        settings,
        http_metrics=HttpMetrics(memory, place),
        request_log=make_request_log(settings, memory.request_log if memory else None),
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
) -> web.Application:
    """The application from plain settings; ValueError when the route table is incomplete."""
    check_routes(routes)
    keys = Keys(settings.api_keys, settings.admin_api_keys)
    browsers = BrowserPolicy(settings.allowed_origins, settings.allowed_hosts)
    context = Context(
        frontend=frontend,
        settings=settings,
        keys=keys,
        browsers=browsers,
        http_metrics=http_metrics or HttpMetrics(),
        request_log=request_log or make_request_log(settings),
        bodies=BodyBudget(max(settings.bodies_limit, settings.body_limit)),
        start_queue=StartQueue(frontend.engine, settings.start_queue_limit),
        document=document(routes, [access for access in Access if keys.needed_for(access)]),
    )
    prefixes = ("", settings.root_path) if settings.root_path else ("",)
    app = web.Application(middlewares=[guard(context)], client_max_size=0)
    app[CONTEXT] = context
    for prefix in prefixes:
        for route in routes:
            handle = bind(context, route)
            for method in route.methods:
                app.router.add_route(method, prefix + route.path, handle)
    app.on_response_prepare.extend((name_server, end_connection, browsers.mark))
    return app


async def serve(app: web.Application, sock: socket.socket, config: Config) -> web.AppRunner:
    """Listen on a bound socket until `stop_site` (server/http.py) with the runner."""
    return await start_site(app, sock, build_server_settings(config))
