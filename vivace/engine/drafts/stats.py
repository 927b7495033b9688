"""How many drafts there were, and how many were right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from vivace.engine.drafts.levels import FIRST_LEVEL, SPOILED
from vivace.protocol.metrics import Series

_ENDED = 0.1
"""weight of a request that ended beside those before it, in the level at which others start"""


class DraftStats:
    """Drafts since the start."""

    def __init__(self) -> None:
        self._spans = Counter[int]()
        """by their tokens"""
        self._accepted = 0
        self._since = 0, 0, 0
        """spans, drafts and accepted ones before those of which lengths and rates are told"""
        self._level = float(FIRST_LEVEL)

    @property
    def first_level(self) -> int:
        """Of new rows: what those that ended lately came to."""
        return round(self._level)

    def end(self, level: int, *, drafted: bool) -> None:
        """A row ends at that level. One that had no drafts tells nothing; it is the less sure that
        others need none."""
        reached = level if drafted and level != SPOILED else FIRST_LEVEL
        self._level += _ENDED * (reached - self._level)

    def record(self, counts: Mapping[int, int], accepted: int) -> None:
        """Of a step: how many sequences had spans of how many tokens, and how many of all drafts
        were right."""
        for tokens, spans in counts.items():
            self._spans[tokens] += spans
        self._accepted += accepted

    def restart(self) -> None:
        """Lengths and rates are those of what follows; counts are those since the start."""
        self._since = self._sums()

    def _sums(self) -> tuple[int, int, int]:
        drafts = sum(width * spans for width, spans in self.widths.items())
        return self._spans.total(), drafts, self._accepted

    def _new(self) -> tuple[int, ...]:
        return tuple(now - before for now, before in zip(self._sums(), self._since, strict=True))

    @property
    def accept_length(self) -> float | None:
        """Tokens that a step drew for a sequence, on average; None: nothing is speculated"""
        spans, _, accepted = self._new()
        return 1 + accepted / spans if spans else None

    @property
    def accept_rate(self) -> float | None:
        """Of the drafts those that were right; None: there were none"""
        _, drafts, accepted = self._new()
        return accepted / drafts if drafts else None

    @property
    def widths(self) -> dict[int, int]:
        """Drafts -> spans that had so many."""
        return {count - 1: spans for count, spans in sorted(self._spans.items())}

    def log_part(self) -> str:
        if self.accept_length is None:
            return ""
        return f"accept len: {self.accept_length:.2f}, accept rate: {self.accept_rate or 0:.2f}, "

    def gauges(self) -> dict[str, float]:
        if self.accept_length is None:
            return {}
        return {
            "spec_accept_length": self.accept_length,
            "spec_accept_rate": self.accept_rate or 0.0,
        }

    def series(self) -> list[Series]:
        return [
            Series("spec_verified_spans_total", {"drafts": str(drafts)}, float(spans))
            for drafts, spans in self.widths.items()
        ]


def tally(numbers: list[int]) -> dict[int, int]:
    """How often each of them is there. Most often all are the same, and next to always they are
    small: a `Counter` takes five times as long."""
    some = numbers[:: 1 + len(numbers) // 4]
    if len(set(some)) == 1 and numbers.count(some[0]) == len(numbers):
        return {some[0]: len(numbers)}
    try:
        packed = bytes(numbers)
    except ValueError:
        return Counter(numbers)
    number, left, found = 0, len(packed), dict[int, int]()
    while left:
        if times := packed.count(number):
            found[number] = times
            left -= times
        number += 1
    return found
