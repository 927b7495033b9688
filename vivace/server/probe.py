"""One question to the engine for all who ask whether it generates."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

FRESH = 1.0
"""seconds for which a token, or the outcome of a question, is news enough"""


class Probe:
    """However many ask, one question at a time is put, and at most one in `FRESH` seconds."""

    def __init__(self) -> None:
        self._question: asyncio.Future[None] | None = None
        self._error: BaseException | None = None
        self._known_until = 0.0

    async def check(self, heard: float, ask: Callable[[], Awaitable[None]]) -> None:
        """Raises what `ask` raises. `heard`: time.monotonic() of the engine's last token."""
        now = time.monotonic()
        if now - heard <= FRESH:
            return
        if now >= self._known_until:
            if self._question is None:
                self._question = asyncio.ensure_future(ask())
                self._question.add_done_callback(self._answered)
            # It is seen through even when nobody waits any more, so nobody can make it begin anew.
            await asyncio.wait([self._question])
        if self._error is not None:
            raise self._error.with_traceback(None)

    def _answered(self, question: asyncio.Future[None]) -> None:
        self._question = None
        self._error = None if question.cancelled() else question.exception()
        self._known_until = time.monotonic() + FRESH
