"""All-pairs selection: every pair of values of two settings occurs in at least one row."""

from __future__ import annotations

import itertools
import random
from typing import Any

Row = dict[str, Any]


def pairwise(settings: dict[str, list[Any]], seed: int = 0) -> list[Row]:
    """Rows covering every pair of values of every two settings (greedy, deterministic)."""
    chance = random.Random(seed)
    names = list(settings)
    missing = {
        ((a, i), (b, j))
        for a, b in itertools.combinations(names, 2)
        for i in range(len(settings[a]))
        for j in range(len(settings[b]))
    }
    rows: list[Row] = []
    while missing:
        candidates = [grown(settings, names, missing, chance) for _ in range(30)]
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
