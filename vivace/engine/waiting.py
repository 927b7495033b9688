"""The waiting queues of clients: order, bound, deadlines."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from vivace.engine.ordering import Order
from vivace.engine.sequence import Sequence


class WaitingQueue:
    """A queue for each client; the bound holds for all of them together."""

    def __init__(self, order: Order, bound: int | None) -> None:
        self._order = order
        self._bound = bound
        self._queues: dict[int, list[Sequence]] = {}
        """none is empty"""
        self._unsorted: set[int] = set()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Sequence]:
        """All that wait, in no order."""
        return chain.from_iterable(self._queues.values())

    def full(self, free_rows: int) -> bool:
        """True when one more would be queued beyond the bound; who may run soon is not queued."""
        return self._bound is not None and self._count >= self._bound + free_rows

    def add(self, sequence: Sequence) -> None:
        sequence.refresh_prefix()
        self._queues.setdefault(sequence.client, []).append(sequence)
        self._unsorted.add(sequence.client)
        self._count += 1

    def remove(self, sequences: list[Sequence]) -> None:
        gone: dict[int, set[int]] = {}
        for sequence in sequences:
            gone.setdefault(sequence.client, set()).add(sequence.key)
        for client, keys in gone.items():
            before = self._queues.pop(client, [])
            after = without(before, keys)
            self._count -= len(before) - len(after)
            if after:
                self._queues[client] = after

    def ordered(self, client: int) -> list[Sequence]:
        """All that wait of a client, next first."""
        queue = self._queues.get(client, [])
        if client in self._unsorted or not self._order.lasting:
            self._order.sort(queue)
            self._unsorted.discard(client)
        return queue

    def least_important(self, newcomer: Sequence) -> Sequence | None:
        """Who is dropped for a newcomer: the last to come of the least important.

        Among equals, of whoever has most waiting, if that is more than the newcomer's client has.
        """
        last = min(self, key=lambda s: (s.importance, -s.ticket), default=None)
        if last is None or last.importance < newcomer.importance:
            return last
        crowd = max(self._queues.values(), key=len)
        if len(crowd) <= len(self._queues.get(newcomer.client, ())) + 1:
            return None
        last = min(crowd, key=lambda s: (s.importance, -s.ticket))
        return last if last.importance <= newcomer.importance else None

    def older_than(self, moment: float) -> list[Sequence]:
        """Sequences that arrived before `moment` and never ran."""
        return [sequence for sequence in self if sequence.arrival < moment and not sequence.started]


def without(queue: list[Sequence], keys: set[int]) -> list[Sequence]:
    """A new queue without some, who mostly stand at its head."""
    count = len(keys)
    if all(sequence.key in keys for sequence in queue[:count]):
        return queue[count:]
    return [sequence for sequence in queue if sequence.key not in keys]
