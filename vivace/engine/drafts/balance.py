"""What drafts saved, less what they cost.

Some costs are in no step's expected time: a draft model that was not asked for long computes what
it missed before it says anything, so a single try may take as long as many steps, and however
seldom tries are, they cost the same for each token. So what came of the steps with drafts is
summed up; where it is a loss, nothing is tried until steps without drafts have paid for it, and
what costs more than is left is not tried at all.
"""

from __future__ import annotations

_FIRST, _MOST = 8.0, 32.0
"""steps' time that may be lost: at the start, and after drafts have won ever so much"""
_LEAST = -8.0
"""after which loss ever so great drafts are tried again, some time"""
_ALLOWED = 0.02
"""of the time that steps take without drafts what may be lost"""
_AT_ONCE = 12.0
"""most that one step changes; one that took longer met with an accident"""


class DraftBalance:
    """All in steps without drafts of the same rows."""

    def __init__(self) -> None:
        self._left = _FIRST

    @property
    def is_spent(self) -> bool:
        """No drafts are to be tried"""
        return self._left < 0

    def allows(self, steps: float) -> bool:
        """So many may be lost"""
        return steps <= self._left

    def pay(self, steps: float) -> None:
        """Ahead of an attempt, because not each step is observed."""
        self._left -= steps

    def step_chosen(self) -> None:
        """One more step begins, with drafts or without."""
        self._left = min(self._left + _ALLOWED, _MOST)

    def observe(self, saved: float, took: float) -> None:
        """Steps with drafts saved so many, and took as long as so many."""
        change = min(max(saved - took, -_AT_ONCE), _AT_ONCE)
        self._left = min(max(self._left + change, _LEAST), _MOST)
