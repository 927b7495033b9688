"""How many drafts there were, and how many were right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import compress
from typing import TYPE_CHECKING

from vivace.engine.drafts.levels import FIRST_LEVEL, SPOILED
from vivace.protocol.metrics import Series

if TYPE_CHECKING:
    from vivace.engine.sequence import Sequence

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
        self._decodes: list[Sequence] = []
        """whose spans of the last steps are not booked yet: the same ones in all of them"""
        self._draws = self._drafts = 0
        """of each of these: spans, and drafts of those in which all had as many"""

    @property
    def first_level(self) -> int:
        """Of new rows: what those that ended lately came to."""
        return round(self._level)

    def end(self, sequence: Sequence) -> tuple[int, int, int] | None:
        """It ends at its level. One that had no drafts tells nothing; it is the less sure that
        others need none. Returns its drafts, as in `Delta`."""
        told = self.told(sequence)
        tells = sequence.num_drafts and sequence.draft_level != SPOILED
        self._level += _ENDED * ((sequence.draft_level if tells else FIRST_LEVEL) - self._level)
        return told

    def told(self, sequence: Sequence) -> tuple[int, int, int] | None:
        """Its drafts so far, as in `Delta`."""
        self._settle()
        if not sequence.num_drafts:
            return None
        drawn = sequence.num_output_tokens - sequence.num_resumed - sequence.num_forced
        steps = sequence.num_resumed + sequence.num_draws - 1
        return sequence.num_drafts, drawn - sequence.num_draws, steps

    def record(
        self,
        decodes: list[Sequence],
        planned: list[int],
        advanced: list[int],
        came: Mapping[int, int],
    ) -> None:
        """Tokens that the spans of a step had and that came of each; `came`: tally of these."""
        if 0 in came:
            drew = [count > 0 for count in advanced]
            decodes, planned = list(compress(decodes, drew)), list(compress(planned, drew))
        spans = tally(planned)
        for tokens, times in spans.items():
            self._spans[tokens] += times
        for tokens, times in came.items():
            if tokens:
                self._accepted += (tokens - 1) * times
        if decodes != self._decodes:
            self._settle()
            self._decodes = decodes
        self._draws += 1
        if len(spans) == 1:
            self._drafts += planned[0] - 1 if planned else 0
        else:
            for sequence, count in zip(decodes, planned, strict=True):
                sequence.num_drafts += count - 1

    def correct(self, sequence: Sequence, plan: int, done: int, ahead: int, *, drew: bool) -> None:
        """What `record` has of a span that moved on by `done`, of whose tokens behind the first so
        many were known: they are no drafts. One that drew nothing for its answer, since it only
        computed such tokens or the answer was over, verified nothing."""
        known = min(ahead, plan - 1) if drew else plan - 1
        if drew and not known:
            return
        sequence.num_drafts -= known
        self._accepted -= known if drew else done - 1
        self._spans[plan] -= 1
        if drew:
            self._spans[plan - known] += 1
        else:
            sequence.num_draws -= 1

    def record_ahead(self) -> None:
        """A span of known tokens drew the one behind them: a step of its request without drafts."""
        self._spans[1] += 1

    def _settle(self) -> None:
        """Tell sequences what they had in common since the last time."""
        if self._draws:
            for sequence in self._decodes:
                sequence.num_draws += self._draws
                sequence.num_drafts += self._drafts
        self._decodes, self._draws, self._drafts = [], 0, 0

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
