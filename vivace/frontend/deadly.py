"""What was found to kill engines, so that a client that tries again does not do it again."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b

import msgspec

from vivace.protocol.request import Request

MEMORY_SECONDS = 600.0
MOST = 1024


class DeadlyRequests:
    """Remembers contents (prompt and sampling, whatever the seed) for ten minutes."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._until: dict[bytes, float] = {}
        self._encoder = msgspec.msgpack.Encoder()

    def add(self, request: Request) -> None:
        if len(self._until) >= MOST:
            self._until.pop(next(iter(self._until)))
        self._until[self._content(request)] = self._clock() + MEMORY_SECONDS

    def __contains__(self, request: Request) -> bool:
        return bool(self._until) and self._until.get(self._content(request), 0.0) > self._clock()

    def _content(self, request: Request) -> bytes:
        sampling = msgspec.structs.replace(request.sampling, seed=0)
        content = (request.tokens, sampling, request.logprobs)
        return blake2b(self._encoder.encode(content), digest_size=16).digest()
