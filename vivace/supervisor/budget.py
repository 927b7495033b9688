"""How often children may be restarted before the server gives up."""

from __future__ import annotations

from collections import deque


class CrashBudget:
    """At most `crashes` within `window` seconds are forgiven."""

    def __init__(self, crashes: int = 3, window: float = 600.0) -> None:
        self.crashes = crashes
        self.window = window
        self._times: deque[float] = deque()

    def spend(self, now: float) -> bool:
        """Book a crash; False when it is one too many."""
        while self._times and self._times[0] <= now - self.window:
            self._times.popleft()
        self._times.append(now)
        return len(self._times) <= self.crashes

    @property
    def spent(self) -> int:
        """Crashes within the window at the last booking."""
        return len(self._times)
