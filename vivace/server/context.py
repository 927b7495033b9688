"""What every handler is given, and what waiting requests share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from aiohttp import web

from vivace.frontend.engine_status import EngineStatus
from vivace.frontend.errors import BadRequest, EngineUnavailable
from vivace.frontend.fairness import Pace
from vivace.frontend.frontend import Frontend
from vivace.frontend.served_model import ServedModel
from vivace.frontend.tokenizer import Tokenizer
from vivace.protocol.messages import EngineState, FlushCache, GetState, Reply
from vivace.server.access import BrowserPolicy, Keys
from vivace.server.body_budget import BodyBudget
from vivace.server.http_metrics import HttpMetrics
from vivace.server.request_log import RequestLog
from vivace.server.responses import HTTPError
from vivace.server.settings import ServerSettings

FRESH = 1.0
"""seconds for which a token, or the outcome of a question, is news enough"""


class Probe:
    """However many ask, one question at a time is put, and at most one in `FRESH` seconds."""

    def __init__(self) -> None:
        self._question: asyncio.Future[None] | None = None
        self._error: BaseException | None = None
        self._known_until = 0.0

    async def check(self, heard: float, ask: Callable[[], Awaitable[None]]) -> None:
        """Raises what `ask` raises. `heard`: time.monotonic() of the engine's last token."""
        now = time.monotonic()
        if now - heard <= FRESH:
            return
        if now >= self._known_until:
            if self._question is None:
                self._question = asyncio.ensure_future(ask())
                self._question.add_done_callback(self._on_answer)
            # It is seen through even when nobody waits any more, so nobody can make it begin anew.
            await asyncio.wait([self._question])
        if self._error is not None:
            raise self._error.with_traceback(None)

    def _on_answer(self, question: asyncio.Future[None]) -> None:
        self._question = None
        self._error = None if question.cancelled() else question.exception()
        self._known_until = time.monotonic() + FRESH


class StartQueue:
    """At most `limit` requests, in the order in which their bodies were complete. What they hold is
    a connection and the body's bytes, which `BodyBudget` limits: nothing is decoded before."""

    def __init__(self, engine: EngineStatus, limit: int) -> None:
        self.waiting = 0
        self._engine = engine
        self._limit = limit

    async def wait(self) -> None:
        """Returns when the engine has come, or will not come, or too many wait already. A client
        that leaves cancels the wait."""
        if self._engine.status != "starting" or self.waiting >= self._limit:
            return
        self.waiting += 1
        try:
            await self._engine.settled()
        finally:
            self.waiting -= 1


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

    async def command(self, body: FlushCache | GetState) -> Reply:
        """One control command; HTTPError 503 when the engine is down or does not answer in time."""
        self.require_progress()
        try:
            return await self.frontend.control(body, timeout=self.settings.control_timeout)
        except (EngineUnavailable, TimeoutError) as error:
            raise HTTPError(503, f"the engine did not answer: {error}", retry_after=1.0) from None

    async def engine_state(self) -> EngineState:
        """The engine's state; HTTPError 503 when it does not answer."""
        reply = await self.command(GetState())
        if reply.state is None:
            raise HTTPError(503, f"the engine gave no state: {reply.message}", retry_after=1.0)
        return reply.state


CONTEXT = web.AppKey("context", Context)
