"""What an idle engine does: cached prefixes move together, and memory goes back to the system."""

from __future__ import annotations

from vivace.kv.leases import Leases

IDLE_SECONDS = 60.0
"""without a step, before pages go back: the next requests pay for fresh ones (60,000 faults for
32 prompts of 256 tokens)"""
TRIM_SECONDS = 1.0
"""the same for what the worker keeps from step to step, a few thousand faults, and for all that
loading and the warm-up left behind"""
FORGET_SECONDS = 600.0
"""without a step, before the share of the prefix cache is what it was at first"""
MAX_COPIES = 64
"""pages of one step: some 10 ms"""
MIN_SHARE = 16
"""memory goes back when at least one page in so many is not needed"""


class Compaction:
    """Cached prefixes move together, and memory goes back to the system: that of KV pages nobody
    needs, and what the worker keeps from step to step.

    Only while no lease is open and no step is in flight. `last_commit`: when the engine's last step
    ended, in seconds. `lazy`: the device gives memory to pages at the first touch."""

    def __init__(self, leases: Leases, lazy: bool) -> None:
        self._leases = leases
        self._lazy = lazy
        self.in_flight = False
        self._trimmed_since: float | None = None
        """`last_commit` of the last plan: steps since may have left memory that nobody holds"""

    def due(self, last_commit: float) -> float | None:
        """When there is something to do, if nobody lives."""
        if not self._lazy:
            return None
        if last_commit != self._trimmed_since:
            return last_commit + TRIM_SECONDS
        if (copying := self._copying_due(last_commit)) is not None:
            return copying
        return last_commit + FORGET_SECONDS if self._leases.share_grown else None

    def _copying_due(self, last_commit: float) -> float | None:
        """When prefixes may move; None: too little memory would go back. The first time, after the
        warm-up, it is not worth a longer wait."""
        groups = zip(self._leases.vacancy_in, self._leases.touched_in, strict=True)
        if all(vacant * MIN_SHARE <= touched for vacant, touched in groups):
            return None
        return last_commit + (TRIM_SECONDS if self._trimmed_since is None else IDLE_SECONDS)

    def begin(self, last_commit: float, now: float) -> list[tuple[dict[int, int], int]] | None:
        """What `Leases.compact` returns, to be run as a step; None when nothing is due or all is
        done."""
        due = self.due(last_commit)
        if due is None or due > now:
            return None
        if now >= last_commit + FORGET_SECONDS:
            self._leases.forget_returns()
        copying = self._copying_due(last_commit)
        copies = copying is not None and now >= copying
        if not copies and last_commit == self._trimmed_since:
            return None
        self._trimmed_since = last_commit
        self.in_flight = True
        if not copies:
            return [({}, touched) for touched in self._leases.touched_in]
        return self._leases.compact(MAX_COPIES)

    def commit(self) -> None:
        self.in_flight = False

    def fail(self, copying: bool) -> None:
        """Nobody knows which copies were made, and nobody lives who would read them."""
        self.in_flight = False
        if copying:
            self._leases.clear()
