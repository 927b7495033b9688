"""The waiting queue: order, bound, deadlines."""

from __future__ import annotations

from vivace.engine.ordering import Order
from vivace.engine.sequence import Sequence


class WaitingQueue:
    def __init__(self, order: Order, bound: int | None) -> None:
        self._order = order
        self._bound = bound
        self._waiting: list[Sequence] = []
        self._sorted = True

    def __len__(self) -> int:
        return len(self._waiting)

    def full(self, free_rows: int) -> bool:
        """True when one more would be queued beyond the bound; who may run soon is not queued."""
        return self._bound is not None and len(self._waiting) >= self._bound + free_rows

    def add(self, sequence: Sequence) -> None:
        sequence.refresh_prefix()
        self._waiting.append(sequence)
        self._sorted = False

    def remove(self, sequences: list[Sequence]) -> None:
        if not sequences:
            return
        gone = {sequence.key for sequence in sequences}
        self._waiting = [sequence for sequence in self._waiting if sequence.key not in gone]

    def ordered(self) -> list[Sequence]:
        """All that wait, next first."""
        if not self._sorted or not self._order.lasting:
            self._order.sort(self._waiting)
            self._sorted = True
        return self._waiting

    def least_important(self) -> Sequence | None:
        """Who is dropped for a more important newcomer: the last to come of the least important."""
        return min(
            self._waiting,
            key=lambda sequence: (sequence.importance, -sequence.ticket),
            default=None,
        )

    def older_than(self, moment: float) -> list[Sequence]:
        """Sequences that arrived before `moment` and never ran."""
        return [
            sequence
            for sequence in self._waiting
            if sequence.arrival < moment and not sequence.started
        ]
