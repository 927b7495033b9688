"""What a soak run calls a failure."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from vivace.bench.soak import SoakCounter, judge

STATE: dict[str, Any] = {"pid": 1, "running": 0, "waiting": 0, "used_tokens": 0, "audit": []}
GROWING = [500.0, 500.0, 530.0, 530.0, 560.0, 560.0]


@pytest.mark.parametrize(("minutes", "passed"), [(0.5, True), (5.0, False)])
def test_a_short_run_is_not_judged_by_memory(minutes: float, passed: bool) -> None:
    """The first prefixes that are kept use pages of the pool for the first time."""
    arguments = argparse.Namespace(minutes=minutes, streams=8)
    report = judge(arguments, STATE, STATE, SoakCounter(rss_mib=GROWING))
    assert report["passed"] is passed and report["rss_growth"] > 0.02


@pytest.mark.parametrize(
    "change",
    [{"pid": 2}, {"running": 1}, {"waiting": 1}, {"used_tokens": 3}, {"audit": ["page 3"]}],
)
def test_what_is_left_behind_is_found(change: dict[str, Any]) -> None:
    arguments = argparse.Namespace(minutes=0.5, streams=8)
    report = judge(arguments, STATE, {**STATE, **change}, SoakCounter(rss_mib=[500.0] * 6))
    assert not report["passed"] and len(report["findings"]) == 1
