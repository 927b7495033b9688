"""How long a step may take: from how long steps with as much work took before."""

from __future__ import annotations

FACTOR = 4.0
"""A step may take so many times what was expected of it."""
FADING = 0.98
"""Per step: how slowly a long step is forgotten."""
LARGEST_RISE = 2.0
"""One step raises what is expected by at most this factor: a stopped process is no slow device."""
UNKNOWN = 60.0
"""Seconds for the first step, before anything was measured."""
ATTENTION = 1024
"""A token of a chunk this far into its context counts double."""


def work_of(chunks: list[tuple[int, int]], decodes: int) -> int:
    """Tokens to compute, those behind a long context counted more. `chunks`: (tokens, context)."""
    return decodes + sum(count + count * context // ATTENTION for count, context in chunks)


class StepTimes:
    """Seconds expected of a step, by its work in powers of two.

    Where no step with as much work has run, a smaller one tells it in proportion: that is too much
    rather than too little, because time grows more slowly than work.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._seconds: dict[int, float] = {}

    def allowance(self, work: int) -> float:
        """Seconds after which a step with so much work is overdue; never below the patience."""
        expected = self._expected(work.bit_length())
        return UNKNOWN if expected is None else max(self._patience, FACTOR * expected)

    def learn(self, work: int, seconds: float) -> None:
        """A step with so much work took so long."""
        size = work.bit_length()
        before = self._seconds.get(size)
        if before is None:
            expected = self._expected(size)
            overdue = expected is not None and seconds > max(self._patience, FACTOR * expected)
            self._seconds[size] = LARGEST_RISE * expected if overdue and expected else seconds
        else:
            self._seconds[size] = max(min(seconds, LARGEST_RISE * before), FADING * before)

    def _expected(self, size: int) -> float | None:
        known = self._seconds
        if size in known:
            return known[size]
        smaller = max((other for other in known if other < size), default=None)
        if smaller is not None:
            return known[smaller] * 2 ** (size - smaller)
        return min((known[other] for other in known), default=None)
