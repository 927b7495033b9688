"""What an idle engine does: cached prefixes move together, and memory goes back to the system:
that of KV pages nobody needs, and what the worker keeps from step to step.

Only while nobody lives and no step is in flight; a request that comes in between waits for one
small step of copies at most.
"""

from __future__ import annotations

from vivace.kv.leases import Leases
from vivace.protocol.step import Copy, StepPlan

IDLE_SECONDS = 60.0
"""without a step, before memory goes back: the next requests pay for fresh pages (60,000
faults for 32 prompts of 256 tokens)"""
FORGET_SECONDS = 600.0
"""without a step, before the share of the prefix cache is what it was at first"""
MAX_COPIES = 64
"""pages of one step: some 10 ms"""
MIN_SHARE = 16
"""memory goes back when at least one page in so many is not needed"""


class Compaction:
    """Plans of copies; `lazy`: the device gives memory to pages at the first touch."""

    def __init__(self, leases: Leases, lazy: bool) -> None:
        self._leases = leases
        self._lazy = lazy
        self.in_flight = False
        self._compacted_since: float | None = None
        """`last_commit` of the last plan: steps since may have left memory that nobody holds"""

    def due(self, last_commit: float) -> float | None:
        """When there is something to do, if nobody lives."""
        if not self._lazy:
            return None
        if self._worthwhile() or last_commit != self._compacted_since:
            return last_commit + IDLE_SECONDS
        return last_commit + FORGET_SECONDS if self._leases.share_grown else None

    def _worthwhile(self) -> bool:
        return self._leases.vacancy * MIN_SHARE > self._leases.touched

    def plan(
        self, number: int, last_commit: float, now: float, rows_to_free: list[int]
    ) -> StepPlan | None:
        """The next copies; None when nothing is due or all is done."""
        due = self.due(last_commit)
        if due is None or due > now:
            return None
        if now >= last_commit + FORGET_SECONDS:
            self._leases.forget_returns()
        worthwhile = self._worthwhile()
        if not worthwhile and last_commit == self._compacted_since:
            return None
        self._compacted_since = last_commit
        moves, vacant = (
            self._leases.compact(MAX_COPIES) if worthwhile else ({}, self._leases.touched)
        )
        self.in_flight = True
        copies = [Copy(source, target) for source, target in moves.items()]
        return StepPlan(number=number, leaves=rows_to_free, copies=copies, vacant=vacant)

    def commit(self) -> None:
        self.in_flight = False

    def fail(self) -> None:
        """Nobody knows which copies were made, and nobody lives who would read them."""
        self.in_flight = False
        self._leases.clear()
