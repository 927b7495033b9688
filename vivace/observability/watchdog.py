"""When somebody who has work makes no progress."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Alarm = Literal["quiet", "soft", "hard"]
PAUSE_SECONDS = 5.0
"""Who did not look for so long was stopped itself (a paused container, a suspended machine), and
those it looks after most likely too: that time does not count."""


@dataclass(kw_only=True)
class Watchdog:
    """Raises the alarm when somebody who has work makes no progress. Times are seconds.

    `soft` alarms are raised once per stall, at `soft` seconds; the hard one at `hard`.
    None or 0 switches one off."""

    hard: float | None
    soft: float | None
    _beats: int = -1
    _since: float = 0.0
    _looked: float = 0.0
    _warned: bool = False

    def reset(self, now: float) -> None:
        """A new process runs, or it became ready."""
        self._beats, self._since, self._looked, self._warned = -1, now, now, False

    def check(self, beats: int, idle: bool, now: float) -> Alarm:
        away, self._looked = now - self._looked, now
        if away > PAUSE_SECONDS:
            self._since += away
        if idle or beats != self._beats:
            self._beats, self._since, self._warned = beats, now, False
            return "quiet"
        stalled = now - self._since
        if self.hard and stalled >= self.hard:
            return "hard"
        if self.soft and stalled >= self.soft and not self._warned:
            self._warned = True
            return "soft"
        return "quiet"

    def stalled_seconds(self, now: float) -> float:
        return now - self._since
