"""The access log, one line per request in uvicorn's form."""

from __future__ import annotations

import logging
from http.client import responses

from aiohttp.abc import AbstractAccessLogger
from aiohttp.web import BaseRequest, StreamResponse

from vivace.observability.log import level_number

access_log = logging.getLogger("vivace.access")


class AccessLog(AbstractAccessLogger):
    """`INFO: 127.0.0.1:52345 - "POST /generate HTTP/1.1" 200 OK`."""

    @property
    def enabled(self) -> bool:
        return self.logger.isEnabledFor(logging.INFO)

    def log(self, request: BaseRequest, response: StreamResponse, time: float) -> None:
        """`time` (seconds) is not shown: the form has no place for it."""
        self.logger.info("%s", access_line(request, response.status))


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
