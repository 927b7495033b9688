"""What waits for a thread that compiles: clients take turns, so nobody is behind a crowd."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from vivace.grammar.backend import GrammarMatcher

URGENT = None
"""instead of a client: a step waits for it"""


@dataclass(frozen=True)
class CompileJob:
    make: Callable[[], GrammarMatcher]
    made: Future[GrammarMatcher]

    @property
    def waits(self) -> bool:
        """Nobody has begun it, and somebody wants it."""
        return not (self.made.running() or self.made.done())


class CompileQueue:
    """Any thread calls it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._urgent: deque[CompileJob] = deque()
        self._turns: dict[int, deque[CompileJob]] = {}
        """by client; the first one is next"""

    def put(self, job: CompileJob, client: int | None) -> None:
        """Also again, for another client: it is compiled when the first one's turn comes."""
        with self._lock:
            jobs = self._urgent if client is None else self._turns.setdefault(client, deque())
            jobs.append(job)

    def next(self) -> CompileJob | None:
        with self._lock:
            while self._urgent:
                if (job := self._urgent.popleft()).waits:
                    return job
            while self._turns:
                client = next(iter(self._turns))
                jobs = self._turns.pop(client)
                job = jobs.popleft()
                if jobs:
                    self._turns[client] = jobs  # behind the others
                if job.waits:
                    return job
        return None
