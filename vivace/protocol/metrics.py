"""What an engine measures, as it travels."""

from __future__ import annotations

import msgspec


class Histogram(msgspec.Struct, frozen=True, array_like=True):
    """Cumulative histogram: `counts[i]` observations <= `bounds[i]`; the last bound is +inf."""

    bounds: list[float]
    counts: list[int]
    total: float


class Series(msgspec.Struct, frozen=True, array_like=True):
    """One series of a metric with labels of its own. Names in `_total` count, others are gauges."""

    name: str
    labels: dict[str, str]
    value: float | Histogram


class Metrics(msgspec.Struct, kw_only=True):
    """Engine-side metrics by SGLang's names without the `sglang:` prefix."""

    gauges: dict[str, float] = {}
    counters: dict[str, float] = {}
    histograms: dict[str, Histogram] = {}
    series: list[Series] = []


class StepCosts(msgspec.Struct, frozen=True, kw_only=True):
    """What steps take, measured before the first request."""

    tokens: list[int] = []
    """of a step, one for each of as many rows"""
    seconds: list[float] = []
    """of such a step"""
    draft_seconds: list[float] = []
    """until a drafter has proposed one token for as many rows; empty: it takes no time"""
