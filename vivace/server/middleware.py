"""Around every handler: key, body limit, wait for the engine, error form, counters."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from aiohttp import web

from vivace.frontend.errors import BadRequest
from vivace.frontend.fairness import CURRENT_CLIENT
from vivace.server.access import CLIENT, Access, check_headers
from vivace.server.body import Body, read_body
from vivace.server.connection import Connection
from vivace.server.context import Context
from vivace.server.responses import HTTPError, error_response
from vivace.server.routes import FULL, NO_BODY, Route

log = logging.getLogger("vivace.server")

Handle = Callable[[web.Request], Awaitable[web.StreamResponse]]

CLIENT_LEFT = 499


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
        if limit == NO_BODY and not request.can_read_body:
            return await route.handler(context, request, Body())
        body = await read_body(request, limit, settings.body_timeout, context.bodies)
        try:
            if route.generates:
                await context.start_queue.wait()
                context.require_ready()
            return await route.handler(context, request, body)
        finally:
            body.release()

    return handle


def guard(context: Context) -> Callable[..., Awaitable[web.StreamResponse]]:
    """The middleware: every answer, also to an unknown path, leaves in one form and is counted."""

    @web.middleware
    async def answer(request: web.Request, handler: Handle) -> web.StreamResponse:
        connection = request.protocol
        if isinstance(connection, Connection):
            connection.arrived()
        resource = request.match_info.route.resource
        endpoint = resource.canonical if resource is not None else None
        label = context.http_metrics.begin(endpoint, request.method)
        status = CLIENT_LEFT
        try:
            response = await outcome(context, request, handler)
            status = response.status
            return response
        finally:
            context.http_metrics.end(label, status)
            if isinstance(connection, Connection):
                connection.answered()

    return answer


async def outcome(context: Context, request: web.Request, handler: Handle) -> web.StreamResponse:
    """Run the handler; turn what it raises into an answer."""
    try:
        try:
            check_headers(request)
            return context.browsers.preflight(request) or await handler(request)
        except (HTTPError, BadRequest, web.HTTPException) as error:
            http_error = to_http_error(context, request, error)
            unknown = isinstance(error, web.HTTPException) and http_error.status == 404
            moved = await without_slash(request) if unknown else None
            return moved or error_response(http_error)
    except (asyncio.CancelledError, ConnectionError):
        raise
    except Exception:  # also one of those that make the answer to an error
        log.exception("%s %r failed", request.method, request.path)
        return error_response(HTTPError(500, "internal error; the server's log has the details"))


async def without_slash(request: web.Request) -> web.Response | None:
    """Where a path with a slash too many is meant to go, as FastAPI does it. Only to paths that
    there are; and `//name/` would send browsers to another server."""
    path, query = request.rel_url.raw_path, request.rel_url.raw_query_string
    shorter = path[:-1]
    if path.startswith("//") or not path.endswith("/") or not shorter:
        return None
    found = await request.app.router.resolve(request.clone(rel_url=shorter))
    if found.http_exception is not None:
        return None
    location = f"{shorter}?{query}" if query else shorter
    return web.Response(status=307, headers={"Location": location})


def to_http_error(
    context: Context, request: web.Request, error: HTTPError | BadRequest | web.HTTPException
) -> HTTPError:
    """What an answer other than 2xx says."""
    if isinstance(error, HTTPError):
        return error
    if isinstance(error, web.HTTPException):
        return aiohttp_error(context, request, error)
    return HTTPError(
        error.status, str(error), param=error.field or None, retry_after=error.retry_after
    )


def aiohttp_error(context: Context, request: web.Request, error: web.HTTPException) -> HTTPError:
    """aiohttp's own refusals; who has no key does not learn which paths exist."""
    try:
        context.keys.check(request, Access.USER)
    except HTTPError as http_error:
        return http_error
    path = request.path[:200]
    if isinstance(error, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(error.allowed_methods))
        message = f"Method {error.method} not allowed on {path} (allowed: {allowed})"
        return HTTPError(405, message, headers={"Allow": allowed})
    if error.status == 404:
        return HTTPError(404, f"Not found: {path}. Available paths: /openapi.json")
    return HTTPError(error.status, error.text or error.reason)
