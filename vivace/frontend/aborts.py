"""Aborts of requests that are on their way: in the queue for an engine that starts, or while their
texts are tokenized, nobody has them in a table yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from math import inf

from vivace.protocol.messages import FINISH_ABORT, Finish

ABORTED = Finish(type=FINISH_ABORT, message="aborted by request")
CURRENT_BEGIN: ContextVar[float] = ContextVar("begin", default=inf)
"""When what this task does was asked for, in seconds of the frontend's clock."""
MAX_ABORTS = 1024


class Aborts:
    """The last MAX_ABORTS."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._aborts: deque[tuple[float, str]] = deque(maxlen=MAX_ABORTS)

    def add(self, rid_prefix: str) -> None:
        """Abort what has been asked for by now; "" means all."""
        self._aborts.append((self._clock(), rid_prefix))

    def concern(self, rid: str) -> bool:
        """Whether the request that this task is about to start was aborted."""
        begin = CURRENT_BEGIN.get()
        for when, rid_prefix in reversed(self._aborts):
            if when < begin:
                return False
            if rid.startswith(rid_prefix):
                return True
        return False
