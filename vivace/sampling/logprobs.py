"""Log-probabilities that were asked for: of the token, of the best k, of given ids."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from vivace.platforms.ops.sampling import SamplingOps
from vivace.protocol.output import TokenLogprob
from vivace.protocol.request import LogprobOptions

Scored = list[tuple[float, int]]
"""(log-probability, token id)"""


def score(
    ops: SamplingOps,
    logits: Tensor,
    temperature: np.ndarray,
    tokens: np.ndarray,
    options: Sequence[LogprobOptions],
) -> list[TokenLogprob]:
    """One TokenLogprob for each row of logits[n, V] float32, its temperature [n] float32 and its
    token id [n] int64: log(softmax(logits / temperature))."""
    scores = _Scores(ops, logits, temperature)
    chosen = scores.of(np.arange(len(tokens)), tokens).tolist()
    tops = _top(ops, scores, [option.top for option in options])
    asked = [_asked(scores, row, option.token_ids) for row, option in enumerate(options)]
    return [
        TokenLogprob(token, logprob, top, ids)
        for token, logprob, top, ids in zip(tokens.tolist(), chosen, tops, asked, strict=True)
    ]


class _Scores:
    """Log-probabilities of logits[n, V], computed where they are looked at."""

    def __init__(self, ops: SamplingOps, logits: Tensor, temperature: np.ndarray) -> None:
        self.logits = logits
        self.vocabulary = logits.shape[1]
        self._values = logits.numpy()
        self._temperature = temperature
        self._totals = ops.log_totals(logits, temperature)

    def of(self, rows: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """[m] float32, of token `ids[m]` in `rows[m]`; -inf outside the vocabulary"""
        inside = (ids >= 0) & (ids < self.vocabulary)
        values = self._values[rows, np.where(inside, ids, 0)]
        return np.where(inside, self.normalised(rows, values), -np.inf)

    def normalised(self, rows: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Log-probabilities [m] of tokens whose logits are `values[m]`."""
        return values / self._temperature[rows] - self._totals[rows]


def _top(ops: SamplingOps, scores: _Scores, wanted: list[int]) -> list[Scored | None]:
    """The best k of each row, best first; None where k is 0."""
    most = min(max(wanted, default=0), scores.vocabulary)
    if most == 0:
        return [None] * len(wanted)
    values, ids = ops.top(scores.logits, most)
    rows = np.arange(len(wanted)).repeat(most)
    normalised = scores.normalised(rows, values.ravel()).reshape(values.shape)
    return [
        list(zip(row_values[:count], row_ids[:count], strict=True)) if count else None
        for count, row_values, row_ids in zip(
            wanted, normalised.tolist(), ids.tolist(), strict=True
        )
    ]


def _asked(scores: _Scores, row: int, ids: Sequence[int] | None) -> Scored | None:
    """The ids a request named, in its order; None when it named none."""
    if not ids:
        return None
    values = scores.of(np.full(len(ids), row), np.array(ids, np.int64))
    return list(zip(values.tolist(), ids, strict=True))
