"""Grammars that are compiled beside the steps: kept by content, and sequences wait behind gates."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from msgspec.structs import replace

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
from vivace.protocol.constraints import REGEX, Constraint
from vivace.protocol.messages import FINISH_ABORT, Finish, Request

log = logging.getLogger("vivace.grammar")
THREADS = 1
"""that compile: two leave less of the cores, and of the interpreter, to steps"""
LESS_URGENT = 19
"""how nice the threads that compile are to those that compute steps"""
MAX_SECONDS = 10.0
"""in which a grammar is compiled, or its request refused"""
ALARM_SLACK = 0.1
ANY_CONSTRAINT = Constraint(kind=REGEX, text="a")


class GrammarCompiler:
    """Matchers by content. `backend` is made in a thread, when the first constraint comes, or
    before (`prepare`): it reads the vocabulary."""

    def __init__(
        self,
        create_backend: Callable[[], GrammarBackend],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._create_backend = create_backend
        self._clock = clock
        self._backend: GrammarBackend | None = None
        self._lock = threading.Lock()
        """of the backend, while it is made"""
        self._threads = ThreadPoolExecutor(
            THREADS, thread_name_prefix="grammar", initializer=be_less_urgent
        )
        self._queue = CompileQueue()
        self._current: tuple[Compiled, float] | None = None
        """what is being compiled, and since when"""
        self._compiled = CompiledGrammars()
        self._ring: Callable[[], None] = lambda: None

    def wake_with(self, ring: Callable[[], None]) -> None:
        """`ring` is called, from any thread, when a grammar is compiled."""
        self._ring = ring

    def prepare(self) -> None:
        """Begin to read the vocabulary, so that the first answer need not wait for it."""
        self._submit(CompileJob(ANY_CONSTRAINT, Compiled()), URGENT)

    def gate(self, request: Request) -> GrammarGate | None:
        """What a request waits for before its grammar can be obeyed. None: nothing."""
        constraint = request.sampling.constraint
        if constraint is None:
            return None
        compiled = self._compiled.hold(constraint)
        if not compiled.done():
            self._submit(CompileJob(copied(constraint), compiled), request.client)
        gate = GrammarGate(constraint, request.resumed, compiled, lambda: self._spent(compiled))
        return None if gate.is_open() and gate.refusal is None else gate

    def matcher(self, constraint: Constraint) -> GrammarMatcher:
        """At the start of an answer; compiled here and now if it is not known. GrammarError."""
        compiled = self._compiled.find(constraint)
        if not compiled.done():
            self._submit(CompileJob(copied(constraint), compiled), URGENT)
        return compiled.result().copy()

    def forget(self, constraint: Constraint) -> None:
        """It has reached a limit: what it found out about texts is not for the next ones."""
        self._compiled.forget(constraint)

    def fill(self, matchers: Sequence[PlacedMatcher], masks: np.ndarray) -> None:
        """As `GrammarBackend.fill`."""
        assert self._backend is not None, "it made the matchers"
        self._backend.fill(matchers, masks)

    def _submit(self, job: CompileJob, client: int | None) -> None:
        """For a thread, when it is the client's turn."""
        self._queue.put(job, client)
        before = threading.stack_size(STACK)
        try:
            self._threads.submit(self._work)
        finally:
            threading.stack_size(before)

    def _work(self) -> None:
        """In a thread, until nobody waits."""
        self._compiled.let_go()
        while (job := self._queue.next()) is not None:
            if job.compiled.set_running_or_notify_cancel():
                self._finish(job)
            self._compiled.let_go()

    def _finish(self, job: CompileJob) -> None:
        """Ring when it is there, and when it has taken too long: the engine may be asleep."""
        alarm = threading.Timer(MAX_SECONDS + ALARM_SLACK, self._ring)
        alarm.daemon = True
        self._current = job.compiled, self._clock()
        try:
            alarm.start()
            job.compiled.set_result(self._compile(job.constraint))
        except BaseException as error:
            if not isinstance(error, GrammarError):  # the next one may have more luck
                self._compiled.forget(job.constraint)
            job.compiled.set_exception(error)
        finally:
            alarm.cancel()
            self._current = None
            del job  # it has an error, whose frames would have it
            self._ring()

    def _spent(self, compiled: Compiled) -> float:
        """Seconds; none before its turn: others may be before it."""
        current = self._current
        return self._clock() - current[1] if current and current[0] is compiled else 0.0

    def _compile(self, constraint: Constraint) -> GrammarMatcher:
        with self._lock:
            if self._backend is None:
                self._backend = self._create_backend()
        return self._backend.compile(constraint)


def copied(constraint: Constraint) -> Constraint:
    """One that is not of a request, which lives only as long as somebody waits."""
    return replace(constraint)


def be_less_urgent() -> None:
    """The thread that calls it."""
    if sys.platform == "linux":
        thread = threading.get_native_id()
        now = os.getpriority(os.PRIO_PROCESS, thread)
        os.setpriority(os.PRIO_PROCESS, thread, now + LESS_URGENT)  # the system stops at 19


class GrammarGate:
    """Opens when the grammar is compiled, or will never be."""

    def __init__(
        self,
        constraint: Constraint,
        resumed: list[int],
        compiled: Compiled,
        spent: Callable[[], float],
    ) -> None:
        """`spent`: seconds of compiling."""
        self._constraint, self._resumed = constraint, resumed
        self._compiled, self._spent = compiled, spent
        self.refusal: Finish | None = None

    def is_open(self) -> bool:
        if self._compiled.done():
            self._judge()
        elif self._spent() > MAX_SECONDS:
            self._refuse(f"takes longer than {MAX_SECONDS:g} s to compile; make it simpler")
        else:
            return False
        return True

    def _judge(self) -> None:
        error = self._compiled.exception()
        if isinstance(error, GrammarError):
            self._refuse(str(error))
        elif isinstance(error, GrammarUnavailable):
            self._refuse(str(error), status=503)
        elif error is not None:
            log.error("a %s cannot be compiled", self._constraint.kind, exc_info=error)
            self._refuse(f"cannot be compiled ({type(error).__name__})", status=500)
        elif self._resumed:
            known = len(self._resumed)
            if self._compiled.result().copy().accept(self._resumed) < known:
                self._refuse("is not obeyed by the tokens in resumed")

    def _refuse(self, reason: str, status: int = 400) -> None:
        field = self._constraint.field or self._constraint.kind
        self.refusal = Finish(
            FINISH_ABORT, message=f"{field}: {reason}", param=field, status=status
        )
