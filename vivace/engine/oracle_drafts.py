"""Drafts of the oracle: what it draws at a position, or often enough something else."""

from __future__ import annotations

from vivace.engine.oracle import oracle_token, splitmix64

RIGHT, OF = 2, 3


class OracleDrafts:
    """Two of three are right, where no stop id is drawn early or masked."""

    def __init__(self, vocabulary: int) -> None:
        self._vocabulary = vocabulary

    def __call__(self, seed: int, position: int) -> int:
        if splitmix64(seed ^ (position << 20)) % OF < RIGHT:
            return oracle_token(seed, position, self._vocabulary)
        return position % self._vocabulary
