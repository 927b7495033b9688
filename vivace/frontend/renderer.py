"""Chat templates, rendered by a process that can be killed: blocking, or on an asyncio loop."""

from __future__ import annotations

import asyncio
import contextlib
import select
import threading
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from vivace.frontend.errors import BadRequest
from vivace.frontend.render_process import LOOK, ProcessEnded, Pulse, RenderProcess
from vivace.frontend.render_queue import RenderQueue
from vivace.frontend.render_verdicts import MOST_ATTEMPTS, no_process, problem_of, refusal, stalled
from vivace.frontend.template_messages import Answer, Load, Loaded, Render, Rendered, RenderLimits

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
