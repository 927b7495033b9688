"""Renderings on an asyncio loop: one after another, clients in turn, small ones first."""

from __future__ import annotations

import asyncio
import contextlib
import select
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from vivace.frontend.errors import BadRequest
from vivace.frontend.fair_queue import ASKER, Full, Turn, Turns
from vivace.frontend.render_process import (
    LOOK,
    MOST_ATTEMPTS,
    ProcessEnded,
    Pulse,
    RenderProcess,
    no_process,
    problem_of,
    refusal,
    stalled,
    too_many,
)
from vivace.frontend.template_messages import Answer, Load, Loaded, Render, Rendered, RenderLimits

MOST_WAITING = 1024
OWN_WAITING = 512
"""of one client"""
MOST_BYTES = 64 << 20
"""of all messages that wait"""
SMALL_BYTES = 64 << 10
"""A message above this waits until its client has no smaller one."""
SECOND = 4 << 20
"""What a second with the process costs, in bytes of a message."""


@dataclass
class Job:
    message: bytes
    answer: asyncio.Future[Answer]
    attempts: int = 0
    began: float = 0.0

    def refuse(self) -> None:
        if not self.answer.done():
            self.answer.set_exception(too_many())


class RenderQueue:
    """Everything happens in callbacks of `loop`. At most one message is with the process, so it is
    known which one a process died of, and those that wait are not harmed."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        limits: RenderLimits,
        load: bytes,
        process: RenderProcess | None,
    ) -> None:
        self.loop = loop
        self._limits = limits
        self._load = load
        self._process: RenderProcess | None = None
        self._loading = False
        self._turns: Turns[Job] = Turns(
            MOST_WAITING, OWN_WAITING, MOST_BYTES, SMALL_BYTES, Job.refuse
        )
        self._current: Turn[Job] | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._next_look: asyncio.TimerHandle | None = None
        if process is not None:
            self._adopt(process)

    async def ask(self, message: bytes) -> Answer:
        """The answer to a message. BadRequest when there is none; it says why."""
        job = Job(message, self.loop.create_future())
        try:
            turn = self._turns.add(ASKER.get(), len(message), job)
        except Full:
            raise too_many() from None
        self._next()
        try:
            return await job.answer
        finally:
            self._turns.remove(turn)  # if its client has left

    def close(self) -> None:
        if self._process is not None:
            self._part()

    # -- one at a time ---------------------------------------------------------------------------

    def _next(self) -> None:
        while self._current is None and (turn := self._turns.next()) is not None:
            if not turn.item.answer.done():
                self._begin(turn)

    def _begin(self, turn: Turn[Job]) -> None:
        job = turn.item
        try:
            process = self._process or self._started()
        except OSError as error:
            job.answer.set_exception(no_process(error))
            return
        job.attempts += 1
        job.began = self.loop.time()
        self._current = turn
        self._deadline = self.loop.call_later(self._limits.wall_seconds, self._overdue)
        self._next_look = self.loop.call_later(LOOK, self._look, Pulse(process))
        self._send(process, job.message)

    def _finish(self) -> Turn[Job] | None:
        """The message that was with the process, which is now free; none if nobody waits for it."""
        turn, self._current = self._current, None
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if self._next_look is not None:
            self._next_look.cancel()
            self._next_look = None
        if turn is None:
            return None
        self._turns.charge(turn.client, SECOND * (self.loop.time() - turn.item.began))
        return None if turn.item.answer.done() else turn

    # -- the process -----------------------------------------------------------------------------

    def _started(self) -> RenderProcess:
        process = RenderProcess(self._limits)
        self._adopt(process)
        self._loading = True
        self._send(process, self._load)
        return process

    def _adopt(self, process: RenderProcess) -> None:
        self._process = process
        self.loop.add_reader(process.fileno(), self._read)

    def _part(self) -> None:
        """Leave the process, and end it if it has not ended."""
        process, self._process = self._process, None
        self._loading = False
        if process is not None:
            self.loop.remove_reader(process.fileno())
            self.loop.remove_writer(process.fileno())
            process.end()

    def _send(self, process: RenderProcess, message: bytes) -> None:
        if not process.send(message):
            self.loop.add_writer(process.fileno(), self._write)

    def _write(self) -> None:
        if self._process is not None and self._process.flush():
            self.loop.remove_writer(self._process.fileno())

    def _read(self) -> None:
        if self._process is None:
            return
        try:
            answers = self._process.receive()
        except ProcessEnded as ended:
            self._died(ended)
            return
        for answer in answers:
            if self._loading and isinstance(answer, Loaded):
                self._loading = False
                continue
            turn = self._finish()
            if turn is not None:
                turn.item.answer.set_result(answer)
        self._next()

    def _died(self, ended: ProcessEnded) -> None:
        self._part()
        turn = self._finish()
        if turn is not None:
            problem = problem_of(ended, turn.item.attempts, self._limits)
            if problem is None:
                self._turns.put(turn)  # with its old number, so it is first in its class
            else:
                turn.item.answer.set_exception(problem)
        self._next()

    def _look(self, pulse: Pulse) -> None:
        if pulse.look():
            self._overdue(again=True)
        else:
            self._next_look = self.loop.call_later(LOOK, self._look, pulse)

    def _overdue(self, again: bool = False) -> None:
        """The process does not get on; `again`: another one may."""
        self._part()
        turn = self._finish()
        if turn is not None:
            if again and turn.item.attempts < MOST_ATTEMPTS:
                self._turns.put(turn)
            else:
                turn.item.answer.set_exception(stalled(self._limits))
        self._next()


encode = msgspec.json.Encoder().encode


class NoPulse(Exception):
    """The process is stopped."""


class Renderer:
    """Templates by name, and a process that renders them. It starts at once, so that it imports
    what it needs while the caller does other things; `load` comes before the first rendering.

    A process that exceeds a limit is killed, what it was at is refused, and the next rendering
    finds a new process.
    """

    def __init__(self, limits: RenderLimits | None = None) -> None:
        self._limits = limits or RenderLimits()
        self._load = b""
        self._lock = threading.Lock()
        self._process: RenderProcess | None = None
        with contextlib.suppress(OSError):  # the first rendering will say what is wrong
            self._process = RenderProcess(self._limits)
        self._queue: RenderQueue | None = None

    def load(self, sources: Mapping[str, str]) -> list[str]:
        """Compile the templates; the names of those that walk over a message's content.

        Raises BadRequest; its reason is about the template.
        """
        load = encode(Load(dict(sources), self._limits))
        answer = self._ask(load)
        if not isinstance(answer, Loaded):
            raise refusal(answer)
        self._load = load
        return answer.walks_content

    def render(self, template: str, variables: Mapping[str, Any]) -> str:
        """Raises OverLimit or BadRequest. Any thread may call it; it waits for the answer."""
        return text_of(self._ask(message_of(template, variables)))

    async def render_async(self, template: str, variables: Mapping[str, Any]) -> str:
        """The same on an asyncio loop; 503 when too many wait. Who is cancelled is forgotten."""
        loop = asyncio.get_running_loop()
        if self._queue is None or self._queue.loop is not loop:
            process, self._process = self._process, None
            self._queue = RenderQueue(loop, self._limits, self._load, process)
        return text_of(await self._queue.ask(message_of(template, variables)))

    def close(self) -> None:
        """End the process; a later rendering starts one again."""
        self._drop()
        if self._queue is not None:
            self._queue.close()
            self._queue = None

    def _drop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.end()

    def _ask(self, message: bytes) -> Answer:
        """Send and wait, again when the process was not to blame on the message."""
        with self._lock:
            for attempt in range(1, MOST_ATTEMPTS + 1):
                try:
                    return self._exchange(message)
                except ProcessEnded as ended:
                    self._drop()
                    problem = problem_of(ended, attempt, self._limits)
                    if problem is not None:
                        raise problem from None
                except TimeoutError:
                    self._drop()
                    raise stalled(self._limits) from None
                except NoPulse:
                    self._drop()
        raise stalled(self._limits)

    def _exchange(self, message: bytes) -> Answer:
        if self._process is None:
            try:
                self._process = RenderProcess(self._limits)
            except OSError as error:
                raise no_process(error) from error
            if self._load:
                wait_for(self._process, self._load, self._limits)
        return wait_for(self._process, message, self._limits)


def wait_for(process: RenderProcess, message: bytes, limits: RenderLimits) -> Answer:
    """The answer to a message. Raises ProcessEnded, NoPulse or TimeoutError; `end` the process
    then."""
    deadline = time.monotonic() + limits.wall_seconds
    sent = process.send(message)
    poll = select.poll()
    answers: list[Answer] = []
    pulse = Pulse(process)
    while not answers:
        poll.register(process, select.POLLIN if sent else select.POLLIN | select.POLLOUT)
        if time.monotonic() >= deadline:
            raise TimeoutError
        if not poll.poll(1000 * LOOK):
            if pulse.look():
                raise NoPulse
            continue
        sent = process.flush()
        answers = process.receive()
    return answers[0]


def message_of(template: str, variables: Mapping[str, Any]) -> bytes:
    """BadRequest for what has no form in JSON."""
    try:
        return encode(Render(template, dict(variables)))
    except (UnicodeEncodeError, TypeError, ValueError, OverflowError) as error:
        raise BadRequest("messages", f"cannot be given to the chat template: {error}") from error
    except RecursionError:
        raise BadRequest("messages", "are nested too deeply") from None


def text_of(answer: Answer) -> str:
    if isinstance(answer, Rendered):
        return answer.text
    raise refusal(answer)
