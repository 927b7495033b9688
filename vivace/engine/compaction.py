"""What an idle engine does: cached prefixes move together, and memory goes back to the system:
that of KV pages nobody needs, and what the worker keeps from step to step.

Only while nobody lives and no step is in flight; a request that comes in between waits for one
small step of copies at most.
"""

from __future__ import annotations

from vivace.kv.leases import Leases
from vivace.protocol.step import Copy, StepPlan

IDLE_SECONDS = 5.0
"""without a step, before memory goes back: who chats pauses for longer, load tests do not"""
FORGET_SECONDS = 600.0
"""without a step, before the share of the prefix cache is what it was at first"""
MOST_COPIES = 64
"""pages of one step: some 10 ms"""
LEAST_SHARE = 16
"""memory goes back when at least one page in so many is not needed"""


class Compaction:
    """Plans of copies; `lazy`: the device gives memory to pages at the first touch."""

    def __init__(self, leases: Leases, lazy: bool) -> None:
        self._leases = leases
        self._lazy = lazy
        self._number: int | None = None
        """of the plan in flight"""
        self._settled: float | None = None
        """`rested` of the last plan: steps since then may have left memory that nobody holds"""

    @property
    def in_flight(self) -> bool:
        return self._number is not None

    def due(self, rested: float) -> float | None:
        """When there is something to do, if the last step landed at `rested` and nobody lives."""
        if not self._lazy:
            return None
        if self._worthwhile() or rested != self._settled:
            return rested + IDLE_SECONDS
        return rested + FORGET_SECONDS if self._leases.share_grown else None

    def _worthwhile(self) -> bool:
        return self._leases.vacancy * LEAST_SHARE > self._leases.touched

    def plan(self, number: int, rested: float, now: float, leaves: list[int]) -> StepPlan | None:
        """The next copies; None when nothing is due or all is done."""
        due = self.due(rested)
        if due is None or due > now:
            return None
        if now >= rested + FORGET_SECONDS:
            self._leases.forget_returns()
        worthwhile = self._worthwhile()
        if not worthwhile and rested == self._settled:
            return None
        self._settled = rested
        moves, vacant = (
            self._leases.compact(MOST_COPIES) if worthwhile else ({}, self._leases.touched)
        )
        self._number = number
        copies = [Copy(source, target) for source, target in moves.items()]
        return StepPlan(number=number, leaves=leaves, copies=copies, vacant=vacant)

    def landed(self) -> None:
        self._number = None

    def failed(self) -> None:
        """Nobody knows which copies were made, and nobody lives who would read them."""
        self._number = None
        self._leases.clear()
