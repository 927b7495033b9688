"""Requests that no engine has heard of yet: a drain ends them at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar

from vivace.frontend.errors import BadRequest

_CURRENT: ContextVar[asyncio.Timeout | None] = ContextVar("unsent", default=None)


class Intake:
    """Wherever a request is before it is sent to an engine (its body arrives, it waits for an
    engine that starts, for the template process or for the tokenizer), it is ended there."""

    def __init__(self) -> None:
        self._closed = False
        self._unsent: set[asyncio.Timeout] = set()

    @asynccontextmanager
    async def admit(self) -> AsyncIterator[None]:
        """Around everything that a task does for a request. BadRequest 503 once nothing is taken
        any more, and when that comes about before `sent`."""
        if self._closed:
            raise refusal()
        unsent = asyncio.timeout(None)
        try:
            async with unsent:
                self._unsent.add(unsent)
                _CURRENT.set(unsent)
                try:
                    yield
                finally:
                    self._unsent.discard(unsent)
        except TimeoutError:
            if unsent.expired():
                raise refusal() from None
            raise

    def sent(self) -> None:
        """An engine hears of what this task does: now it is seen through."""
        if (unsent := _CURRENT.get()) is not None:
            self._unsent.discard(unsent)

    def close(self) -> None:
        """Take nothing more, and end what is not sent."""
        self._closed = True
        unsent, self._unsent = self._unsent, set()
        for request in unsent:
            request.reschedule(0.0)


def refusal() -> BadRequest:
    return BadRequest("", "the server is shutting down", 503, retry_after=5.0)
