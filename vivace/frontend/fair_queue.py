"""Turns among clients who want the same work done: fair in what the work costs, not in how many
pieces it comes."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")

ASKER: ContextVar[int] = ContextVar("asker", default=0)
"""Who asks for what this task does: the client of a key, or below 0 a connection without one."""

BASE = 4096
"""What a piece of work costs at least: many tiny ones are not free."""


class Full(Exception):
    """Too much waits already, and nothing of it is less urgent."""


@dataclass(order=True)
class Turn(Generic[T]):
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
class Queue(Generic[T]):
    """What one client waits for, small work first. `start`: when its next piece would begin if
    every client had an equal share of the place where the work is done."""

    start: float
    turns: list[Turn[T]] = field(default_factory=list)

    @property
    def end(self) -> float:
        return self.start + self.turns[0].cost

    @property
    def last(self) -> float:
        return self.start + sum(turn.cost for turn in self.turns)


class Turns(Generic[T]):
    """Work that waits: at most `most` pieces and `own` of one client, of together at most `room`.

    The next is the one that would end first if all clients were served at once (weighted fair
    queueing): little work of one client overtakes the much of others, and none waits for ever.
    When all is full, the client with most leaves its last piece to who comes with less; `refuse` is
    called with it.
    """

    def __init__(
        self, most: int, own: int, room: int, small: int, refuse: Callable[[T], object]
    ) -> None:
        self._most = most
        self._own = own
        self._room = room
        self._small = small
        self._refuse = refuse
        self._queues: dict[int, Queue[T]] = {}
        self._numbers = itertools.count()
        self._now = 0.0
        self.count = 0
        self.size = 0

    def add(self, client: int, size: int, item: T) -> Turn[T]:
        """Raises Full."""
        turn = Turn(size > self._small, next(self._numbers), client, size, item)
        queue = self._queues.get(client)
        if size > self._room or (queue is not None and len(queue.turns) >= self._own):
            raise Full
        while self.count >= self._most or self.size + size > self._room:
            victim = max(self._queues.values(), key=lambda queue: queue.last)
            if victim.last <= (self._now if queue is None else queue.last) + turn.cost:
                raise Full
            last = max(victim.turns)
            self.remove(last)
            self._refuse(last.item)
        self.put(turn)
        return turn

    def put(self, turn: Turn[T]) -> None:
        """Let it wait, for the first time or again."""
        queue = self._queues.setdefault(turn.client, Queue(self._now))
        heapq.heappush(queue.turns, turn)
        self.count += 1
        self.size += turn.size

    def next(self) -> Turn[T] | None:
        """Whose turn it is; it waits no longer."""
        if not self._queues:
            return None
        queue = min(self._queues.values(), key=lambda queue: queue.end)
        turn = queue.turns[0]
        queue.start = queue.end
        self._now += turn.cost / len(self._queues)
        self.remove(turn)
        return turn

    def remove(self, turn: Turn[T]) -> bool:
        """Whether it was waiting, which is over."""
        queue = self._queues.get(turn.client)
        if queue is None or turn not in queue.turns:
            return False
        queue.turns.remove(turn)
        heapq.heapify(queue.turns)
        if not queue.turns:
            del self._queues[turn.client]
        self.count -= 1
        self.size -= turn.size
        return True

    def charge(self, client: int, cost: float) -> None:
        """A piece took more than its size says; what else the client wants comes later."""
        if client in self._queues:
            self._queues[client].start += cost
