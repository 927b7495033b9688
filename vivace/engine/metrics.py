"""Counters, gauges and histograms by SGLang's names, cheap enough for every step."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate

from vivace.protocol.control import Histogram

SECONDS_TO_FIRST_TOKEN = (
    *(0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400),
)
SECONDS_BETWEEN_TOKENS = (
    *(0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.06, 0.08),
    *(0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8),
)
SECONDS_OF_A_REQUEST = (
    *(0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400, 600, 1200),
    *(1800, 2400),
)
SECONDS_IN_QUEUE = (
    *(0.001, 0.005, 0.01, 0.05, 0.1, 0.2, 0.5, 1, 2, 3, 4, 5, 10, 15, 20, 30, 40, 50, 60),
    *(70, 80, 90, 100, 200, 300, 400, 500, 600, 700, 800, 900, 1000, 1200, 1400, 1600),
)
RETRACTIONS_OF_A_REQUEST = (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 15, 20, 25, 30, 50, 75, 100)
TOKENS_OF_A_REQUEST = (
    *(100, 300, 500, 700, 1000, 1500, 2000, 3000, 4000, 5000, 6000, 7000, 8000, 9000, 10000),
    *(12000, 15000, 20000, 22000, 25000, 30000, 35000, 40000, 66000, 99000, 132000, 300000),
)


class Distribution:
    """Counts observations per bucket; `snapshot` makes them cumulative."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = sorted({*(float(bound) for bound in bounds), math.inf})
        self._counts = [0] * len(self._bounds)
        self._total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self._counts[bisect_left(self._bounds, value)] += times
        self._total += value * times

    def observe_since(self, moments: Iterable[float], now: float) -> None:
        """`now - moment` for each; a step's moments are mostly equal, so they are grouped."""
        for moment, times in Counter(moments).items():
            self.observe(now - moment, times)

    def snapshot(self) -> Histogram:
        return Histogram(self._bounds, list(accumulate(self._counts)), self._total)
