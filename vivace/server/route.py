"""One entry of the table of routes, and what every entry has to say."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from types import UnionType
from typing import Any

from aiohttp import web

from vivace.errors import CannotStart
from vivace.protocol.tasks import Task
from vivace.server.access import Access, Effect
from vivace.server.body import Body
from vivace.server.context import Context
from vivace.server.responses import ErrorForm, error_body

Handler = Callable[[Context, web.Request, Body], Awaitable[web.StreamResponse]]

NO_BODY = 0
SMALL = 64 << 10
FULL = -1
"""The server-wide body limit."""
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE"})

PUBLIC, USER, ADMIN = Access.PUBLIC, Access.USER, Access.ADMIN
READS, ACTS = Effect.READS, Effect.ACTS


@dataclass(frozen=True, kw_only=True)
class Route:
    """`body_limit` in bytes; 0 = no body is taken, FULL = `ServerSettings.body_limit`.

    `accepts` and `answers` are the structs the OpenAPI document shows; None = no or any body.
    """

    methods: tuple[str, ...]
    path: str
    auth: Access
    effect: Effect
    body_limit: int
    handler: Handler
    summary: str
    accepts: Any = None
    answers: Any = None
    streams: Any = None
    """Struct of each event when `stream` is true."""
    task: type[Task] | UnionType | None = None
    """Is answered by the engine: waits for one that starts, and is refused where the engine does
    something else."""
    errors: ErrorForm = error_body
    """The body of an answer other than 2xx, as clients of the path's API expect it."""


def get(
    path: str,
    auth: Access,
    handler: Handler,
    summary: str,
    answers: Any = None,
    *,
    effect: Effect = READS,
    errors: ErrorForm = error_body,
) -> Route:
    return Route(
        methods=("GET",),
        path=path,
        auth=auth,
        effect=effect,
        body_limit=NO_BODY,
        handler=handler,
        summary=summary,
        answers=answers,
        errors=errors,
    )


def post(
    path: str,
    handler: Handler,
    summary: str,
    accepts: Any,
    answers: Any,
    streams: Any = None,
    *,
    methods: tuple[str, ...] = ("POST",),
    task: type[Task] | UnionType | None = None,
    errors: ErrorForm = error_body,
) -> Route:
    return Route(
        methods=methods,
        path=path,
        auth=USER,
        effect=ACTS,
        body_limit=FULL,
        handler=handler,
        summary=summary,
        accepts=accepts,
        answers=answers,
        streams=streams,
        task=task,
        errors=errors,
    )


def control(
    path: str,
    methods: tuple[str, ...],
    handler: Handler,
    summary: str,
    accepts: Any = None,
    body_limit: int = SMALL,
) -> Route:
    return Route(
        methods=methods,
        path=path,
        auth=ADMIN,
        effect=ACTS,
        body_limit=body_limit,
        handler=handler,
        summary=summary,
        accepts=accepts,
    )


def move_routes(routes: Iterable[Route], paths: Mapping[str, str]) -> tuple[Route, ...]:
    """The routes with those of `paths` (where it is -> where it goes) at their new places.
    CannotStart where something is there already."""
    found = [replace(route, path=paths.get(route.path, route.path)) for route in routes]
    seen: set[tuple[str, str]] = set()
    for route in found:
        places = {(method, route.path) for method in route.methods}
        if places & seen:
            raise CannotStart(
                f"two paths cannot both be {route.path}: correct AIP_PREDICT_ROUTE and the "
                "SGLANG_OLLAMA_..._ROUTE variables"
            )
        seen |= places
    return tuple(found)


def check_routes(routes: Iterable[Route]) -> None:
    """ValueError for an entry that does not say who may call it and how much it may send."""
    seen: set[tuple[str, str]] = set()
    for route in routes:
        where = f"route {route.path!r}"
        if not route.path.startswith("/"):
            raise ValueError(f"{where}: the path must start with /")
        if not route.methods or not METHODS.issuperset(route.methods):
            raise ValueError(f"{where}: methods must be some of {sorted(METHODS)}")
        if not isinstance(route.auth, Access):
            raise ValueError(f"{where}: auth must be one of {[str(kind) for kind in Access]}")
        if not isinstance(route.effect, Effect):
            raise ValueError(f"{where}: effect must be one of {[str(kind) for kind in Effect]}")
        if type(route.body_limit) is not int or route.body_limit < FULL:
            raise ValueError(f"{where}: body_limit must be bytes, 0 or FULL")
        if not callable(route.handler):
            raise ValueError(f"{where}: has no handler")
        for method in route.methods:
            if (method, route.path) in seen:
                raise ValueError(f"{where}: {method} is there twice")
            seen.add((method, route.path))
