"""Requests that come while the engine starts, or starts again: they wait, and are answered."""

from __future__ import annotations

from vivace.frontend.engine_status import EngineStatus


class StartQueue:
    """At most `most` requests, in the order in which their bodies were complete. What they hold is
    a connection and the body's bytes, which `BodyBudget` limits: nothing is decoded before."""

    def __init__(self, engine: EngineStatus, most: int) -> None:
        self.waiting = 0
        self._engine = engine
        self._most = most

    async def wait(self) -> None:
        """Returns when the engine has come, or will not come, or too many wait already. A client
        that leaves cancels the wait."""
        if self.waiting >= self._most:
            return
        self.waiting += 1
        try:
            await self._engine.settled()
        finally:
            self.waiting -= 1
