"""Long work of many clients, so that nobody waits for one body, one answer or one client: a queue
that is fair in what the work costs, and the event loop in slices."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable, Generator
from contextvars import ContextVar
from dataclasses import dataclass, field
from math import inf
from sys import getrefcount
from time import perf_counter
from typing import Any, Generic, TypeVar

T = TypeVar("T")

CURRENT_CLIENT: ContextVar[int] = ContextVar("client", default=0)
"""Who asks for what this task does: the client of a key, or below 0 a connection without one."""
CURRENT_BEGIN: ContextVar[float] = ContextVar("begin", default=inf)
"""When what this task does was asked for (time.monotonic())."""

BASE = 4096
"""What a piece of work costs at least: many tiny ones are not free."""


class QueueFull(Exception):
    """Too much waits already, and nothing of it is less urgent."""


@dataclass(order=True)
class QueueEntry(Generic[T]):
    """A piece of work that waits. `size`: what it takes (bytes, characters)."""

    large: bool
    number: int
    client: int = field(compare=False)
    size: int = field(compare=False)
    item: T = field(compare=False)

    @property
    def cost(self) -> int:
        return BASE + self.size


@dataclass
class ClientQueue(Generic[T]):
    """What one client waits for, small work first. `start`: when its next piece would begin if
    every client had an equal share of the place where the work is done."""

    start: float
    entries: list[QueueEntry[T]] = field(default_factory=list)

    @property
    def end(self) -> float:
        return self.start + self.entries[0].cost

    @property
    def last(self) -> float:
        return self.start + sum(entry.cost for entry in self.entries)


class FairQueue(Generic[T]):
    """Work that waits: at most `max_entries` pieces and `max_per_client` of one client, of together
    at most `max_size`. What is larger than `small_size` comes behind a client's small work.

    The next is the one that would end first if all clients were served at once (weighted fair
    queueing): little work of one client overtakes the much of others, and none waits for ever.
    When all is full, the client with most leaves its last piece to who comes with less; `refuse` is
    called with it.
    """

    def __init__(
        self,
        max_entries: int,
        max_per_client: int,
        max_size: int,
        small_size: int,
        refuse: Callable[[T], object],
    ) -> None:
        self._max_entries = max_entries
        self._max_per_client = max_per_client
        self._max_size = max_size
        self._small_size = small_size
        self._refuse = refuse
        self._queues: dict[int, ClientQueue[T]] = {}
        self._numbers = itertools.count()
        self._now = 0.0
        self.count = 0
        self.size = 0

    def add(self, client: int, size: int, item: T) -> QueueEntry[T]:
        """Raises QueueFull."""
        entry = QueueEntry(size > self._small_size, next(self._numbers), client, size, item)
        queue = self._queues.get(client)
        if size > self._max_size or (
            queue is not None and len(queue.entries) >= self._max_per_client
        ):
            raise QueueFull
        while self.count >= self._max_entries or self.size + size > self._max_size:
            victim = max(self._queues.values(), key=lambda queue: queue.last)
            if victim.last <= (self._now if queue is None else queue.last) + entry.cost:
                raise QueueFull
            last = max(victim.entries)
            self.remove(last)
            self._refuse(last.item)
        self.put(entry)
        return entry

    def put(self, entry: QueueEntry[T]) -> None:
        """Let it wait, for the first time or again."""
        queue = self._queues.setdefault(entry.client, ClientQueue(self._now))
        heapq.heappush(queue.entries, entry)
        self.count += 1
        self.size += entry.size

    def next(self) -> QueueEntry[T] | None:
        """Whose turn it is; it waits no longer."""
        if not self._queues:
            return None
        queue = min(self._queues.values(), key=lambda queue: queue.end)
        entry = queue.entries[0]
        queue.start = queue.end
        self._now += entry.cost / len(self._queues)
        self.remove(entry)
        return entry

    def remove(self, entry: QueueEntry[T]) -> bool:
        """Whether it was waiting, which is over."""
        queue = self._queues.get(entry.client)
        if queue is None or entry not in queue.entries:
            return False
        queue.entries.remove(entry)
        heapq.heapify(queue.entries)
        if not queue.entries:
            del self._queues[entry.client]
        self.count -= 1
        self.size -= entry.size
        return True

    def charge(self, client: int, cost: float) -> None:
        """A piece took more than its size says; what else the client wants comes later."""
        if client in self._queues:
            self._queues[client].start += cost


# -- slices of the event loop ----------------------------------------------------------------------

SLICE = 0.002
"""Seconds of one slice."""

Work = Generator[None, None, T]
"""Work that yields after every bit of it (well below a slice) and returns its result."""

_MORE: Any = object()
DISCARDED = 4096
"""Entries that are freed without a pause."""


class TimeSlicer:
    """Runs work a slice at a time. All work of a server takes turns: a turn of the loop has one
    slice of it, however many clients ask for work."""

    def __init__(self, seconds: float = SLICE) -> None:
        self._seconds = seconds
        self._turn = asyncio.Lock()
        self._used = 0.0
        """When a slice was used up last."""

    async def run(self, work: Work[T]) -> T:
        """The result of `work`, which ends early when the caller is cancelled."""
        try:
            idle = perf_counter() - self._used > self._seconds
            result = self._slice(work) if idle else _MORE  # most work is done at once
            while result is _MORE:
                await asyncio.sleep(0)
                async with self._turn:
                    result = self._slice(work)
            return result
        finally:
            work.close()

    def _slice(self, work: Work[T]) -> T:
        """The result, or `_MORE` when a slice was not enough for it."""
        until = perf_counter() + self._seconds
        try:
            next(work)
            while perf_counter() < until:
                next(work)
        except StopIteration as end:
            return end.value
        self._used = perf_counter()
        return _MORE


def discard(entries: list[Any]) -> Work[None]:
    """Empty a list a bit at a time, and lists in it that nobody else has, whatever lies between
    them: to free a million entries takes 20 ms."""
    while entries:
        last = entries[-DISCARDED:]
        if list in set(map(type, last)):
            del last
            for _ in range(min(DISCARDED, len(entries))):
                entry = entries.pop()
                if type(entry) is list and getrefcount(entry) == 2:
                    yield from discard(entry)
        else:
            del last, entries[-DISCARDED:]
        yield


def run_now(work: Work[T]) -> T:
    """The result of `work`, all of it now."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value
