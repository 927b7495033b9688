"""What drafts are worth: the tokens that each one of a row brings, by its level and its place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from vivace.engine.drafts.levels import FIRST_LEVEL, LEVELS, probability

_OBSERVED = 0.03
"""weight of one row's draft beside those before it"""
_FORGOTTEN = 0.002
"""of what is known of a place, with each step in which nobody had a draft there: it is tried again
some time"""
_LEVELS = np.array([*(probability(level) for level in range(LEVELS)), 0.0])
"""their probabilities"""


@dataclass(frozen=True)
class DraftShape:
    """Of a row's drafts: the most there are, in how many passes they are made, and from how many
    branches each pass but the first goes on."""

    width: int
    passes: int
    branches: int = 1
    trees: bool = False

    @property
    def depth(self) -> int | None:
        """Of a tree's ways; None: a chain is as deep as it is long"""
        return self.passes if self.trees else None


class DraftGains(Protocol):
    def table(self, mean: float) -> np.ndarray:
        """[LEVELS + 1, width]: tokens that the first, second ... draft brings; ever fewer. `mean`:
        probability of the rows' levels."""
        ...

    def observe(self, counts: list[int], accepted: list[int]) -> None:
        """A step had so many tokens of each row, and so many of their first, second ... drafts
        were accepted; nothing: they were no trees."""
        ...


class ChainGains:
    """The i-th draft comes if all before it do: p^i."""

    def __init__(self, width: int) -> None:
        self._table = _LEVELS[:, None] ** np.arange(1, width + 1)

    def table(self, mean: float) -> np.ndarray:
        return self._table

    def observe(self, counts: list[int], accepted: list[int]) -> None:
        """The levels say it all."""


class TreeGains:
    """How often the draft at each place of a tree is accepted is learned, for all rows together; a
    row's share of that is the probability of its level. What comes of a draft does not depend on
    those behind it, so a tree may be cut anywhere."""

    def __init__(self, shape: DraftShape) -> None:
        first = probability(FIRST_LEVEL)
        depths = np.linspace(0, shape.passes - 1, shape.width)
        self._hoped = first**depths
        """at first, and where nobody tries: more than there will be, so that somebody does"""
        self._rates = self._hoped.copy()
        self._mean = first

    def table(self, mean: float) -> np.ndarray:
        self._mean = max(mean, 1 / LEVELS)
        falling = np.minimum.accumulate(self._rates)
        return np.minimum(np.outer(_LEVELS, falling), 1.0)

    def observe(self, counts: list[int], accepted: list[int]) -> None:
        if not accepted:
            return
        places, widths = np.arange(len(self._rates)), np.sort(np.array(counts) - 1)
        tried = len(widths) - np.searchsorted(widths, places, side="right")
        found = np.zeros(len(places))
        found[: len(accepted)] = accepted[: len(places)]
        rates = found / np.maximum(tried * self._mean, 1e-9)
        weights = np.where(tried > 0, 1 - (1 - _OBSERVED) ** tried, _FORGOTTEN)
        self._rates += weights * (np.where(tried > 0, rates, self._hoped) - self._rates)


def choose_gains(shape: DraftShape) -> DraftGains:
    return TreeGains(shape) if shape.trees else ChainGains(shape.width)
