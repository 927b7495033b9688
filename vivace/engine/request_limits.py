"""Which requests are rejected, and when it is worth trying again."""

from __future__ import annotations

from vivace.engine.sequence_table import SequenceTable
from vivace.engine.settings import EngineSettings
from vivace.protocol.messages import FINISH_ABORT, Capacity, Finish, Request

_MIN_RETRY_SECONDS = 1.0
_MAX_RETRY_SECONDS = 60.0
_PAST_WEIGHT = 0.9
"""weight of the past in the mean time between two finished requests"""


class RequestLimits:
    def __init__(self, settings: EngineSettings, capacity: Capacity) -> None:
        self._settings = settings
        self._capacity = capacity
        self._interval = _MIN_RETRY_SECONDS
        self._last_finish: float | None = None

    def request_finished(self, now: float) -> None:
        """A request ended; how fast that happens tells how long a full queue takes."""
        if self._last_finish is not None:
            latest = max(0.0, now - self._last_finish)
            self._interval = _PAST_WEIGHT * self._interval + (1 - _PAST_WEIGHT) * latest
        self._last_finish = now

    def reject_reason(
        self, request: Request, table: SequenceTable, draining: bool
    ) -> Finish | None:
        """Why a request is not even queued; None when it may be."""
        if draining:
            return _abort(503, "the server is shutting down", retry_after=_MIN_RETRY_SECONDS)
        if request.key in table.live:
            return _abort(400, f"request key {request.key} is in use")
        if request.priority is not None and self._priorities_rejected():
            return _abort(
                503,
                "this server does not use priorities (start it with "
                "--enable-priority-scheduling, or send none)",
                retry_after=_MAX_RETRY_SECONDS,  # only another server, or this one restarted, helps
            )
        return self._check_fits(request)

    def queue_full(self, waiting: int) -> Finish:
        wait = min(max(waiting * self._interval, _MIN_RETRY_SECONDS), _MAX_RETRY_SECONDS)
        return _abort(503, "the request queue is full", retry_after=round(wait, 1))

    def _priorities_rejected(self) -> bool:
        settings = self._settings
        return settings.abort_on_priority_when_disabled and not settings.priorities

    def _check_fits(self, request: Request) -> Finish | None:
        """Prompts that can never be served here; frontends check first, with more words."""
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
