"""Grammars that are compiled beside the steps: kept by content, and sequences wait behind gates."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
from msgspec.structs import replace

from vivace.config.time_slices import be_less_urgent
from vivace.grammar.backend import (
    GrammarBackend,
    GrammarError,
    GrammarMatcher,
    GrammarUnavailable,
    PlacedMatcher,
)
from vivace.grammar.compile_queue import URGENT, CompileJob, CompileQueue
from vivace.grammar.compiled import Compiled, CompiledGrammars
from vivace.grammar.limits import STACK
from vivace.grammar.replay import resume
from vivace.grammar.standing import StandingMatchers
from vivace.protocol.constraints import REGEX, Constraint
from vivace.protocol.messages import FINISH_ABORT, Finish, Request

log = logging.getLogger("vivace.grammar")
THREADS = 1
"""that compile: two leave less of the cores, and of the interpreter, to steps"""
MAX_CPU_SECONDS = 5.0
"""of the thread's own processor time for one grammar, behind a trial with its own limit"""
MAX_SECONDS = 30.0
"""by the clock: behind these the machine is to blame, and the request may come again"""
RETRY_SECONDS = 5.0
ALARM_SLACK = 0.1
ANY_CONSTRAINT = Constraint(kind=REGEX, text="a")


@dataclass(frozen=True)
class SpentTime:
    """Seconds of processor time, and by the clock."""

    cpu: float
    wall: float


def watch_thread() -> Callable[[], SpentTime]:
    """What the thread that calls it spends from now on, which any thread may ask while it lives."""
    clock = time.pthread_getcpuclockid(threading.get_ident())
    cpu, wall = time.clock_gettime(clock), time.monotonic()
    return lambda: SpentTime(cpu=time.clock_gettime(clock) - cpu, wall=time.monotonic() - wall)


class GrammarCompiler:
    """Matchers by content. `backend` is made in a thread, when the first constraint comes, or
    before (`prepare`): it reads the vocabulary."""

    def __init__(
        self,
        create_backend: Callable[[], GrammarBackend],
        watch: Callable[[], Callable[[], SpentTime]] = watch_thread,
    ) -> None:
        self._create_backend = create_backend
        self._watch = watch
        self._backend: GrammarBackend | None = None
        self._queue = CompileQueue()
        self._current: tuple[Compiled, Callable[[], SpentTime]] | None = None
        """what is being made, and what that has taken"""
        self._compiled = CompiledGrammars()
        self.standing = StandingMatchers()
        self._ring: Callable[[], None] = lambda: None

    def wake_with(self, ring: Callable[[], None]) -> None:
        """`ring` is called, from any thread, when a grammar is compiled."""
        self._ring = ring

    def prepare(self) -> None:
        """Begin to read the vocabulary, so that the first answer need not wait for it."""
        self._submit(partial(self._compile, ANY_CONSTRAINT), Compiled(), URGENT)

    def gate(self, request: Request) -> GrammarGate | None:
        """What a request waits for before its grammar can be obeyed. None: nothing."""
        constraint = request.sampling.constraint
        if constraint is None:
            return None
        made = compiled = self._compiled.hold(constraint)
        if not compiled.done():
            self._submit(partial(self._compile, copied(constraint)), compiled, request.client)
        if request.resumed:
            made = Compiled()
            weakref.finalize(constraint, made.cancel).atexit = False  # nobody waits any more
            follow = partial(self._resume, copied(constraint), compiled, request.resumed)
            self._submit(follow, made, request.client)
        gate = GrammarGate(constraint, made, lambda: self._spent(made))
        return None if gate.is_open() and gate.refusal is None else gate

    def _resume(
        self, constraint: Constraint, start: Compiled, tokens: Sequence[int]
    ) -> GrammarMatcher:
        """Where the answer stands, for the row that it joins."""
        found = resume(start, tokens)
        self.standing.keep(constraint, tokens, found)
        return found

    def matcher(self, constraint: Constraint) -> GrammarMatcher:
        """At the start of an answer; compiled here and now if it is not known. GrammarError."""
        compiled = self._compiled.find(constraint)
        if not compiled.done():
            self._submit(partial(self._compile, copied(constraint)), compiled, URGENT)
        return compiled.result().copy()

    def forget(self, constraint: Constraint) -> None:
        """It has reached a limit: what it found out about texts is not for the next ones."""
        self._compiled.forget(constraint)

    def fill(self, matchers: Sequence[PlacedMatcher], masks: np.ndarray) -> None:
        """As `GrammarBackend.fill`."""
        assert self._backend is not None, "it made the matchers"
        self._backend.fill(matchers, masks)

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        """Begun with the first constraint. How much stack the next thread gets is the process's to
        say, so it is said while this one begins."""
        threads = ThreadPoolExecutor(THREADS, thread_name_prefix="grammar")
        before = threading.stack_size(STACK)
        try:
            threads.submit(self._work)
        finally:
            threading.stack_size(before)
        return threads

    def _submit(
        self, make: Callable[[], GrammarMatcher], made: Compiled, client: int | None
    ) -> None:
        """For a thread, when it is the client's turn."""
        self._queue.put(CompileJob(make, made), client)
        self._threads.submit(self._work)

    def _work(self) -> None:
        """In a thread, until nobody waits."""
        self._compiled.let_go()
        while (job := self._queue.next()) is not None:
            if job.made.set_running_or_notify_cancel():
                self._finish(job)
            self._compiled.let_go()

    def _finish(self, job: CompileJob) -> None:
        """Ring when it is there, and when it has taken too long: the engine may be asleep."""
        alarm = threading.Timer(MAX_SECONDS + ALARM_SLACK, self._ring)
        alarm.daemon = True
        try:
            self._current = job.made, self._watch()
            alarm.start()
            job.made.set_result(job.make())
        except BaseException as error:
            job.made.set_exception(error)
        finally:
            alarm.cancel()
            self._current = None
            del job  # it has an error, whose frames would have it
            self._ring()

    def _spent(self, made: Compiled) -> SpentTime:
        """Nothing before its turn: others may be before it."""
        current = self._current
        return current[1]() if current and current[0] is made else SpentTime(cpu=0.0, wall=0.0)

    def _compile(self, constraint: Constraint) -> GrammarMatcher:
        try:
            if self._backend is None:
                return self._begin(constraint)
            return self._backend.compile(constraint)
        except GrammarError:
            raise
        except BaseException:  # the next one may have more luck
            self._compiled.forget(constraint)
            raise

    def _begin(self, constraint: Constraint) -> GrammarMatcher:
        """With the first constraint. What is made once, the backend and its processes, is as urgent
        as streams: where they keep the only core busy, what is less so gets a hundredth of it."""
        self._backend = self._create_backend()
        try:
            return self._backend.compile(constraint)
        finally:
            be_less_urgent()


def copied(constraint: Constraint) -> Constraint:
    """One that is not of a request, which lives only as long as somebody waits."""
    return replace(constraint)


class GrammarGate:
    """Opens when the grammar is compiled, and the answer's first tokens are accepted; or never."""

    def __init__(
        self, constraint: Constraint, made: Compiled, spent: Callable[[], SpentTime]
    ) -> None:
        """`spent`: on making it."""
        self._constraint, self._made, self._spent = constraint, made, spent
        self.refusal: Finish | None = None

    def is_open(self) -> bool:
        if self._made.done():
            self._judge()
            return True
        spent = self._spent()
        if spent.cpu > MAX_CPU_SECONDS:
            self._refuse(f"takes longer than {MAX_CPU_SECONDS:g} s to compile; make it simpler")
        elif spent.wall > MAX_SECONDS:
            reason = f"was not compiled in {MAX_SECONDS:g} s: the machine is busy; try again later"
            self._refuse(reason, status=503)
        return self.refusal is not None

    def _judge(self) -> None:
        error = self._made.exception()
        if isinstance(error, GrammarError):
            self._refuse(str(error))
        elif isinstance(error, GrammarUnavailable):
            self._refuse(str(error), status=503)
        elif error is not None:
            log.error("a %s cannot be compiled", self._constraint.kind, exc_info=error)
            self._refuse(f"cannot be compiled ({type(error).__name__})", status=500)

    def _refuse(self, reason: str, status: int = 400) -> None:
        field = self._constraint.field or self._constraint.kind
        self.refusal = Finish(
            FINISH_ABORT,
            message=f"{field}: {reason}",
            param=field,
            status=status,
            retry_after=RETRY_SECONDS if status == 503 else None,
        )
