"""All-pairs selection: every pair of values of two settings occurs in at least one row."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

Row = dict[str, Any]
DRAWS = 800
"""random rows among which the legal ones are"""


def pairwise(
    settings: dict[str, list[Any]], seed: int = 0, legal: Callable[[Row], bool] | None = None
) -> list[Row]:
    """Rows covering every pair of values of every two settings (greedy, deterministic). With
    `legal`, only such rows, and every pair that one of DRAWS random ones has."""
    chance = random.Random(seed)
    names = list(settings)
    missing = {
        ((a, i), (b, j))
        for a, b in itertools.combinations(names, 2)
        for i in range(len(settings[a]))
        for j in range(len(settings[b]))
    }
    pool: list[tuple[dict[str, int], set[Any]]] = []
    if legal is not None:
        drawn = ({n: chance.randrange(len(settings[n])) for n in names} for _ in range(DRAWS))
        kept = [row for row in drawn if legal({n: settings[n][row[n]] for n in names})]
        pool = [(row, covered(row, names)) for row in kept]
        missing &= set().union(*(pairs for _, pairs in pool))
    rows: list[Row] = []
    while missing:
        candidates = pool
        if not pool:
            order = sorted(missing)
            drawn = (grown(settings, names, order, chance) for _ in range(30))
            candidates = [(row, covered(row, names)) for row in drawn]
        best, pairs = max(candidates, key=lambda each: len(each[1] & missing))
        missing -= pairs
        rows.append({name: settings[name][best[name]] for name in names})
    return rows


def grown(
    settings: dict[str, list[Any]], names: list[str], missing: list[Any], chance: random.Random
) -> dict[str, int]:
    """A random row that covers at least one missing pair."""
    (a, i), (b, j) = chance.choice(missing)
    row = {name: chance.randrange(len(settings[name])) for name in names}
    return {**row, a: i, b: j}


def covered(row: dict[str, int], names: list[str]) -> set[Any]:
    return {((a, row[a]), (b, row[b])) for a, b in itertools.combinations(names, 2)}
