"""One line for each HTTP request, in uvicorn's form."""

from __future__ import annotations

import logging
from http.client import responses

from aiohttp.abc import AbstractAccessLogger
from aiohttp.web import BaseRequest, Request, StreamResponse

from vivace.observability.log import level_number
from vivace.server.context import CONTEXT

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
    return status == 200 or (status == 503 and context.status == "starting")


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
