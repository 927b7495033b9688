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
from vivace.frontend.fairness import CURRENT_CLIENT, FairQueue, QueueEntry, QueueFull
from vivace.frontend.render_process import (
    LOOK,
    MAX_ATTEMPTS,
    LoadResult,
    LoadTemplates,
    ProcessEnded,
    ProgressWatch,
    Render,
    RenderLimits,
    RenderProcess,
    RenderReply,
    RenderResult,
    closed_error,
    no_process,
    process_error,
    stall_error,
    to_bad_request,
    too_many,
)

MAX_WAITING = 1024
MAX_WAITING_PER_CLIENT = 512
"""of one client"""
MAX_WAITING_BYTES = 64 << 20
"""of all messages that wait"""
SMALL_BYTES = 64 << 10
"""A message above this waits until its client has no smaller one."""
SECOND = 4 << 20
"""What a second with the process costs, in bytes of a message."""


@dataclass
class RenderJob:
    message: bytes
    answer: asyncio.Future[RenderReply]
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
        self._waiting: FairQueue[RenderJob] = FairQueue(
            MAX_WAITING, MAX_WAITING_PER_CLIENT, MAX_WAITING_BYTES, SMALL_BYTES, RenderJob.refuse
        )
        self._current: QueueEntry[RenderJob] | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._next_look: asyncio.TimerHandle | None = None
        if process is not None:
            self._adopt(process)

    async def submit(self, message: bytes) -> RenderReply:
        """The answer to a message. BadRequest when there is none; it says why."""
        job = RenderJob(message, self.loop.create_future())
        try:
            entry = self._waiting.add(CURRENT_CLIENT.get(), len(message), job)
        except QueueFull:
            raise too_many() from None
        self._next()
        try:
            return await job.answer
        finally:
            self._waiting.remove(entry)  # if its client has left

    def close(self) -> None:
        """End the process. Its message and those that wait are refused: none of them may start
        another process."""
        self._part()
        entry = self._finish() or self._waiting.next()
        while entry is not None:
            if not entry.item.answer.done():
                entry.item.answer.set_exception(closed_error())
            entry = self._waiting.next()

    # -- one at a time ---------------------------------------------------------------------------

    def _next(self) -> None:
        while self._current is None and (entry := self._waiting.next()) is not None:
            if not entry.item.answer.done():
                self._begin(entry)

    def _begin(self, entry: QueueEntry[RenderJob]) -> None:
        job = entry.item
        try:
            process = self._process or self._start_process()
        except OSError as error:
            job.answer.set_exception(no_process(error))
            return
        job.attempts += 1
        job.began = self.loop.time()
        self._current = entry
        self._deadline = self.loop.call_later(self._limits.wall_seconds, self._overdue)
        self._next_look = self.loop.call_later(LOOK, self._look, ProgressWatch(process))
        self._send(process, job.message)

    def _finish(self) -> QueueEntry[RenderJob] | None:
        """The message that was with the process, which is now free; none if nobody waits for it."""
        entry, self._current = self._current, None
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if self._next_look is not None:
            self._next_look.cancel()
            self._next_look = None
        if entry is None:
            return None
        self._waiting.charge(entry.client, SECOND * (self.loop.time() - entry.item.began))
        return None if entry.item.answer.done() else entry

    # -- the process -----------------------------------------------------------------------------

    def _start_process(self) -> RenderProcess:
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
            self._on_exit(ended)
            return
        for answer in answers:
            if self._loading and isinstance(answer, LoadResult):
                self._loading = False
                continue
            entry = self._finish()
            if entry is not None:
                entry.item.answer.set_result(answer)
        self._next()

    def _on_exit(self, ended: ProcessEnded) -> None:
        self._part()
        entry = self._finish()
        if entry is not None:
            problem = process_error(ended, entry.item.attempts, self._limits)
            if problem is None:
                self._waiting.put(entry)  # with its old number, so it is first in its class
            else:
                entry.item.answer.set_exception(problem)
        self._next()

    def _look(self, watch: ProgressWatch) -> None:
        if watch.look():
            self._overdue(again=True)
        else:
            self._next_look = self.loop.call_later(LOOK, self._look, watch)

    def _overdue(self, again: bool = False) -> None:
        """The process does not get on; `again`: another one may."""
        self._part()
        entry = self._finish()
        if entry is not None:
            if again and entry.item.attempts < MAX_ATTEMPTS:
                self._waiting.put(entry)
            else:
                entry.item.answer.set_exception(stall_error(self._limits))
        self._next()


encode = msgspec.json.Encoder().encode


class NoProgress(Exception):
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

        Raises BadRequest; its reason is about the template, its field the template's name if one
        is to blame.
        """
        load = encode(LoadTemplates(dict(sources), self._limits))
        answer = self._submit(load)
        if not isinstance(answer, LoadResult):
            raise to_bad_request(answer)
        self._load = load
        return answer.walks_content

    def render(self, template: str, variables: Mapping[str, Any]) -> str:
        """Raises OverLimit or BadRequest. Any thread may call it; it waits for the answer."""
        return reply_text(self._submit(encode_message(template, variables)))

    async def render_async(self, template: str, variables: Mapping[str, Any]) -> str:
        """The same on an asyncio loop; 503 when too many wait. Who is cancelled is forgotten."""
        loop = asyncio.get_running_loop()
        if self._queue is None or self._queue.loop is not loop:
            process, self._process = self._process, None
            self._queue = RenderQueue(loop, self._limits, self._load, process)
        return reply_text(await self._queue.submit(encode_message(template, variables)))

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

    def _submit(self, message: bytes) -> RenderReply:
        """Send and wait, again when the process was not to blame on the message."""
        with self._lock:
            for attempt in range(1, MAX_ATTEMPTS + 1):
                try:
                    return self._exchange(message)
                except ProcessEnded as ended:
                    self._drop()
                    problem = process_error(ended, attempt, self._limits)
                    if problem is not None:
                        raise problem from None
                except TimeoutError:
                    self._drop()
                    raise stall_error(self._limits) from None
                except NoProgress:
                    self._drop()
        raise stall_error(self._limits)

    def _exchange(self, message: bytes) -> RenderReply:
        if self._process is None:
            try:
                self._process = RenderProcess(self._limits)
            except OSError as error:
                raise no_process(error) from error
            if self._load:
                wait_for(self._process, self._load, self._limits)
        return wait_for(self._process, message, self._limits)


def wait_for(process: RenderProcess, message: bytes, limits: RenderLimits) -> RenderReply:
    """The answer to a message. Raises ProcessEnded, NoProgress or TimeoutError; `end` the process
    then."""
    deadline = time.monotonic() + limits.wall_seconds
    sent = process.send(message)
    poll = select.poll()
    answers: list[RenderReply] = []
    watch = ProgressWatch(process)
    while not answers:
        poll.register(process, select.POLLIN if sent else select.POLLIN | select.POLLOUT)
        if time.monotonic() >= deadline:
            raise TimeoutError
        if not poll.poll(1000 * LOOK):
            if watch.look():
                raise NoProgress
            continue
        sent = process.flush()
        answers = process.receive()
    return answers[0]


def encode_message(template: str, variables: Mapping[str, Any]) -> bytes:
    """BadRequest for what has no form in JSON."""
    try:
        return encode(Render(template, dict(variables)))
    except (UnicodeEncodeError, TypeError, ValueError, OverflowError) as error:
        raise BadRequest("messages", f"cannot be given to the chat template: {error}") from error
    except RecursionError:
        raise BadRequest("messages", "are nested too deeply") from None


def reply_text(answer: RenderReply) -> str:
    if isinstance(answer, RenderResult):
        return answer.text
    raise to_bad_request(answer)
