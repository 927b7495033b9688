"""What waits for the thread that compiles: clients take turns, so nobody is behind a crowd, and
small constraints come before large ones."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from vivace.grammar.backend import GrammarMatcher

URGENT = None
"""instead of a client: a step waits for it"""
SMALL = 8192
"""characters: most compile in milliseconds, and those of more in up to seconds"""
SMALL_FIRST = 8
"""small ones, before a large one that waits: whatever comes, it has its turn"""
Turns = dict[int, deque["CompileJob"]]
"""by client; the first one is next"""


@dataclass(frozen=True)
class CompileJob:
    make: Callable[[], GrammarMatcher]
    made: Future[GrammarMatcher]
    characters: int = 0
    """of the constraint"""

    @property
    def waits(self) -> bool:
        """Nobody has begun it, and somebody wants it."""
        return not (self.made.running() or self.made.done())


class CompileQueue:
    """Any thread calls it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._urgent: deque[CompileJob] = deque()
        self._small, self._large = Turns(), Turns()
        self._passed = 0
        """small ones since a large one had its turn"""

    def put(self, job: CompileJob, client: int | None) -> None:
        """Also again, for another client: it is compiled when the first one's turn comes."""
        with self._lock:
            if client is None:
                self._urgent.append(job)
            else:
                turns = self._small if job.characters <= SMALL else self._large
                turns.setdefault(client, deque()).append(job)

    def next(self) -> CompileJob | None:
        with self._lock:
            while self._urgent:
                if (job := self._urgent.popleft()).waits:
                    return job
            both = (self._small, self._large)
            for turns in reversed(both) if self._passed >= SMALL_FIRST else both:
                if (job := _take(turns)) is not None:
                    self._passed = self._passed + 1 if turns is self._small else 0
                    return job
        return None


def _take(turns: Turns) -> CompileJob | None:
    while turns:
        client = next(iter(turns))
        jobs = turns.pop(client)
        job = jobs.popleft()
        if jobs:
            turns[client] = jobs  # behind the others
        if job.waits:
            return job
    return None
