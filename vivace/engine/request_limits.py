"""What is turned away at the door, and when it is worth coming back."""

from __future__ import annotations

from vivace.engine.sequence_table import SequenceTable
from vivace.engine.settings import EngineSettings
from vivace.protocol.control import Capacity
from vivace.protocol.output import FINISH_ABORT, Finish
from vivace.protocol.request import Request

_SHORTEST_RETRY = 1.0
_LONGEST_RETRY = 60.0
_MEMORY = 0.9
"""weight of the past in the mean time between two finished requests"""


class RequestLimits:
    def __init__(self, settings: EngineSettings, capacity: Capacity) -> None:
        self._settings = settings
        self._capacity = capacity
        self._interval = _SHORTEST_RETRY
        self._last_finish: float | None = None

    def finished(self, now: float) -> None:
        """A request ended; how fast that happens tells how long a full queue takes."""
        if self._last_finish is not None:
            latest = max(0.0, now - self._last_finish)
            self._interval = _MEMORY * self._interval + (1 - _MEMORY) * latest
        self._last_finish = now

    def refusal(self, request: Request, roster: SequenceTable, draining: bool) -> Finish | None:
        """Why a request is not even queued; None when it is welcome."""
        if draining:
            return _abort(503, "the server is shutting down", retry_after=_SHORTEST_RETRY)
        if request.key in roster.live:
            return _abort(400, f"request key {request.key} is in use")
        if request.priority is not None and self._priority_unwelcome():
            return _abort(
                503,
                "this server does not use priorities (start it with "
                "--enable-priority-scheduling, or send none)",
                retry_after=_LONGEST_RETRY,  # only another server, or this one restarted, helps
            )
        return self._misfit(request)

    def queue_full(self, waiting: int) -> Finish:
        wait = min(max(waiting * self._interval, _SHORTEST_RETRY), _LONGEST_RETRY)
        return _abort(503, "the request queue is full", retry_after=round(wait, 1))

    def _priority_unwelcome(self) -> bool:
        settings = self._settings
        return settings.abort_on_priority_when_disabled and not settings.priorities

    def _misfit(self, request: Request) -> Finish | None:
        """Prompts no device state can serve; the edge checks too, with nicer words."""
        capacity, tokens = self._capacity, request.tokens
        known = len(tokens) + len(request.resumed)
        if not tokens:
            return _abort(400, "the prompt is empty")
        if known > capacity.context:
            return _abort(
                400, f"the prompt has {known} tokens, the context length is {capacity.context}"
            )
        if known > capacity.tokens:
            return _abort(
                400,
                f"the prompt has {known} tokens, the KV cache holds {capacity.tokens}; "
                "shorten it, or give the server more memory",
            )
        for ids in (tokens, request.resumed):
            if ids and (min(ids) < 0 or max(ids) >= capacity.vocabulary):
                return _abort(400, f"token ids must be in [0, {capacity.vocabulary})")
        return None


def _abort(status: int, message: str, retry_after: float | None = None) -> Finish:
    return Finish(FINISH_ABORT, message=message, status=status, retry_after=retry_after)
