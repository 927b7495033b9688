"""Renderings on an asyncio loop: one after another, clients in turn, small ones first."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from vivace.frontend.render_process import LOOK, ProcessEnded, Pulse, RenderProcess
from vivace.frontend.render_verdicts import (
    MOST_ATTEMPTS,
    no_process,
    problem_of,
    stalled,
    too_many,
)
from vivace.frontend.template_messages import Answer, Loaded, RenderLimits
from vivace.frontend.turns import ASKER, Full, Turn, Turns

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
