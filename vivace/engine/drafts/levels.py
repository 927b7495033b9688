"""How likely a row's drafts are to be accepted, as its own last ones tell."""

from __future__ import annotations

LEVELS = 32
"""of how likely a draft is to be accepted, if the one before it was: level / (LEVELS - 1)"""
FIRST_LEVEL = 20
SPOILED = LEVELS
"""level of who gets none: the numbers of a step with drafts went wrong, maybe their fault"""
OBSERVED = 0.15
"""weight of one draft beside those before it"""


def probability(level: int) -> float:
    """That a draft is accepted. Nothing is certain."""
    return min(level / (LEVELS - 1), 0.98)


def next_level(level: int, drafts: int, accepted: int, depth: int | None = None) -> int:
    """Of a row whose last step had so many drafts (at least one), of which so many were accepted:
    those, and the one behind them if there was one, were tried. `depth`: of the ways that a tree
    has; None: a chain"""
    tried = max(accepted, min(accepted + 1, drafts, depth or drafts))
    weight = 1 - (1 - OBSERVED) ** tried
    before = level / (LEVELS - 1)
    after = before + weight * (accepted / tried - before)
    rounded = round(after * (LEVELS - 1))
    if rounded == level and abs(after - before) > 1e-9:  # small steps count, too
        rounded += 1 if after > before else -1
    return min(max(rounded, 0), LEVELS - 1)


def level_table(width: int, depth: int | None = None) -> list[list[list[int]]]:
    """`next_level` by [level][drafts][accepted]."""
    return [
        [
            [
                next_level(level, drafts, accepted, depth) if drafts else level
                for accepted in range(drafts + 1)
            ]
            for drafts in range(width + 1)
        ]
        for level in range(LEVELS)
    ] + [[[SPOILED] * (drafts + 1) for drafts in range(width + 1)]]
