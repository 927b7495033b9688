"""Trees of drafts while passes make them, on the host."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Branches:
    """Drafts that a pass goes on from: n tokens, in the order of rows."""

    rows: np.ndarray
    """[n] int64: place of the row among the trees"""
    tokens: np.ndarray
    """[n] int64"""
    sources: np.ndarray
    """[n] int64: the token of the pass before that each was drawn behind"""
    places: np.ndarray
    """[n, depth] int64: where the drafts on its way stand behind what the row knows, its own
    place the last"""
    ways: np.ndarray
    """[n] int64: which of its row's in this pass each is"""
    drafts: np.ndarray
    """[n] int64: which of its row's drafts so far each is"""


class GrowingTrees:
    """One tree for each of n rows. A draft's score is the log-probability of its way; drafts of
    equal scores count in the order in which they came, so parents come before their children, and
    the first drafts of a tree are one.

    The KV of what a pass computes stands behind what the row knows, at places that drafts give
    back which cannot be among the `counts` of the row any more. So no more places are needed than
    drafts are wanted.
    """

    def __init__(
        self, counts: np.ndarray, width: int, scores: np.ndarray, tokens: np.ndarray
    ) -> None:
        """`counts`[n]: drafts that are wanted, at most `width`. scores[n, k] <= 0, best first, and
        tokens[n, k]: what may follow what each row knows."""
        self._counts = counts
        self._width = width
        self._topk = scores.shape[1]
        self._scores = scores.astype(np.float64)
        self._tokens = tokens
        self._parents = np.full_like(tokens, -1)
        self._places = np.full_like(tokens, -1)
        """[n, drafts so far]: where the KV of each stands; -1: nowhere"""
        self._first = 0
        """of the drafts that the last pass brought"""
        self._sources = np.arange(len(counts))[:, None]
        """[n, ways]: which token of the last pass was the end of each way; -1: none"""
        self._ways = np.zeros((len(counts), 0), np.int64)
        """[tokens of the last pass, depth]: places on these ways"""

    def branch(self) -> Branches:
        """The `topk` likeliest of what the last pass brought, but those behind which nothing can
        be among the drafts that are wanted. They get places."""
        ranks = self._find_ranks()
        here = np.arange(len(ranks))[:, None]
        best = np.argsort(-self._scores[:, self._first :], axis=1, kind="stable")
        newest = best[:, : self._topk]
        chosen = newest + self._first
        needed = self._counts[:, None] - 1
        goes_on = (ranks[here, chosen] < needed) & (self._scores[here, chosen] > -np.inf)
        taken = np.zeros((len(ranks), self._width), np.bool_)
        rows, held = np.nonzero((self._places >= 0) & (ranks < needed))
        taken[rows, self._places[rows, held]] = True
        free = np.argsort(taken, axis=1, kind="stable")
        rows, ways = np.nonzero(goes_on)
        drafts = chosen[rows, ways]
        places = free[rows, np.cumsum(goes_on, axis=1)[rows, ways] - 1]
        self._places[rows, drafts] = places
        sources = self._sources[rows, newest[rows, ways] // self._topk]
        along = np.concatenate((self._ways[sources], places[:, None]), 1)
        return Branches(rows, self._tokens[rows, drafts], sources, along, ways, drafts)

    def grow(self, branches: Branches, scores: np.ndarray, tokens: np.ndarray) -> None:
        """Behind each of the branches may come what has these scores[n, k], best first."""
        rows, shape = branches.rows, (len(self._counts), self._topk, self._topk)
        found = np.full(shape, -np.inf), np.zeros(shape, np.int64), np.full(shape, -1)
        found[0][rows, branches.ways] = scores + self._scores[rows, branches.drafts][:, None]
        found[1][rows, branches.ways] = tokens
        found[2][rows, branches.ways] = branches.drafts[:, None]
        self._first, flat = self._scores.shape[1], (shape[0], -1)
        self._scores = np.concatenate((self._scores, found[0].reshape(flat)), 1)
        self._tokens = np.concatenate((self._tokens, found[1].reshape(flat)), 1)
        self._parents = np.concatenate((self._parents, found[2].reshape(flat)), 1)
        nowhere = np.full((shape[0], self._topk**2), -1)
        self._places = np.concatenate((self._places, nowhere), 1)
        self._sources = np.full(shape[:2], -1)
        self._sources[rows, branches.ways] = np.arange(len(rows))
        self._ways = branches.places

    def choose(self) -> tuple[np.ndarray, np.ndarray]:
        """(tokens, which draft each follows; -1: what is known), [n, up to width] int64 both: the
        likeliest drafts, best first."""
        ranks = self._find_ranks()
        order = np.argsort(ranks, axis=1)[:, : self._width]
        here = np.arange(len(order))[:, None]
        parents = self._parents[here, order]
        above = np.where(parents < 0, -1, ranks[here, np.maximum(parents, 0)])
        return self._tokens[here, order], above

    def _find_ranks(self) -> np.ndarray:
        """[n, drafts so far] int64: which place each has among its row's, by its score"""
        order = np.argsort(-self._scores, axis=1, kind="stable")
        ranks = np.empty_like(order)
        np.put_along_axis(ranks, order, np.broadcast_to(np.arange(order.shape[1]), order.shape), 1)
        return ranks
