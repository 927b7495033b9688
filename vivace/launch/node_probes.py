"""What a node behind the first answers over HTTP: probes, as those of SGLang do."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any

from vivace.launch.node_sockets import listening

if TYPE_CHECKING:
    from vivace.config.config import Config

HEALTH = ("/health", "/health_generate")
READY = "/ready"
SECONDS = 2.0
"""for a caller to say what it wants"""
MOST_CALLERS = 16
"""at once; others are sent away"""

log = logging.getLogger(__name__)


class ProbeHandler(BaseHTTPRequestHandler):
    timeout = SECONDS
    server_version, sys_version = "vivace", ""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        ready = isinstance(self.server, ProbeServer) and self.server.ready()
        known = {**dict.fromkeys(HEALTH, True), READY: ready}
        status = HTTPStatus.NOT_FOUND
        if path in known:
            status = HTTPStatus.OK if known[path] else HTTPStatus.SERVICE_UNAVAILABLE
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        """Probes are no news."""


class ProbeServer(HTTPServer):
    """`ready`: this node's ranks serve. Each caller has a thread of its own, for a short time."""

    def __init__(self, sock: Any, ready: Callable[[], bool]) -> None:
        super().__init__(sock.getsockname()[:2], ProbeHandler, bind_and_activate=False)
        self.socket.close()
        self.socket = sock
        self.ready = ready
        self._seats = threading.Semaphore(MOST_CALLERS)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._seats.acquire(blocking=False):
            self.shutdown_request(request)
            return
        answer = threading.Thread(target=self._answer, args=(request, client_address), daemon=True)
        try:
            answer.start()
        except RuntimeError:  # there is no room for one
            self._leave(request)

    def _answer(self, request: Any, client_address: Any) -> None:
        late = threading.Timer(2 * SECONDS, hang_up, (request,))
        try:
            with contextlib.suppress(OSError, ValueError, RuntimeError):
                late.start()
                self.finish_request(request, client_address)
        finally:
            late.cancel()
            self._leave(request)

    def _leave(self, request: Any) -> None:
        self.shutdown_request(request)
        self._seats.release()


def hang_up(sock: socket.socket) -> None:
    """Whoever reads it finds the end, also where something comes all the time."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def answer_probes(config: Config, ready: Callable[[], bool]) -> None:
    """At --host and --port, from now on. A port that somebody has is no reason not to serve."""
    http = config.http
    try:
        sock = listening(http.host, http.port)
    except OSError as error:
        log.warning(
            "No probe of this node is answered: %s port %d: %s",
            http.host,
            http.port,
            error.strerror or error,
        )
        return
    server = ProbeServer(sock, ready)
    threading.Thread(target=server.serve_forever, name="probes", daemon=True).start()
    log.info("Probes of this node: http://%s:%d%s", http.host, http.port, HEALTH[0])
