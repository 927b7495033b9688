"""Grammars that are compiled beside the steps: kept by content, and sequences wait behind gates."""

from __future__ import annotations

import logging
import re
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from functools import partial

import numpy as np
from msgspec.structs import replace

from vivace.config.time_slices import be_less_urgent
from vivace.grammar.backend import (
    GrammarBackend,
    GrammarError,
    GrammarMatcher,
    GrammarUnavailable,
    LibraryFault,
    PlacedMatcher,
)
from vivace.grammar.compile_threads import (
    ALARM_SLACK,
    MAX_SECONDS,
    PATIENCE,
    URGENT,
    CompileThreads,
    Watch,
    watch_thread,
)
from vivace.grammar.compiled import LIVING_BYTES, Compiled, CompiledGrammars
from vivace.grammar.limited_process import ANY_CONSTRAINT, LESS
from vivace.grammar.matcher_cache import MatcherCache
from vivace.grammar.replay import follow
from vivace.protocol.constraints import Constraint
from vivace.protocol.messages import FINISH_ABORT, Finish, Request

log = logging.getLogger("vivace.grammar")
SMALL = 8192
"""characters: most compile in milliseconds, and those of more in up to seconds"""
LONG_MULTIPLE = re.compile(r'"multipleOf"\s*:\s*[0.]*[1-9][\d.]{4}')
"""in one that takes up to seconds however short it is"""
MAX_CPU_SECONDS = 5.0
"""of the thread's own processor time for one grammar, behind a trial with its own limit"""
RETRY_SECONDS = 5.0
TOOL_PLACE = re.compile(r"tools\[\d+\].{0,256}?(?=: )", re.DOTALL)
"""what a reason begins with that says itself which field is to blame"""


class LazyBackend:
    """What is made with the first constraint, the backend and its processes, is as urgent as
    streams: where they keep the only core busy, what is less so gets a hundredth of it."""

    def __init__(self, create: Callable[[], GrammarBackend]) -> None:
        self._create, self._lock = create, threading.Lock()
        self.made: GrammarBackend | None = None

    def find(self) -> GrammarBackend:
        with self._lock:
            self.made = self.made or self._create()
            return self.made

    def begin_job(self) -> None:
        """In a thread that may be less urgent."""
        if self.made is not None:
            be_less_urgent()


class GrammarCompiler:
    """Matchers by content. The backend is made in a thread, when the first constraint comes, or
    before (`prepare`): it reads the vocabulary."""

    def __init__(
        self,
        create_backend: Callable[[], GrammarBackend],
        watch: Watch = watch_thread,
        room: int = LIVING_BYTES,
    ) -> None:
        """`room`: bytes of the grammars of living requests"""
        self._backend = LazyBackend(create_backend)
        self._compiled = CompiledGrammars(room)
        parts = (self._backend.begin_job, self._compiled.let_go, watch, threading.Lock())
        self._small, self._large = CompileThreads(*parts), CompileThreads(*parts)
        """by constraints, so that no small one waits for a large one"""
        self.matcher_cache = MatcherCache()

    def wake_with(self, ring: Callable[[], None]) -> None:
        """`ring` is called, from any thread, when a grammar is compiled."""
        self._small.ring = self._large.ring = ring

    def prepare(self) -> None:
        """Begin to read the vocabulary, so that the first answer need not wait for it."""
        self._small.submit(partial(self._compile, ANY_CONSTRAINT), Compiled(), URGENT)

    def gate(self, request: Request) -> GrammarGate | None:
        """What a request waits for before its grammar can be obeyed. None: nothing."""
        constraint = request.sampling.constraint
        if constraint is None:
            return None
        threads = self._find_threads(constraint)
        try:
            made = compiled = self._compiled.hold(constraint)
        except GrammarUnavailable as error:
            made = Compiled()
            made.set_exception(error)
            return GrammarGate(constraint, made, threads)
        if not compiled.done():
            make = partial(self._compile, copied(constraint))
            threads.submit(make, compiled, request.client)
        if request.resumed:
            made = Compiled()
            weakref.finalize(constraint, made.cancel).atexit = False  # nobody waits any more
            follow = partial(self._resume, copied(constraint), compiled, request.resumed)
            threads.submit(follow, made, request.client)
        gate = GrammarGate(constraint, made, threads)
        return None if gate.is_open() and gate.refusal is None else gate

    def _find_threads(self, constraint: Constraint) -> CompileThreads:
        text = constraint.text
        quick = len(text) <= SMALL and LONG_MULTIPLE.search(text) is None
        return self._small if quick else self._large

    def _resume(
        self, constraint: Constraint, start: Compiled, tokens: Sequence[int]
    ) -> GrammarMatcher:
        """Where the answer stands, for the row that it joins. Raises what `start` failed with."""
        if (found := follow(start.result().copy(), tokens)) is None:
            raise GrammarError("is not obeyed by the tokens in resumed")
        self.matcher_cache.keep(constraint, tokens, found)
        return found

    def matcher(self, constraint: Constraint) -> GrammarMatcher:
        """At the start of an answer; compiled here and now if it is not known. GrammarError."""
        compiled = self._compiled.find(constraint)
        if not compiled.done():
            threads = self._find_threads(constraint)
            threads.submit(partial(self._compile, copied(constraint)), compiled, URGENT)
            wait([compiled], PATIENCE + ALARM_SLACK)
            threads.hurry()
        return compiled.result().copy()

    def forget(self, constraint: Constraint, instead: GrammarMatcher | None = None) -> None:
        """It has reached a limit: what it found out about texts is not for the next ones. These
        begin with `instead`, or have it compiled."""
        if instead is None:
            self._compiled.forget(constraint)
        else:
            self._compiled.replace(constraint, instead)

    def fill(self, matchers: Sequence[PlacedMatcher], masks: np.ndarray) -> None:
        """As `GrammarBackend.fill`."""
        self._backend.find().fill(matchers, masks)

    def _compile(self, constraint: Constraint) -> GrammarMatcher:
        try:
            return self._backend.find().compile(constraint)
        except GrammarError:
            raise
        except BaseException:  # the next one may have more luck
            self._compiled.forget(constraint)
            raise


def copied(constraint: Constraint) -> Constraint:
    """One that is not of a request, which lives only as long as somebody waits."""
    return replace(constraint)


class GrammarGate:
    """Opens when the grammar is compiled, and the answer's first tokens are accepted; or never."""

    def __init__(self, constraint: Constraint, made: Compiled, threads: CompileThreads) -> None:
        """`threads`: that make it."""
        self._constraint, self._made, self._threads = constraint, made, threads
        self.refusal: Finish | None = None

    def is_open(self) -> bool:
        if self._made.done():
            self._judge()
            return True
        self._threads.hurry()
        spent = self._threads.spent(self._made)
        if spent.cpu > MAX_CPU_SECONDS:
            self._refuse(f"takes longer than {MAX_CPU_SECONDS:g} s to compile; {LESS}")
        elif spent.wall > MAX_SECONDS:
            reason = f"was not compiled in {MAX_SECONDS:g} s: the machine is busy; try again later"
            self._refuse(reason, status=503)
        return self.refusal is not None

    def _judge(self) -> None:
        error = self._made.exception()
        if isinstance(error, GrammarError):
            self._refuse(str(error))
        elif isinstance(error, LibraryFault):
            log.error("a %s cannot be compiled: %s", self._constraint.kind, error)
            self._refuse(str(error))
        elif isinstance(error, GrammarUnavailable):
            self._refuse(str(error), status=503)
        elif error is not None:
            log.error("a %s cannot be compiled", self._constraint.kind, exc_info=error)
            reason = f"cannot be compiled: internal error of the compiler ({type(error).__name__})"
            self._refuse(f"{reason}; its traceback is in the log", status=500)

    def _refuse(self, reason: str, status: int = 400) -> None:
        field = self._constraint.field or self._constraint.kind
        if (place := TOOL_PLACE.match(reason)) is not None:
            field, reason = place[0], reason[place.end() :].removeprefix(": ")
        self.refusal = Finish(
            FINISH_ABORT,
            message=f"{field}: {reason}",
            param=field,
            status=status,
            retry_after=RETRY_SECONDS if status == 503 else None,
        )
