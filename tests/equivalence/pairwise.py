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
    pool: list[dict[str, int]] = []
    if legal is not None:
        drawn = ({n: chance.randrange(len(settings[n])) for n in names} for _ in range(DRAWS))
        pool = [row for row in drawn if legal({n: settings[n][row[n]] for n in names})]
        missing &= set().union(*(covered(row, names) for row in pool))
    rows: list[Row] = []
    while missing:
        candidates = pool or [grown(settings, names, missing, chance) for _ in range(30)]
        best = max(candidates, key=lambda row: len(covered(row, names) & missing))
        missing -= covered(best, names)
        rows.append({name: settings[name][best[name]] for name in names})
    return rows


def grown(
    settings: dict[str, list[Any]], names: list[str], missing: set[Any], chance: random.Random
) -> dict[str, int]:
    """A random row that covers at least one missing pair."""
    (a, i), (b, j) = chance.choice(sorted(missing))
    row = {name: chance.randrange(len(settings[name])) for name in names}
    return {**row, a: i, b: j}


def covered(row: dict[str, int], names: list[str]) -> set[Any]:
    return {((a, row[a]), (b, row[b])) for a, b in itertools.combinations(names, 2)}
