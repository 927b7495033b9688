"""What a frontend knows of the engines: which of them are there and get on, who gets a request, the
commands they were sent, and what killed one before."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from hashlib import blake2b
from typing import Protocol

import msgspec

from vivace.frontend.errors import BadRequest, EngineUnavailable
from vivace.protocol.heartbeat import EngineProgress
from vivace.protocol.messages import (
    KEY_SHIFT,
    Capacity,
    Command,
    EngineCommand,
    Reply,
    Request,
    ToEngine,
)
from vivace.protocol.workers import AddCorpus, CorpusRemoved

log = logging.getLogger(__name__)


class EngineView:
    """One engine as a frontend sees it. `send` passes messages to it and never blocks."""

    def __init__(
        self,
        send: Callable[[ToEngine], None],
        index: int = 0,
        progress: EngineProgress | None = None,
    ) -> None:
        self.send = send
        self.index = index
        self.progress = progress
        """of the engine, where that is another process"""
        self.epoch: int | None = None
        """None while it takes no messages"""
        self.gone = False
        """it has died, and no other one comes"""
        self.capacity: Capacity | None = None
        """of the one that was ready last"""
        self.requests = 0
        """of this frontend"""
        self._tokens = 0

    @property
    def up(self) -> bool:
        """It takes messages."""
        return self.epoch is not None

    @property
    def stall(self) -> str:
        """Why it makes no progress though it has work; "" while all is well."""
        return self.progress.stall() if self.progress is not None and self.up else ""

    def add(self, request: Request) -> None:
        """A request of this frontend is its."""
        self.requests += 1
        self._tokens += len(request.tokens)

    def remove(self, request: Request) -> None:
        self.requests -= 1
        self._tokens -= len(request.tokens)

    def load(self) -> tuple[int, int]:
        """(requests, tokens): what it last said, which is of all frontends, or what this one has
        given it, which it may not have seen yet; the larger."""
        requests, tokens = self.progress.load() if self.progress is not None else (0, 0)
        return max(requests, self.requests), max(tokens, self._tokens)


class Balance(Protocol):
    """Chooses the engine of a new request (--load-balance-method)."""

    def pick(self, engines: Sequence[EngineView]) -> EngineView:
        """One of these, at least one; those that do not take messages now are not among them."""
        ...


class RoundRobin:
    """One after the other; who is left out loses its turn."""

    def __init__(self) -> None:
        self._last = -1

    def pick(self, engines: Sequence[EngineView]) -> EngineView:
        behind = [engine for engine in engines if engine.index > self._last]
        chosen = (behind or engines)[0]
        self._last = chosen.index
        return chosen


class FewestRequests:
    """Who has the fewest running and waiting requests; of equal ones in turn."""

    def __init__(self) -> None:
        self._turns = RoundRobin()

    def pick(self, engines: Sequence[EngineView]) -> EngineView:
        loads = [engine.load()[0] for engine in engines]
        return self._turns.pick(lightest(engines, loads))


class FewestTokens:
    """Who holds the fewest tokens, those of waiting prompts included; of equal ones in turn."""

    def __init__(self) -> None:
        self._turns = RoundRobin()

    def pick(self, engines: Sequence[EngineView]) -> EngineView:
        loads = [engine.load()[1] for engine in engines]
        return self._turns.pick(lightest(engines, loads))


def lightest(engines: Sequence[EngineView], loads: Sequence[int]) -> list[EngineView]:
    least = min(loads)
    return [engine for engine, load in zip(engines, loads, strict=True) if load == least]


BALANCES: dict[str, Callable[[], Balance]] = {
    "auto": RoundRobin,
    "round_robin": RoundRobin,
    "total_requests": FewestRequests,
    "total_tokens": FewestTokens,
}
"""--load-balance-method -> its class"""


class EngineStatus:
    """All engines together: there is one while any of them takes messages. Changed by the frontend
    on its loop; anybody there may wait for it."""

    def __init__(self, engines: Sequence[EngineView], balance: Balance | None = None) -> None:
        """Without `balance` they take turns."""
        self._engines = engines
        self._balance = balance or RoundRobin()
        self.epochs: dict[int, EngineView] = {}
        """of those that take messages"""
        self.status = "starting"
        """ "starting" (or restarting), "ready", "draining" or "down" """
        self.warming_up = False
        """Requests are taken, but the server has not yet said that it is ready."""
        self.down_because = ""
        """Why there will be none any more."""
        self.on_drain: Callable[[], object] = lambda: None
        """called once nothing new is taken: what it has not heard of is to be ended"""
        self.on_ready: Callable[[EngineView], object] = lambda engine: None
        """called when a new engine takes messages"""
        self.draining = False
        self._settled = asyncio.Event()

    @property
    def up(self) -> bool:
        """One takes messages."""
        return bool(self.epochs)

    def choose(self, dp_rank: int | None = None) -> EngineView:
        """Who gets a request: the one that is asked for (BadRequest where it has died for good);
        else one of those that take messages (one does) and get on, where any of them does."""
        if dp_rank is not None:
            if self._engines[dp_rank].gone:
                reason = f"engine {dp_rank} died too often: leave the field out, others answer"
                raise BadRequest("routed_dp_rank", reason, 503)
            return self._engines[dp_rank]
        if len(self._engines) == 1:
            return self._engines[0]
        up = list(self.epochs.values())
        return self._balance.pick([engine for engine in up if not engine.stall] or up)

    def broadcast(self, message: ToEngine) -> None:
        for engine in self._engines:
            if engine.up:
                engine.send(message)

    @property
    def stall(self) -> str:
        """Why none makes progress though it has work; "" while one gets on.

        They may get over that by themselves, so requests are still taken."""
        stalls = [engine.stall for engine in self._engines if engine.up]
        return stalls[0] if stalls and all(stalls) else ""

    def steps(self) -> int:
        """How many the engines have begun, where somebody counts them."""
        return sum(one.progress.steps() for one in self._engines if one.progress is not None)

    def computes(self) -> bool:
        """Whether one is in a step."""
        return any(one.progress.computes() for one in self._engines if one.progress is not None)

    async def settled(self) -> None:
        """Returns when `status` is not "starting"; who asked first goes on first."""
        while self.status == "starting":
            await self._settled.wait()

    def ready(self, engine: EngineView, epoch: int) -> bool:
        """One of them is; False: that is known already."""
        before, engine.epoch, engine.gone = engine.epoch, epoch, False
        self._note_epochs()
        self.down_because = ""
        self._change("draining" if self.draining else "ready")
        if epoch != before:
            self.on_ready(engine)
        return epoch != before

    def least_capacity(self, engine: EngineView, capacity: Capacity) -> Capacity:
        """`capacity` is now this engine's. That of the one that takes the shortest requests: what
        it takes, any of them takes."""
        engine.capacity = capacity
        known = [one.capacity for one in self._engines if one.capacity is not None]
        return min(known, key=lambda each: each.context)

    def drain(self) -> None:
        """Nothing new is taken, whatever comes."""
        self.draining = True
        self._change("down" if self.down_because else "draining")
        self.on_drain()

    def lose(self, lost: Iterable[EngineView], reason: str, *, restarting: bool) -> None:
        """These have died; `restarting`: others start in their places."""
        for engine in lost:
            engine.epoch, engine.gone = None, not restarting
        self._note_epochs()
        if all(engine.gone for engine in self._engines):
            self.down_because = reason or "it has ended"
            self._change("down")
        elif not self.up and not self.down_because:
            self._change("draining" if self.draining else "starting")

    def _note_epochs(self) -> None:
        self.epochs = {one.epoch: one for one in self._engines if one.epoch is not None}

    def _change(self, status: str) -> None:
        self.status = status
        if status == "starting":
            self._settled.clear()
        else:
            self._settled.set()


class EngineCommands:
    """Control commands; those that an engine has not answered yet are kept by their tickets.
    Corpora that engines took are kept for the next ones."""

    def __init__(self, frontend: int, status: EngineStatus, engines: Sequence[EngineView]) -> None:
        self._status = status
        self._engines = engines
        self._tickets = itertools.count((frontend << KEY_SHIFT) + 1)
        self._pending: dict[int, tuple[EngineView, Callable[[Reply], object]]] = {}
        self._corpora: list[AddCorpus] = []
        """together no more tokens than an engine takes"""
        status.on_ready = self._add_corpora

    async def run(self, body: EngineCommand, timeout: float = 10.0) -> list[Reply | None]:
        """One control command to every engine, and each one's answer; None of those that are not
        up, a refusal of one that does not answer within `timeout`. Raises EngineUnavailable when
        there is none, or none answers."""
        if not self._status.up:
            raise EngineUnavailable(f"the engine is {self._status.status}")
        answers: dict[int, asyncio.Future[Reply]] = {}
        tickets = []
        for engine in self._engines:
            if engine.up:
                answer = answers[engine.index] = asyncio.get_running_loop().create_future()
                tickets.append(self.send(body, partial(settle, answer), engine))
        try:
            done, _ = await asyncio.wait(answers.values(), timeout=timeout)
        finally:
            for ticket in tickets:
                self._pending.pop(ticket, None)
        late = f"the engine did not answer within {timeout:g} s"
        if not done:
            raise EngineUnavailable(self._status.stall or late)
        refusal = Reply(ticket=0, ok=False, message=late)
        found = {index: one.result() if one.done() else refusal for index, one in answers.items()}
        if isinstance(body, AddCorpus) and all(reply.ok for reply in found.values()):
            self._corpora.append(body)
        return [found.get(engine.index) for engine in self._engines]

    def send(
        self,
        body: EngineCommand,
        on_reply: Callable[[Reply], object],
        engine: EngineView | None = None,
    ) -> int:
        """Without waiting; `on_reply` is called from `Frontend.feed`. Returns the ticket. Without
        `engine`: to the first one."""
        engine, ticket = engine or self._engines[0], next(self._tickets)
        self._pending[ticket] = engine, on_reply
        engine.send(Command(ticket=ticket, body=body))
        return ticket

    def _add_corpora(self, engine: EngineView) -> None:
        for corpus in self._corpora:
            self.send(corpus, partial(_note_refusal, corpus.name), engine)

    def answer(self, message: Reply | CorpusRemoved) -> None:
        if isinstance(message, CorpusRemoved):  # by whatever frontend
            self._corpora = [corpus for corpus in self._corpora if corpus.name != message.name]
        elif found := self._pending.pop(message.ticket, None):
            found[1](message)

    def fail(self, engine: EngineView, reason: str) -> None:
        """There will be no answers of this one."""
        lost = [ticket for ticket, (one, _) in self._pending.items() if one is engine]
        for ticket in lost:
            _, on_reply = self._pending.pop(ticket)
            on_reply(Reply(ticket=ticket, ok=False, message=reason))


def _note_refusal(name: str, reply: Reply) -> None:
    if not reply.ok:
        log.warning("corpus %s was not added again: %s", name, reply.message)


def settle(answer: asyncio.Future[Reply], reply: Reply) -> None:
    if not answer.done():
        answer.set_result(reply)


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
