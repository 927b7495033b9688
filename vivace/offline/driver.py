"""Turns the engine's loop in the caller's own thread: no server, no engine process."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

from vivace.engine.executor import ExecutorDied
from vivace.engine.loop import Loop
from vivace.frontend.errors import EngineUnavailable
from vivace.frontend.frontend import Frontend
from vivace.offline.rank_watch import RankWatch
from vivace.protocol.channel import LocalMailbox
from vivace.protocol.messages import EngineCommand, EngineDown, Reply

IDLE_SECONDS = 0.0005
LOST_AFTER_SECONDS = 60.0


class ProgramEnds(EngineUnavailable):
    """Said at exit, when only daemon threads are left."""


class StepLock:
    """Who may step: one thread at a time, in the process that made the engine, while it lives."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal handler may end what its own thread is at
        self._stepping = False
        self._process = os.getpid()
        self._failure: EngineUnavailable | None = None
        """never raised itself: a traceback would hold whatever the engine had"""

    @property
    def belongs_here(self) -> bool:
        return os.getpid() == self._process

    def require_open(self) -> None:
        """Raises EngineUnavailable when the engine is dead, was shut down, or is another
        process's. A fork has no threads but its own, and shares the process of the chat template
        with its parent."""
        if not self.belongs_here:
            raise EngineUnavailable(
                f"the engine belongs to process {self._process}, of which this one is a fork; make "
                "the engine in the process that uses it"
            )
        if isinstance(self._failure, ProgramEnds) and threading.current_thread().daemon:
            raise SystemExit  # the thread ends with the program, and threading prints nothing
        if self._failure is not None:
            raise EngineUnavailable(str(self._failure))

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """EngineUnavailable as in `require_open`."""
        self.require_open()  # before the lock, which a thread that a fork has lost may hold
        with self._lock:
            self.require_open()
            if self._stepping:
                raise EngineUnavailable("a signal handler cannot use the engine within a step")
            self._stepping = True
            try:
                yield
            finally:
                self._stepping = False

    def fail(self, reason: str) -> None:
        """Nobody steps from now on; whoever holds the lock calls it."""
        self._failure = EngineUnavailable(reason)

    def end(self, error: EngineUnavailable) -> bool:
        """No step begins from now on, and no other thread is within one; whether this call made it
        so. In a fork there is nothing to end."""
        if self._failure is not None or not self.belongs_here:
            return False
        self._failure = error
        with self._lock:
            return True


class Driver:
    """Steps the engine's loop and delivers what it sends. Steps exclude each other, so any thread
    may call `step`; whoever does works for everybody."""

    def __init__(
        self, loop: Loop, mailbox: LocalMailbox, frontend: Frontend, watch: RankWatch
    ) -> None:
        self._loop = loop
        self._watch = watch
        self._mailbox = mailbox
        self._frontend = frontend
        self._lock = StepLock()
        self._idle_since: float | None = None
        # What a step computes with is freed when the program ends, whatever threads still do.
        self._release = weakref.finalize(self, release, self._lock, loop, watch)

    def step(self) -> None:
        """Raises EngineUnavailable when the engine is dead or has lost a request."""
        with self._lock.exclusive(), postpone_interrupts():
            self._watch.begin()
            try:
                busy = self._loop.step(0.0)
            except BaseException as error:
                self._fail(error)
                raise
            finally:
                self._watch.end()
            news = self._mailbox.collect()
            for message in news:
                self._frontend.feed(message)
            self._look_for_news(busy or bool(news))

    def require_alive(self) -> None:
        """Raises EngineUnavailable when `step` would, for whatever reason."""
        self._lock.require_open()

    def command(self, body: EngineCommand) -> Reply:
        """Run a control command to its reply."""
        self.require_alive()
        replies: list[Reply] = []
        self._frontend.commands.send(body, replies.append)
        while not replies:
            self.step()
        return replies[0]

    def close(self) -> None:
        """End the engine; steps raise EngineUnavailable from now on."""
        if self._lock.end(EngineUnavailable("the engine was shut down; make another")):
            self._loop.stop()
            self._tell_all("it was shut down; make another")
        self._release()

    def _fail(self, error: BaseException) -> None:
        """Raises EngineUnavailable where it is the engine that died."""
        reason = self._watch.cause or describe(error)
        text = f"the engine died of {reason}; make another"
        self._lock.fail(text)
        self._tell_all(reason)
        if isinstance(error, ExecutorDied):
            raise EngineUnavailable(text) from error

    def _tell_all(self, reason: str) -> None:
        self._mailbox.collect()
        self._frontend.feed(EngineDown(reason=reason, restarting=False))

    def _look_for_news(self, busy: bool) -> None:
        """Waiting is fine (a device, a gate), but not for ever."""
        if busy:
            self._idle_since = None
            return
        now = time.monotonic()
        if self._idle_since is None:
            self._idle_since = now
        elif now - self._idle_since > LOST_AFTER_SECONDS and self._frontend.live:
            raise EngineUnavailable(
                f"nothing has happened for {LOST_AFTER_SECONDS:g} s with {self._frontend.live} "
                "requests live"
            )
        time.sleep(IDLE_SECONDS)


def release(lock: StepLock, loop: Loop, watch: RankWatch) -> None:
    """No step begins any more, and the ranks behind the first one end. Of an engine that a fork has
    from its parent nothing does."""
    if lock.belongs_here:
        lock.end(ProgramEnds("the program ends"))
        watch.close()
        loop.close()


def describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


@contextmanager
def postpone_interrupts() -> Iterator[None]:
    """Ctrl-C takes effect behind the step: between plan and commit it would break the engine.

    Pressed twice, it does so at once. Only where Python's own handler is in place.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    pressed: list[int] = []

    def remember(number: int, _frame: object) -> None:
        pressed.append(number)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGINT, remember)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if pressed:
        raise KeyboardInterrupt


class AsyncDriver:
    """Steps for asyncio callers: however many wait, one thread steps and all see what came."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._step: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def next(self) -> None:
        """Wait for the step under way, or make one."""
        loop = asyncio.get_running_loop()
        if self._step is None or self._step.done() or self._loop is not loop:
            self._loop = loop
            self._step = loop.create_task(asyncio.to_thread(self._driver.step))
        await asyncio.shield(self._step)
