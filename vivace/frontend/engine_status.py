"""What the edge knows of the engine: whether there is one, what has not reached it yet, what it was
asked, and what killed one before."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from hashlib import blake2b

import msgspec

from vivace.frontend.errors import BadRequest
from vivace.protocol.messages import KEY_SHIFT, Reply, Request

_CURRENT: ContextVar[asyncio.Timeout | None] = ContextVar("unsent", default=None)


class EngineStatus:
    """Changed by the frontend on its loop; anybody there may wait for it."""

    def __init__(self) -> None:
        self.status = "starting"
        """ "starting" (or restarting), "ready", "draining" or "down" """
        self.warming_up = False
        """Requests are taken, but the server has not yet said that it is ready."""
        self.up = False
        """It takes messages."""
        self.down_because = ""
        """Why there will be none any more."""
        self.intake = Intake()
        self._draining = False
        self._settled = asyncio.Event()

    async def settled(self) -> None:
        """Returns when `status` is not "starting"; who asked first goes on first."""
        while self.status == "starting":
            await self._settled.wait()

    def ready(self) -> None:
        self.up, self.down_because = True, ""
        self._change("draining" if self._draining else "ready")

    def drain(self) -> None:
        """Nothing new is taken, whatever comes, and what it has not heard of is ended."""
        self._draining = True
        self._change("down" if self.down_because else "draining")
        self.intake.close()

    def restarting(self) -> None:
        """It has died, and another one starts."""
        self.up = False
        if not self.down_because:
            self._change("draining" if self._draining else "starting")

    def down(self, reason: str) -> None:
        """It has died, or did not start, and that was the last one."""
        self.up, self.down_because = False, reason or "it has ended"
        self._change("down")

    def _change(self, status: str) -> None:
        self.status = status
        if status == "starting":
            self._settled.clear()
        else:
            self._settled.set()


class Intake:
    """Wherever a request is before it is sent to an engine (its body arrives, it waits for an
    engine that starts, for the template process or for the tokenizer), it is ended there."""

    def __init__(self) -> None:
        self._closed = False
        self._unsent: set[asyncio.Timeout] = set()

    @asynccontextmanager
    async def admit(self) -> AsyncIterator[None]:
        """Around everything that a task does for a request. BadRequest 503 once nothing is taken
        any more, and when that comes about before `sent`."""
        if self._closed:
            raise refusal()
        unsent = asyncio.timeout(None)
        try:
            async with unsent:
                self._unsent.add(unsent)
                _CURRENT.set(unsent)
                try:
                    yield
                finally:
                    self._unsent.discard(unsent)
        except TimeoutError:
            if unsent.expired():
                raise refusal() from None
            raise

    def sent(self) -> None:
        """An engine hears of what this task does: now it is seen through."""
        if (unsent := _CURRENT.get()) is not None:
            self._unsent.discard(unsent)

    def close(self) -> None:
        """Take nothing more, and end what is not sent."""
        self._closed = True
        unsent, self._unsent = self._unsent, set()
        for request in unsent:
            request.reschedule(0.0)


def refusal() -> BadRequest:
    return BadRequest("", "the server is shutting down", 503, retry_after=5.0)


class PendingCommands:
    """Control commands that the engine has not answered yet, by ticket."""

    def __init__(self, frontend: int) -> None:
        self._tickets = itertools.count((frontend << KEY_SHIFT) + 1)
        self._answered: dict[int, Callable[[Reply], object]] = {}

    def add(self, answered: Callable[[Reply], object]) -> int:
        """The ticket of a command whose answer goes to `answered`."""
        ticket = next(self._tickets)
        self._answered[ticket] = answered
        return ticket

    def drop(self, ticket: int) -> None:
        """Nobody waits for the answer any more."""
        self._answered.pop(ticket, None)

    def answer(self, reply: Reply) -> None:
        if answered := self._answered.pop(reply.ticket, None):
            answered(reply)

    def fail(self, reason: str) -> None:
        """There will be no answers."""
        pending, self._answered = self._answered, {}
        for ticket, answered in pending.items():
            answered(Reply(ticket=ticket, ok=False, message=reason))


MEMORY_SECONDS = 600.0
MAX_CONTENTS = 1024


class CrashingRequests:
    """Remembers contents (prompt and sampling, whatever the seed) for ten minutes."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._until: dict[bytes, float] = {}
        self._encoder = msgspec.msgpack.Encoder()

    def add(self, request: Request) -> None:
        if len(self._until) >= MAX_CONTENTS:
            self._until.pop(next(iter(self._until)))
        self._until[self._content(request)] = self._clock() + MEMORY_SECONDS

    def __contains__(self, request: Request) -> bool:
        return bool(self._until) and self._until.get(self._content(request), 0.0) > self._clock()

    def _content(self, request: Request) -> bytes:
        sampling = msgspec.structs.replace(request.sampling, seed=0)
        content = (request.tokens, sampling, request.logprobs)
        return blake2b(self._encoder.encode(content), digest_size=16).digest()
