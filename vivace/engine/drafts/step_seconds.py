"""What steps take on this device: measured when the engine started, and learned since.

What was measured then, when the machine had nothing else to do, errs; for all sizes of steps by
much the same factor, and for sizes that are near each other by nearly the same. So each step that
is timed tells something of all sizes (a Kalman filter over the logarithms of these factors, the
passes of drafts among them), and a size that nobody has seen since does not look cheap for that.
"""

from __future__ import annotations

from bisect import bisect_left
from math import log

import numpy as np

from vivace.protocol.metrics import StepCosts

_SIZES = (
    *(*range(1, 9), *range(10, 17, 2), *range(20, 33, 4), *range(40, 65, 8)),
    *(80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 896, 1024),
    *(1280, 1536, 1792, 2048, 3072, 4096, 8192),
)
"""tokens of a step whose times are kept; between them they lie on a line"""
_FIRST_ERROR, _FIRST_OWN_ERROR = 0.3, 0.25
"""of what was measured at the start, as logarithms (standard deviations): common to all, and of one
size beside the others"""
_DRIFT, _OWN_DRIFT = 0.03, 0.005
"""of both, from step to step"""
_NOISE = 0.1
"""of the time of one step"""
_NEIGHBOR = 0.5
"""of a size's own error the share that one of twice as many tokens has, too"""
_LARGEST_ERROR = log(3)
"""of a step beside what was expected: one that took longer met with an accident"""


class StepSeconds:
    """Seconds that steps take; one of more tokens never takes less."""

    def __init__(self, costs: StepCosts) -> None:
        drafts = costs.draft_seconds or [0.0] * len(costs.tokens)
        self._seconds = _extend(costs.tokens, costs.seconds)
        self._drafts = _extend(costs.tokens, drafts)
        own = _similarity()
        self._errors = np.zeros(len(own))
        """logarithms of factors: of each size, then of the drafts"""
        self._covariance = _FIRST_ERROR**2 + _FIRST_OWN_ERROR**2 * own
        self._drift = _DRIFT**2 + _OWN_DRIFT**2 * own
        self._draft_factor = 1.0
        self._table: np.ndarray | None = None
        """of seconds, until a step tells more"""

    def step(self, tokens: int) -> float:
        return float(np.interp(tokens, _SIZES, self._rising()))

    def steps(self, tokens: np.ndarray) -> np.ndarray:
        """As `step`, of each of these."""
        return np.interp(tokens, _SIZES, self._rising())

    def _rising(self) -> np.ndarray:
        if self._table is None:
            self._table = np.maximum.accumulate(self._seconds * np.exp(self._errors[:-1]))
        return self._table

    def draft(self, rows: int) -> float:
        """One more draft for each of so many rows."""
        return float(np.interp(rows, _SIZES, self._drafts)) * self._draft_factor

    def observe(self, tokens: int, drafting: float, seconds: float) -> None:
        """A step took so long, of which its drafts should have taken `drafting`."""
        if tokens > _SIZES[-1]:
            return
        place = bisect_left(_SIZES, tokens)
        alone = self._seconds[place] * np.exp(self._errors[place])
        share = alone / (alone + drafting)
        error = log(max(seconds, 1e-9) / (alone + drafting))
        error = min(max(error, -_LARGEST_ERROR), _LARGEST_ERROR)
        covariance = self._covariance
        covariance += self._drift
        seen = share * covariance[place] + (1 - share) * covariance[-1]
        gain = seen / (share * seen[place] + (1 - share) * seen[-1] + _NOISE**2)
        self._errors += gain * error
        covariance -= np.outer(gain, seen)
        self._draft_factor = float(np.exp(self._errors[-1]))
        self._table = None


def _similarity() -> np.ndarray:
    """[len(_SIZES) + 1, the same]: of errors that sizes have of their own; the drafts' are like
    nobody's."""
    sizes = np.log2(_SIZES)
    similar = np.eye(len(sizes) + 1)
    similar[:-1, :-1] = _NEIGHBOR ** np.abs(sizes[:, None] - sizes)
    return similar


def _extend(tokens: list[int], seconds: list[float]) -> np.ndarray:
    """[len(_SIZES)] seconds: behind the last of `tokens` (ascending) they grow as those do."""
    sizes = np.array(_SIZES)
    return np.interp(sizes, tokens, seconds) * np.maximum(1.0, sizes / tokens[-1])
