"""What every handler is given, and what waiting requests share."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import UnionType

from aiohttp import web

from vivace.frontend.engine_status import EngineStatus
from vivace.frontend.errors import BadRequest, EngineUnavailable
from vivace.frontend.fairness import TimeSlicer
from vivace.frontend.frontend import Frontend
from vivace.frontend.served_model import ServedModel
from vivace.frontend.tokenizer import Tokenizer
from vivace.protocol.messages import EngineCommand, EngineState, GetState, Reply
from vivace.protocol.tasks import Embed, Task
from vivace.requests.answer_syntax import AnswerSyntax
from vivace.requests.embeddings import NO_EMBEDDINGS, NO_GENERATION
from vivace.server.access import BrowserPolicy, Keys
from vivace.server.http_metrics import HttpMetrics
from vivace.server.request_log import RequestLog
from vivace.server.response_store import Responses, ResponseStore
from vivace.server.responses import HTTPError
from vivace.server.settings import ServerSettings
from vivace.tool_servers.servers import ToolServers

log = logging.getLogger("vivace.server")

NO_TOOLS = (
    "a request has tools, but the model's chat template has none in it, so the model does not hear "
    "of them and calls only where it is made to (tool_choice); --chat-template names another one"
)
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


_CURRENT: ContextVar[asyncio.Timeout | None] = ContextVar("pending", default=None)


class PendingRequests:
    """Wherever a request is before it is sent to an engine (its body arrives, it waits for an
    engine that starts, for the template process or for the tokenizer), it is ended there when the
    server drains: only frontends know of it."""

    def __init__(self, engine: EngineStatus) -> None:
        self._engine = engine
        self._requests: set[asyncio.Timeout] = set()
        engine.on_drain = self._end

    def __len__(self) -> int:
        return len(self._requests)

    @asynccontextmanager
    async def admit(self) -> AsyncIterator[None]:
        """Around everything that a task does for a request. BadRequest 503 once nothing is taken
        any more, and when that comes about before `sent`."""
        if self._engine.draining:
            raise shutting_down()
        request = asyncio.timeout(None)
        try:
            async with request:
                self._requests.add(request)
                _CURRENT.set(request)
                try:
                    yield
                finally:
                    self._requests.discard(request)
        except TimeoutError:
            if request.expired():
                raise shutting_down() from None
            raise

    def sent(self) -> None:
        """An engine hears of what this task does: now it is seen through."""
        if (request := _CURRENT.get()) is not None:
            self._requests.discard(request)

    def _end(self) -> None:
        pending, self._requests = self._requests, set()
        for request in pending:
            request.reschedule(0.0)


def shutting_down() -> BadRequest:
    return BadRequest("", "the server is shutting down", 503, retry_after=5.0)


# -- memory for bodies: slow ones give way when there is no room for others -----------------------

UNCOUNTED = 64 << 10
"""Bytes of a body that are not counted: small requests never wait for room."""
GRACE = 2.0
"""Seconds in which a body may be as slow as it likes."""
SLOW = 256 << 10
"""Bytes per second below which a body must give way when there is no room."""
SPAN = 2.0
"""Seconds over which the rate of a body is looked at, at least; at most two of them and a pause."""


class BodyBudget:
    """Bytes of bodies that arrive or are being decoded. Whoever finds no room is told to come
    back, unless bodies that arrive slowly can be sent away instead."""

    def __init__(self, total: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._free = total
        self._clock = clock
        self._shares: set[Share] = set()

    def share(self, give_up: Callable[[], object]) -> Share:
        """For one body; `give_up` is called when it has to give way while it arrives."""
        return Share(self, give_up, self._clock)

    def take(self, share: Share, size: int) -> None:
        """More bytes for a body; HTTPError 503 when there is no room."""
        if size > self._free:
            self._send_slow_ones_away(share, size)
        if size > self._free:
            raise HTTPError(
                503,
                "there is no room for the request body: too many large ones arrive at once",
                retry_after=1.0,
                headers={"Connection": "close"},
            )
        self._free -= size
        self._shares.add(share)

    def give(self, share: Share, size: int) -> None:
        self._free += size
        self._shares.discard(share)

    def _send_slow_ones_away(self, asking: Share, size: int) -> None:
        now = self._clock()
        slow = [
            (share.rate(now), share)
            for share in self._shares
            if share is not asking and not share.complete and now - share.began > GRACE
        ]
        for rate, share in sorted(slow, key=lambda found: found[0]):
            if rate > SLOW or size <= self._free:
                return
            share.release()
            share.give_up()


class Share:
    """What one body holds of the budget."""

    def __init__(
        self, budget: BodyBudget, give_up: Callable[[], object], clock: Callable[[], float]
    ) -> None:
        self._budget = budget
        self._clock = clock
        self._seen = 0
        self.give_up = give_up
        self.began = self._last = clock()
        self._since = self._then = (self.began, 0)
        """Two moments at least SPAN apart, the earlier first, and the bytes seen by then."""
        self.held = 0
        self.complete = False

    def take(self, size: int) -> None:
        """`size` more bytes have arrived; HTTPError 503 when there is no room for them."""
        now = self._last = self._clock()
        if now - self._then[0] >= SPAN:
            self._since, self._then = self._then, (now, self._seen)
        before = max(self._seen, UNCOUNTED)
        self._seen += size
        counted = max(self._seen, UNCOUNTED) - before
        if counted:
            self._budget.take(self, counted)
            self.held += counted

    def rate(self, now: float) -> float:
        """Bytes per second of late; 0 when none came for a while."""
        if now - self._last >= GRACE:
            return 0.0
        began, seen = self._since
        return (self._seen - seen) / max(now - began, 1e-3)

    def release(self) -> None:
        """Give everything back."""
        held, self.held = self.held, 0
        if held:
            self._budget.give(self, held)


# -- what every handler is given ------------------------------------------------------------------


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
    pending: PendingRequests
    syntax: AnswerSyntax
    """How answers are parsed."""
    document: Callable[[], bytes] = bytes
    """The OpenAPI document, made when it is asked for first."""
    probe: Probe = field(default_factory=Probe)
    responses: Responses = field(default_factory=ResponseStore)
    background: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])
    """what makes responses that nobody waits for"""
    tool_servers: ToolServers = field(default_factory=ToolServers)
    started: float = field(default_factory=time.time)
    slicer: TimeSlicer = field(default_factory=TimeSlicer)
    told: set[str] = field(default_factory=set[str])
    """what the log has said, which says it once"""

    def warn_of_tools(self) -> None:
        """That the model does not hear of a request's tools, if it does not."""
        if not self.syntax.tells_tools and NO_TOOLS not in self.told:
            self.told.add(NO_TOOLS)
            log.warning(NO_TOOLS)

    @property
    def served(self) -> ServedModel:
        return self.frontend.served

    def tokenizer(self, field: str) -> Tokenizer:
        """The tokenizer; BadRequest on `field` when the server runs without one."""
        tokenizer = self.frontend.tokenizer
        if tokenizer is None:
            raise BadRequest(field, "needs text, but the server runs with --skip-tokenizer-init")
        return tokenizer

    def require_task(self, task: type[Task] | UnionType) -> None:
        """BadRequest unless it is what the engine does here."""
        if not isinstance(self.served.task, task):
            raise BadRequest("", NO_EMBEDDINGS if task is Embed else NO_GENERATION)

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
        stall = self.frontend.engine.stall
        if stall:
            raise HTTPError(503, stall, retry_after=2.0)

    @property
    def status(self) -> str:
        """The engine's, but "starting" until the log has said that the server is ready."""
        engine = self.frontend.engine
        return "starting" if engine.warming_up and engine.status == "ready" else engine.status

    def require_started(self) -> None:
        """Refuse with 503 also until the start is complete. Requests are taken before: a warm-up
        is one among them."""
        self.require_progress()
        if self.status == "starting":
            raise HTTPError(503, "the server is warming up", retry_after=1.0)

    async def command(self, body: EngineCommand) -> list[Reply | None]:
        """One control command to every engine; None of those that are not up. HTTPError 503 when
        none is, or one does not answer in time."""
        self.require_progress()
        try:
            return await self.frontend.commands.run(body, timeout=self.settings.control_timeout)
        except (EngineUnavailable, TimeoutError) as error:
            raise HTTPError(503, f"the engine did not answer: {error}", retry_after=1.0) from None

    async def engine_states(self) -> dict[int, EngineState]:
        """The state of each engine that is up; HTTPError 503 when one does not answer."""
        found = {}
        for index, reply in enumerate(await self.command(GetState())):
            if reply is not None and reply.state is not None:
                found[index] = reply.state
        if not found:
            raise HTTPError(503, "the engine gave no state", retry_after=1.0)
        return found


CONTEXT = web.AppKey("context", Context)
