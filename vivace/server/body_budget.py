"""Memory for bodies: those that arrive slowly give way when there is no room for others."""

from __future__ import annotations

import time
from collections.abc import Callable

from vivace.server.responses import HTTPError

UNCOUNTED = 64 << 10
"""Bytes of a body that are not counted: small requests never wait for room."""
GRACE = 2.0
"""Seconds in which a body may be as slow as it likes."""
SLOW = 256 << 10
"""Bytes per second below which a body must give way when there is no room."""
SPAN = 2.0
"""Seconds over which the rate of a body is looked at, at least; at most two of them and a pause."""


class BodyBudget:
    """Bytes of bodies that arrive or are being decoded. Whoever finds no room is told to come
    back, unless bodies that arrive slowly can be sent away instead."""

    def __init__(self, total: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._free = total
        self._clock = clock
        self._shares: set[Share] = set()

    def share(self, give_up: Callable[[], object]) -> Share:
        """For one body; `give_up` is called when it has to give way while it arrives."""
        return Share(self, give_up, self._clock)

    def take(self, share: Share, size: int) -> None:
        """More bytes for a body; HTTPError 503 when there is no room."""
        if size > self._free:
            self._send_slow_ones_away(share, size)
        if size > self._free:
            raise HTTPError(
                503,
                "there is no room for the request body: too many large ones arrive at once",
                retry_after=1.0,
                headers={"Connection": "close"},
            )
        self._free -= size
        self._shares.add(share)

    def give(self, share: Share, size: int) -> None:
        self._free += size
        self._shares.discard(share)

    def _send_slow_ones_away(self, asking: Share, size: int) -> None:
        now = self._clock()
        slow = [
            (share.rate(now), share)
            for share in self._shares
            if share is not asking and not share.complete and now - share.began > GRACE
        ]
        for rate, share in sorted(slow, key=lambda found: found[0]):
            if rate > SLOW or size <= self._free:
                return
            share.release()
            share.give_up()


class Share:
    """What one body holds of the budget."""

    def __init__(
        self, budget: BodyBudget, give_up: Callable[[], object], clock: Callable[[], float]
    ) -> None:
        self._budget = budget
        self._clock = clock
        self._seen = 0
        self.give_up = give_up
        self.began = self._last = clock()
        self._since = self._then = (self.began, 0)
        """Two moments at least SPAN apart, the earlier first, and the bytes seen by then."""
        self.held = 0
        self.complete = False

    def take(self, size: int) -> None:
        """`size` more bytes have arrived; HTTPError 503 when there is no room for them."""
        now = self._last = self._clock()
        if now - self._then[0] >= SPAN:
            self._since, self._then = self._then, (now, self._seen)
        before = max(self._seen, UNCOUNTED)
        self._seen += size
        counted = max(self._seen, UNCOUNTED) - before
        if counted:
            self._budget.take(self, counted)
            self.held += counted

    def rate(self, now: float) -> float:
        """Bytes per second of late; 0 when none came for a while."""
        if now - self._last >= GRACE:
            return 0.0
        began, seen = self._since
        return (self._seen - seen) / max(now - began, 1e-3)

    def release(self) -> None:
        """Give everything back."""
        held, self.held = self.held, 0
        if held:
            self._budget.give(self, held)
