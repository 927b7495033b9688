"""What every handler is given."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from aiohttp import web

from vivace.frontend.errors import BadRequest
from vivace.frontend.frontend import Frontend
from vivace.frontend.served import ServedModel
from vivace.frontend.tokenizer import Tokenizer
from vivace.server.auth import Keys
from vivace.server.body_budget import BodyBudget
from vivace.server.browsers import BrowserPolicy
from vivace.server.errors import HTTPError
from vivace.server.http_metrics import HttpMetrics
from vivace.server.pace import Pace
from vivace.server.probe import Probe
from vivace.server.request_log import RequestLog
from vivace.server.settings import ServerSettings
from vivace.server.start_queue import StartQueue


@dataclass(frozen=True, kw_only=True)
class Context:
    """One server: its frontend (text <-> tokens <-> engine) and its settings."""

    frontend: Frontend
    settings: ServerSettings
    keys: Keys
    browsers: BrowserPolicy
    http_metrics: HttpMetrics
    request_log: RequestLog
    bodies: BodyBudget
    start_queue: StartQueue
    document: bytes = b""
    """The OpenAPI document."""
    probe: Probe = field(default_factory=Probe)
    started: float = field(default_factory=time.time)
    pace: Pace = field(default_factory=Pace)

    @property
    def served(self) -> ServedModel:
        return self.frontend.served

    def tokenizer(self, field: str) -> Tokenizer:
        """The tokenizer; BadRequest on `field` when the server runs without one."""
        tokenizer = self.frontend.tokenizer
        if tokenizer is None:
            raise BadRequest(field, "needs text, but the server runs with --skip-tokenizer-init")
        return tokenizer

    def require_ready(self) -> None:
        """Refuse with 503 and Retry-After unless new requests are taken."""
        status = self.frontend.status
        if status == "ready":
            return
        reasons = {
            "starting": ("the engine is starting; try again when /ready answers 200", 1.0),
            "draining": ("the server is shutting down", 5.0),
            "down": (f"the engine is down: {self.frontend.engine.down_because}", 2.0),
        }
        reason, retry = reasons[status]
        raise HTTPError(503, reason, retry_after=retry)

    def require_progress(self) -> None:
        """Refuse with 503 also while the engine does not get on with its work."""
        self.require_ready()
        stall = self.frontend.stall
        if stall:
            raise HTTPError(503, stall, retry_after=2.0)


CONTEXT = web.AppKey("context", Context)
