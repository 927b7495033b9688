"""What waits for the thread that compiles: clients take turns, so nobody is behind a crowd."""

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
        self._clients: dict[int, deque[CompileJob]] = {}
        """the first one is next"""

    def put(self, job: CompileJob, client: int | None) -> None:
        """Also again, for another client: it is compiled when the first one's turn comes."""
        with self._lock:
            if client is None:
                self._urgent.append(job)
            else:
                self._clients.setdefault(client, deque()).append(job)

    def next(self) -> CompileJob | None:
        with self._lock:
            while self._urgent:
                if (job := self._urgent.popleft()).waits:
                    return job
            while self._clients:
                client = next(iter(self._clients))
                jobs = self._clients.pop(client)
                job = jobs.popleft()
                if jobs:
                    self._clients[client] = jobs  # behind the others
                if job.waits:
                    return job
        return None
