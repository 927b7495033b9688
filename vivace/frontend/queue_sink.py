"""A sink that an asyncio reader waits on; it holds one merged piece at most, so it is bounded by
the answer itself."""

from __future__ import annotations

import asyncio

from vivace.frontend.request_output import RequestOutput, merge


class QueueSink:
    """For one reader on the loop that also calls `push`."""

    __slots__ = ("_piece", "_waiter")

    def __init__(self) -> None:
        self._piece: RequestOutput | None = None
        self._waiter: asyncio.Future[None] | None = None

    def push(self, piece: RequestOutput) -> None:
        self._piece = piece if self._piece is None else merge(self._piece, piece)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def next(self) -> RequestOutput:
        """All that has come since the last call; waits when that is nothing."""
        while self._piece is None:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        piece, self._piece = self._piece, None
        return piece
