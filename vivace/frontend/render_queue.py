"""Renderings on an asyncio loop: one after another, small ones first."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from dataclasses import dataclass, field

from vivace.frontend.render_process import LOOK, ProcessEnded, Pulse, RenderProcess
from vivace.frontend.render_verdicts import (
    MOST_ATTEMPTS,
    no_process,
    problem_of,
    stalled,
    too_many,
)
from vivace.frontend.template_messages import Answer, Loaded, RenderLimits

MOST_WAITING = 1024
MOST_BYTES = 64 << 20
"""of all messages that wait"""
SMALL_BYTES = 64 << 10
"""A message above this waits until no smaller one does."""


@dataclass(order=True)
class Job:
    large: bool
    number: int
    message: bytes = field(compare=False)
    answer: asyncio.Future[Answer] = field(compare=False)
    attempts: int = field(default=0, compare=False)


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
        self._waiting: list[Job] = []
        self._bytes = 0
        self._numbers = itertools.count()
        self._current: Job | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._next_look: asyncio.TimerHandle | None = None
        if process is not None:
            self._adopt(process)

    async def ask(self, message: bytes) -> Answer:
        """The answer to a message. BadRequest when there is none; it says why."""
        if len(self._waiting) >= MOST_WAITING or self._bytes + len(message) > MOST_BYTES:
            raise too_many()
        future: asyncio.Future[Answer] = self.loop.create_future()
        job = Job(len(message) > SMALL_BYTES, next(self._numbers), message, future)
        self._wait(job)
        self._next()
        try:
            return await future
        finally:
            if job in self._waiting:  # its client has left
                self._waiting.remove(job)
                heapq.heapify(self._waiting)
                self._bytes -= len(message)

    def close(self) -> None:
        if self._process is not None:
            self._part()

    # -- one at a time ---------------------------------------------------------------------------

    def _wait(self, job: Job) -> None:
        heapq.heappush(self._waiting, job)
        self._bytes += len(job.message)

    def _next(self) -> None:
        while self._current is None and self._waiting:
            job = heapq.heappop(self._waiting)
            self._bytes -= len(job.message)
            self._begin(job)

    def _begin(self, job: Job) -> None:
        try:
            process = self._process or self._started()
        except OSError as error:
            job.answer.set_exception(no_process(error))
            return
        job.attempts += 1
        self._current = job
        self._deadline = self.loop.call_later(self._limits.wall_seconds, self._overdue)
        self._next_look = self.loop.call_later(LOOK, self._look, Pulse(process))
        self._send(process, job.message)

    def _finish(self) -> Job | None:
        """The message that was with the process, which is now free."""
        job, self._current = self._current, None
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if self._next_look is not None:
            self._next_look.cancel()
            self._next_look = None
        return job

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
            job = self._finish()
            if job is not None and not job.answer.done():
                job.answer.set_result(answer)
        self._next()

    def _died(self, ended: ProcessEnded) -> None:
        self._part()
        job = self._finish()
        if job is not None and not job.answer.done():
            problem = problem_of(ended, job.attempts, self._limits)
            if problem is None:
                self._wait(job)  # with its old number, so it is first in its class
            else:
                job.answer.set_exception(problem)
        self._next()

    def _look(self, pulse: Pulse) -> None:
        if pulse.look():
            self._overdue(again=True)
        else:
            self._next_look = self.loop.call_later(LOOK, self._look, pulse)

    def _overdue(self, again: bool = False) -> None:
        """The process does not get on; `again`: another one may."""
        self._part()
        job = self._finish()
        if job is not None and not job.answer.done():
            if again and job.attempts < MOST_ATTEMPTS:
                self._wait(job)
            else:
                job.answer.set_exception(stalled(self._limits))
        self._next()
