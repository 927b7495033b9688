"""How many tokens of a prompt the next step takes, so that steps of a pipeline take as long as each
other (SGLang's --enable-dynamic-chunking)."""

from __future__ import annotations

import math
from typing import Protocol

FORGET = 0.9
"""of what older steps say, with each further one"""
LEAST_PART = 4
"""the shortest chunk is such a part of the longest"""
ALIGNMENT = 64
"""tokens; kernels divide rows into tiles"""
DISTINCT = 1e-6
"""steps have to differ so much before their times say what a token of context costs"""


class ChunkSizes(Protocol):
    def predict(self, context: int) -> int | None:
        """Tokens of a chunk behind so many; None: prompts stay whole"""
        ...

    def observe(self, tokens: int, pairs: float, seconds: float) -> None:
        """A step of chunks only. `pairs`: of a token and one that it attends to"""
        ...


class FixedChunkSize:
    """As many tokens wherever a chunk begins."""

    def __init__(self, size: int | None) -> None:
        self._size = size

    def predict(self, context: int) -> int | None:
        return self._size

    def observe(self, tokens: int, pairs: float, seconds: float) -> None:
        """Its size does not depend on times."""


class ChunkSizePredictor:
    """Chunks that take as long as `size` tokens at the beginning of a prompt.

    A step takes seconds for each of its tokens and for each pair of a token and one before it; both
    are fitted to the last steps by least squares. (SGLang fits them to steps that it makes up at
    the start.) A chunk of x tokens behind a context of n has x * (n + x / 2) pairs. `smoothing`:
    how far, 0..1, a chunk goes from `size` to what is predicted.
    """

    def __init__(self, size: int, smoothing: float) -> None:
        self._size = size
        self._smoothing = smoothing
        self._products = [0.0, 0.0, 0.0]
        """sums of tokens * tokens, tokens * pairs, pairs * pairs"""
        self._times = [0.0, 0.0]
        """sums of tokens * seconds, pairs * seconds"""

    def observe(self, tokens: int, pairs: float, seconds: float) -> None:
        products = (tokens * tokens, tokens * pairs, pairs * pairs)
        times = (tokens * seconds, pairs * seconds)
        self._products = [
            FORGET * old + new for old, new in zip(self._products, products, strict=True)
        ]
        self._times = [FORGET * old + new for old, new in zip(self._times, times, strict=True)]

    def predict(self, context: int) -> int:
        share = self._pair_share()
        if not share or not context:
            return self._size
        # share / 2 * x**2 + (1 + share * context) * x = what `size` tokens at the beginning take
        wanted = self._size * (1 + share * self._size / 2)
        slope = 1 + share * context
        exact = 2 * wanted / (math.sqrt(slope * slope + 2 * share * wanted) + slope)
        smooth = int(self._size + self._smoothing * (exact - self._size))
        aligned = smooth // ALIGNMENT * ALIGNMENT or smooth
        return max(1, self._size // LEAST_PART, min(aligned, self._size))

    def _pair_share(self) -> float:
        """What a pair takes of what a token takes; 0: not known yet, or less than can be seen."""
        tokens, both, pairs = self._products
        determinant = tokens * pairs - both * both
        if determinant <= DISTINCT * tokens * pairs:
            return 0.0
        by_token = self._times[0] * pairs - self._times[1] * both
        by_pair = self._times[1] * tokens - self._times[0] * both
        return by_pair / by_token if by_token > 0 and by_pair > 0 else 0.0


def choose_chunk_sizes(size: int | None, *, dynamic: bool, smoothing: float) -> ChunkSizes:
    if size is None or not dynamic:
        return FixedChunkSize(size)
    return ChunkSizePredictor(size, smoothing)
