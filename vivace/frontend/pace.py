"""Long work on the event loop, in slices: nobody's stream waits for one body or one answer."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from time import perf_counter
from typing import Any, TypeVar

T = TypeVar("T")

SLICE = 0.002
"""Seconds of one slice."""

Work = Generator[None, None, T]
"""Work that yields after every bit of it (well below a slice) and returns its result."""

_MORE: Any = object()


class Pace:
    """Runs work a slice at a time. All work of a server takes turns: a turn of the loop has one
    slice of it, however many clients ask for work."""

    def __init__(self, seconds: float = SLICE) -> None:
        self._seconds = seconds
        self._turn = asyncio.Lock()
        self._used = 0.0
        """When a slice was used up last."""

    async def run(self, work: Work[T]) -> T:
        """The result of `work`, which ends early when the caller is cancelled."""
        try:
            idle = perf_counter() - self._used > self._seconds
            result = self._slice(work) if idle else _MORE  # most work is done at once
            while result is _MORE:
                await asyncio.sleep(0)
                async with self._turn:
                    result = self._slice(work)
            return result
        finally:
            work.close()

    def _slice(self, work: Work[T]) -> T:
        """The result, or `_MORE` when a slice was not enough for it."""
        until = perf_counter() + self._seconds
        try:
            next(work)
            while perf_counter() < until:
                next(work)
        except StopIteration as end:
            return end.value
        self._used = perf_counter()
        return _MORE


def run_now(work: Work[T]) -> T:
    """The result of `work`, all of it now."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value
