"""What drafts of trees are worth is learned by their places."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from vivace.engine.drafts.gains import DraftShape, TreeGains
from vivace.engine.drafts.levels import FIRST_LEVEL, next_level
from vivace.engine.drafts.widths import AdaptiveWidth
from vivace.protocol.metrics import StepCosts
from vivace.protocol.step import StepResult

PARENTS = [-1, 0, -1, 1, 0, -1, 2, 3]
SHARES = [0.6, 0.7, 0.25, 0.7, 0.15, 0.1, 0.5, 0.1]
"""how often each of these is the one that comes, if its parent did"""
SHAPE = DraftShape(len(PARENTS), passes=4, branches=2, trees=True)


def accept(count: int, draw: random.Random) -> list[int]:
    """Places of what is accepted of the first `count` drafts."""
    found, at = list[int](), -1
    while True:
        chance, chosen = draw.random(), None
        for place in (place for place in range(count) if PARENTS[place] == at):
            if chosen is None and chance < SHARES[place]:
                chosen = place
            chance -= SHARES[place]
        if chosen is None:
            return found
        found.append(chosen)
        at = chosen


def expected(count: int) -> float:
    """Of the first `count` drafts those that are accepted."""
    rates = list[float]()
    for parent, share in zip(PARENTS[:count], SHARES, strict=False):
        rates.append(share * (rates[parent] if parent >= 0 else 1.0))
    return sum(rates)


def simulate(cost: float, steps: int = 1500) -> list[int]:
    """Widths of a lone row whose draft takes `cost` of a step, when all is learned."""
    costs = StepCosts(tokens=[1, 64], seconds=[1.0, 1.0 + 63 * cost], draft_seconds=[0.0, 0.0])
    chosen, draw = AdaptiveWidth(SHAPE, costs), random.Random(1)
    row: Any = SimpleNamespace(
        draft_level=FIRST_LEVEL,
        ready_drafts=SHAPE.width,
        tokens=[1],
        drafted_len=1,
    )
    widths = list[int]()
    for _ in range(steps):
        (count,) = chosen.choose([row])
        places = accept(count - 1, draw)
        counts = [int(place in places) for place in range(max(places, default=-1) + 1)]
        tokens = [[0] * (1 + len(places))]
        result = StepResult(
            number=1, advanced=[len(tokens[0])], tokens=tokens, accepted_drafts=counts
        )
        chosen.observe([count], 1.0 + (count - 1) * cost, result)
        if count > 1:
            row.draft_level = next_level(row.draft_level, count - 1, len(places), SHAPE.depth)
        widths.append(count - 1)
    return widths[steps // 2 :]


@pytest.mark.parametrize("cost", [0.01, 0.05, 0.1, 0.3])
def test_the_widths_come_near_the_best_one(cost: float) -> None:
    rates = [(1 + expected(width)) / (1 + cost * width) for width in range(SHAPE.width + 1)]
    widths = simulate(cost)
    reached = sum(1 + expected(width) for width in widths) / sum(
        1 + cost * width for width in widths
    )
    assert reached > 0.95 * max(rates)


def test_a_place_that_nobody_tries_is_hoped_for_again() -> None:
    gains = TreeGains(SHAPE)
    hoped = gains.table(0.6)[FIRST_LEVEL].tolist()
    for _ in range(200):
        gains.observe([9, 9], [1])
    learned = gains.table(0.6)[FIRST_LEVEL].tolist()
    assert all(one < other for one, other in zip(learned, hoped, strict=True))
    assert learned == sorted(learned, reverse=True) and learned[1] < 0.01
    for _ in range(2000):
        gains.observe([2], [1])
    assert gains.table(0.6)[FIRST_LEVEL].tolist()[4] > 0.9 * hoped[4]
    assert gains.table(0.6)[-1].tolist() == [0.0] * SHAPE.width
    chain = gains.table(0.6).tolist()
    gains.observe([4, 4], [])
    assert gains.table(0.6).tolist() == chain
