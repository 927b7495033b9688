"""Whether there is an engine, as the edge knows it."""

from __future__ import annotations

import asyncio


class EngineStatus:
    """Changed by the frontend on its loop; anybody there may wait for it."""

    def __init__(self) -> None:
        self.up = False
        """It takes messages."""
        self.down_because = ""
        """Why there will be none any more."""
        self._draining = False
        self._settled = asyncio.Event()

    @property
    def status(self) -> str:
        """ "starting" (or restarting), "ready", "draining" or "down"."""
        if self.down_because:
            return "down"
        if self._draining:
            return "draining"
        return "ready" if self.up else "starting"

    async def settled(self) -> None:
        """Returns when `status` is not "starting"; who asked first goes on first."""
        while self.status == "starting":
            await self._settled.wait()

    def ready(self) -> None:
        self.up, self.down_because = True, ""
        self._settled.set()

    def drain(self) -> None:
        """Nothing new is taken, whatever comes."""
        self._draining = True
        self._settled.set()

    def restarting(self) -> None:
        """It has died, and another one starts."""
        self.up = False
        if not self._draining:
            self._settled.clear()

    def down(self, reason: str) -> None:
        """It has died, or did not start, and that was the last one."""
        self.up, self.down_because = False, reason or "it has ended"
        self._settled.set()
