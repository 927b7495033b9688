"""What a frontend knows of the engine: whether there is one and gets on, the commands it was sent,
and what killed one before."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from hashlib import blake2b

import msgspec

from vivace.frontend.errors import EngineUnavailable
from vivace.protocol.heartbeat import EngineProgress
from vivace.protocol.messages import (
    KEY_SHIFT,
    Command,
    FlushCache,
    GetState,
    Reply,
    Request,
    ToEngine,
)


class EngineStatus:
    """Changed by the frontend on its loop; anybody there may wait for it."""

    def __init__(self, progress: EngineProgress | None = None) -> None:
        self.progress = progress
        """of the engine, where that is another process"""
        self.status = "starting"
        """ "starting" (or restarting), "ready", "draining" or "down" """
        self.warming_up = False
        """Requests are taken, but the server has not yet said that it is ready."""
        self.up = False
        """It takes messages."""
        self.down_because = ""
        """Why there will be none any more."""
        self.on_drain: Callable[[], object] = lambda: None
        """called once nothing new is taken: what it has not heard of is to be ended"""
        self.draining = False
        self._settled = asyncio.Event()

    @property
    def stall(self) -> str:
        """Why it makes no progress though it has work; "" while all is well.

        It may get over that by itself, so requests are still taken."""
        return self.progress.stall() if self.progress is not None and self.up else ""

    async def settled(self) -> None:
        """Returns when `status` is not "starting"; who asked first goes on first."""
        while self.status == "starting":
            await self._settled.wait()

    def ready(self) -> None:
        self.up, self.down_because = True, ""
        self._change("draining" if self.draining else "ready")

    def drain(self) -> None:
        """Nothing new is taken, whatever comes."""
        self.draining = True
        self._change("down" if self.down_because else "draining")
        self.on_drain()

    def restarting(self) -> None:
        """It has died, and another one starts."""
        self.up = False
        if not self.down_because:
            self._change("draining" if self.draining else "starting")

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


class EngineCommands:
    """Control commands; those that the engine has not answered yet are kept by their tickets."""

    def __init__(
        self, frontend: int, engine: EngineStatus, send: Callable[[ToEngine], None]
    ) -> None:
        self._engine = engine
        self._send = send
        self._tickets = itertools.count((frontend << KEY_SHIFT) + 1)
        self._pending: dict[int, Callable[[Reply], object]] = {}

    async def run(self, body: FlushCache | GetState, timeout: float = 10.0) -> Reply:
        """One control command. Raises EngineUnavailable when no answer comes within `timeout`."""
        if not self._engine.up:
            raise EngineUnavailable(f"the engine is {self._engine.status}")
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        ticket = self.send(body, lambda reply: answer.done() or answer.set_result(reply))
        try:
            async with asyncio.timeout(timeout):
                return await answer
        except TimeoutError:
            reason = self._engine.stall or f"the engine did not answer within {timeout:g} s"
            raise EngineUnavailable(reason) from None
        finally:
            self._pending.pop(ticket, None)

    def send(self, body: FlushCache | GetState, on_reply: Callable[[Reply], object]) -> int:
        """Without waiting; `on_reply` is called from `Frontend.feed`. Returns the ticket."""
        ticket = next(self._tickets)
        self._pending[ticket] = on_reply
        self._send(Command(ticket=ticket, body=body))
        return ticket

    def answer(self, reply: Reply) -> None:
        if on_reply := self._pending.pop(reply.ticket, None):
            on_reply(reply)

    def fail(self, reason: str) -> None:
        """There will be no answers."""
        pending, self._pending = self._pending, {}
        for ticket, on_reply in pending.items():
            on_reply(Reply(ticket=ticket, ok=False, message=reason))


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
