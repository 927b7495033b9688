"""What was said of a response that is made in the background, for who comes to read it later."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from vivace.server.responses import HTTPError

EVENT_OVERHEAD = 64
"""Bytes of one beside its text, about."""
MOST_EVENTS = 256
"""that are handed out at a time"""


class EventHistory:
    """Events of one response; the oldest ones are cut off when there is no room for all."""

    def __init__(self) -> None:
        self.first = 0
        self.size = 0
        self._events: list[bytes] = []
        self._news = asyncio.Event()

    @property
    def following(self) -> int:
        return self.first + len(self._events)

    def add(self, first: int, events: Sequence[bytes]) -> None:
        if first != self.following:  # what is between was kept by a process that has ended
            self.first, self.size, self._events = first, 0, []
        self._events += events
        self.size += sum(map(event_size, events))
        self.tell()

    def cut(self) -> bool:
        """Forget the older half; False: there is none."""
        half = (len(self._events) + 1) // 2
        self.size -= sum(map(event_size, self._events[:half]))
        self._events = self._events[half:]
        self.first += half
        return half > 0

    def behind(self, number: int) -> list[bytes]:
        """Some of those from this one on. HTTPError 400 when they were cut off."""
        if number < self.first:
            raise HTTPError(
                400,
                f"starting_after: events before number {self.first} have made room for others; ask "
                "for the response without stream",
                param="starting_after",
            )
        start = number - self.first
        return self._events[start : start + MOST_EVENTS]

    def tell(self) -> None:
        """Wake up who waits for more."""
        self._news.set()
        self._news = asyncio.Event()

    async def more(self) -> None:
        await self._news.wait()


def event_size(event: bytes) -> int:
    return EVENT_OVERHEAD + len(event)
