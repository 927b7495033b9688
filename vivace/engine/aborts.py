"""Aborts of requests that are on their way: in some frontend they wait for an engine that starts,
or their texts are tokenized. All requests meet in the engine, whichever frontend the abort came to,
so it remembers aborts and looks at what comes later."""

from __future__ import annotations

from math import inf

from vivace.protocol.messages import MAX_RID_CHARACTERS, Cancel, Request

MAX_PREFIXES = 4096


class Aborts:
    """When ids that begin with a text were aborted; the last MAX_PREFIXES texts."""

    def __init__(self) -> None:
        self._latest = -inf
        self._when: dict[str, float] = {}

    def add(self, cancel: Cancel) -> None:
        """Remember it, if it is for ids that begin with a text and says when it was asked for."""
        prefix, when = cancel.rid_prefix, cancel.when
        if prefix is None or when == inf or len(prefix) > MAX_RID_CHARACTERS:
            return
        self._latest = max(self._latest, when)
        self._when[prefix] = max(when, self._when.pop(prefix, -inf))
        if len(self._when) > MAX_PREFIXES:
            del self._when[next(iter(self._when))]

    def concern(self, request: Request) -> bool:
        """Whether somebody has asked to abort this request since it began."""
        if self._latest < request.begin:
            return False
        prefixes = (request.rid[:length] for length in range(len(request.rid) + 1))
        return any(self._when.get(prefix, -inf) >= request.begin for prefix in prefixes)
