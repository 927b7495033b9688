"""What drafts saved, less what they cost, with what is read of prompts for them and without.

Some costs are in no step's expected time: a draft model that was not asked for long computes what
it missed before it says anything, so a single try may take as long as many steps, and however
seldom tries are, they cost the same for each token. So what came of the steps with drafts is
summed up; where it is a loss, nothing is tried until steps without drafts have paid for it, and
what costs more than is left is not tried at all.

A draft model's pass over prompts is booked apart, in larger amounts: many prompts may come at once,
and what their drafts save comes later. Where that is a loss, prompts are read no more, but who has
good drafts keeps them.
"""

from __future__ import annotations

from dataclasses import dataclass

_ALLOWED = 0.02
"""of the time that steps take without drafts what may be lost"""


@dataclass(frozen=True)
class BalanceLimits:
    """In steps"""

    first: float
    """that may be lost at the start"""
    most: float
    """after drafts have won ever so much"""
    least: float
    """after which loss ever so great drafts are tried again, some time"""
    at_once: float
    """most that one observation changes; a step that took longer met with an accident"""


DRAFTING = BalanceLimits(first=8.0, most=32.0, least=-8.0, at_once=12.0)
READING = BalanceLimits(first=100.0, most=400.0, least=-100.0, at_once=40.0)


class DraftBalance:
    """In steps without drafts."""

    def __init__(self, limits: BalanceLimits) -> None:
        self._limits, self._left = limits, limits.first

    @property
    def is_spent(self) -> bool:
        """No drafts are to be tried"""
        return self._left < 0

    def allows(self, steps: float) -> bool:
        """So many may be lost"""
        return steps <= self._left

    def pay(self, steps: float) -> None:
        """Ahead of an attempt, because not each step is observed."""
        self._left = max(self._left - steps, self._limits.least)

    def step_chosen(self, steps: float = 1.0) -> None:
        """One more step begins, with drafts or without, as long as so many."""
        self._left = min(self._left + _ALLOWED * steps, self._limits.most)

    def observe(self, saved: float, took: float) -> None:
        """Steps with drafts saved so many, and took as long as so many."""
        limits = self._limits
        change = min(max(saved - took, -limits.at_once), limits.at_once)
        self._left = min(max(self._left + change, limits.least), limits.most)
