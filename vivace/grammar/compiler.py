"""Grammars that are compiled beside the steps: kept by content, and sequences wait behind gates."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from vivace.grammar.backend import GrammarBackend, GrammarError, GrammarMatcher, PlacedMatcher
from vivace.grammar.compiled import CompiledGrammars
from vivace.protocol.constraints import REGEX, Constraint
from vivace.protocol.messages import FINISH_ABORT, Finish, Request

log = logging.getLogger("vivace.grammar")
THREADS = 1
"""that compile: two leave less of the cores, and of the interpreter, to steps"""
STACK = 256 << 20
"""bytes of addresses: the library goes down a chain of thousands of references in one stack"""
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
        self._compiled = CompiledGrammars(self._begin)
        self._ring: Callable[[], None] = lambda: None

    def wake_with(self, ring: Callable[[], None]) -> None:
        """`ring` is called, from any thread, when a grammar is compiled."""
        self._ring = ring

    def prepare(self) -> None:
        """Begin to read the vocabulary, so that the first answer need not wait for it."""
        self._in_thread(ANY_CONSTRAINT)

    def gate(self, request: Request) -> GrammarGate | None:
        """What a request waits for before its grammar can be obeyed. None: nothing."""
        constraint = request.sampling.constraint
        if constraint is None:
            return None
        compiled = self._compiled.hold(constraint)
        gate = GrammarGate(constraint, request.resumed, compiled, self._clock)
        return None if gate.is_open() and gate.refusal is None else gate

    def matcher(self, constraint: Constraint) -> GrammarMatcher:
        """At the start of an answer; compiled here and now if it is not known. GrammarError."""
        return self._compiled.find(constraint).result().copy()

    def forget(self, constraint: Constraint) -> None:
        """It has reached a limit: what it found out about texts is not for the next ones."""
        self._compiled.forget(constraint)

    def fill(self, matchers: Sequence[PlacedMatcher], masks: np.ndarray) -> None:
        """As `GrammarBackend.fill`."""
        assert self._backend is not None, "it made the matchers"
        self._backend.fill(matchers, masks)

    def _begin(self, constraint: Constraint) -> Future[GrammarMatcher]:
        begun = self._in_thread(constraint)
        self._watch(begun)
        return begun

    def _in_thread(self, constraint: Constraint) -> Future[GrammarMatcher]:
        before = threading.stack_size(STACK)
        try:
            return self._threads.submit(self._compile, constraint)
        finally:
            threading.stack_size(before)

    def _watch(self, compiled: Future[GrammarMatcher]) -> None:
        """Ring when it is there, and when it has taken too long: the engine may be asleep."""
        alarm = threading.Timer(MAX_SECONDS + ALARM_SLACK, self._ring)
        alarm.daemon = True
        alarm.start()

        def done(_: Future[GrammarMatcher]) -> None:
            alarm.cancel()
            self._ring()

        compiled.add_done_callback(done)

    def _compile(self, constraint: Constraint) -> GrammarMatcher:
        with self._lock:
            if self._backend is None:
                self._backend = self._create_backend()
        return self._backend.compile(constraint)


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
        compiled: Future[GrammarMatcher],
        clock: Callable[[], float],
    ) -> None:
        self._constraint, self._resumed = constraint, resumed
        self._compiled = compiled
        self._clock = clock
        self._deadline = clock() + MAX_SECONDS
        self.refusal: Finish | None = None

    def is_open(self) -> bool:
        if self._compiled.done():
            self._judge()
        elif self._clock() > self._deadline:
            self._refuse(f"takes longer than {MAX_SECONDS:g} s to compile; make it simpler")
        else:
            return False
        return True

    def _judge(self) -> None:
        error = self._compiled.exception()
        if isinstance(error, GrammarError):
            self._refuse(str(error))
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
