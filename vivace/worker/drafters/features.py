"""What a head needs of the model between steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from vivace.platforms.host import upload
from vivace.platforms.rows import Spans

FEW_ROWS = 8
"""of a step, whose requests get no gaps: to read the head's weights for them costs little beside
the model's, and drafts may pay again at any time"""


class KeptFeatures:
    """Features of the last tokens that the model computed for each row: a ring of `most` of them.
    `widths`: of what the model hands out, [T, width] each."""

    def __init__(
        self,
        rows: int,
        most: int,
        widths: Sequence[int],
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._most = most
        self._stores = [
            torch.zeros(rows * most, width, dtype=dtype, device=device) for width in widths
        ]
        self.first, self.end = (np.zeros(rows, np.int64) for _ in range(2))
        """[rows]: positions of those that are kept: from `first` on, in front of `end`"""

    @property
    def numbers(self) -> int:
        """of the type of activations, that it has room for"""
        return sum(store.numel() for store in self._stores)

    def clear(self, row: int) -> None:
        self.first[row] = self.end[row] = 0

    def keep(self, spans: Spans, features: Sequence[Tensor]) -> None:
        """Of a step's tokens, [T, width] each."""
        rows, ends = spans.rows, spans.before + spans.counts
        kept = np.minimum(spans.counts, self._most)
        sources = _ranges(spans.starts[1:] - kept, kept)
        targets = np.repeat(rows * self._most, kept) + _ranges(ends - kept, kept) % self._most
        for store, one in zip(self._stores, features, strict=True):
            chosen = one.index_select(0, upload(sources, one.device))
            store.index_copy_(0, upload(targets, one.device), chosen.to(store.dtype))
        follows = (self.first[rows] <= spans.before) & (spans.before <= self.end[rows])
        first = np.where(follows, self.first[rows], spans.before)
        self.first[rows] = np.maximum(first, ends - self._most)
        self.end[rows] = ends

    def choose(
        self, rows: np.ndarray, counts: np.ndarray, known: np.ndarray, done: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """(which of these rows a head can compute up to `known`, [n] bool; from where on each,
        [n] int64). It has computed what is in front of `done`; `counts`: drafts that are wanted."""
        first = np.maximum(np.minimum(done, known - 1), self.first[rows])
        able = (first < known) & (self.end[rows] >= known)
        return able & ((counts > 0) | (len(rows) <= FEW_ROWS)), first

    def find(self, rows: np.ndarray, first: np.ndarray, counts: np.ndarray) -> list[Tensor]:
        """Of so many positions of each of these rows from `first` on, [sum of counts, width]
        each."""
        chosen = np.repeat(rows * self._most, counts) + _ranges(first, counts) % self._most
        return [store.index_select(0, upload(chosen, store.device)) for store in self._stores]


def _ranges(first: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """`counts[i]` numbers from `first[i]` on, one range behind the other."""
    offsets = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.repeat(first, counts) + offsets
