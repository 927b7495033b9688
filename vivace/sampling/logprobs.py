"""Log-probabilities that were asked for: of the token, of the best k, of given ids."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from vivace.platforms.ops.sampling import SamplingOps
from vivace.protocol.messages import LogprobOptions, PromptLogprobs, TokenLogprob

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
    chosen = scores.lookup(np.arange(len(tokens)), tokens).tolist()
    tops = _top(scores, [option.top for option in options])
    requested = [_lookup(scores, row, option.token_ids) for row, option in enumerate(options)]
    return [
        TokenLogprob(token, logprob, top, ids)
        for token, logprob, top, ids in zip(tokens.tolist(), chosen, tops, requested, strict=True)
    ]


def score_prompt(
    ops: SamplingOps, logits: Tensor, tokens: np.ndarray, start: int, options: LogprobOptions
) -> PromptLogprobs:
    """log(softmax(logits)) of logits[n, V] float32 for the prompt tokens [n] int64 at position
    `start` and behind it, packed."""
    rows, ids = np.arange(len(tokens)), np.array(options.token_ids, np.int64)
    scores = _Scores(ops, logits, np.ones(len(tokens), np.float32))
    values, best = scores.top(options.top)
    chosen = scores.lookup(rows.repeat(len(ids)), np.tile(ids, len(rows)))
    return PromptLogprobs(
        start=start,
        logprobs=_pack(scores.lookup(rows, tokens), np.float32),
        top=_pack(values, np.float32),
        top_ids=_pack(best, np.int32),
        chosen=_pack(chosen, np.float32),
    )


def _pack(values: np.ndarray, kind: type[np.generic]) -> bytes:
    return values.astype(kind, copy=False).tobytes()


class _Scores:
    """Log-probabilities of logits[n, V], computed where they are looked at."""

    def __init__(self, ops: SamplingOps, logits: Tensor, temperature: np.ndarray) -> None:
        self.logits = logits
        self._ops = ops
        self.vocabulary = logits.shape[1]
        self._values = logits.numpy()
        self._temperature = temperature
        self._totals = ops.logsumexp(logits, temperature)

    def lookup(self, rows: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """[m] float32, of token `ids[m]` in `rows[m]`; -inf outside the vocabulary"""
        inside = (ids >= 0) & (ids < self.vocabulary)
        values = self._values[rows, np.where(inside, ids, 0)]
        return np.where(inside, self.normalize(rows, values), -np.inf)

    def normalize(self, rows: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Log-probabilities [m] of tokens whose logits are `values[m]`."""
        return values / self._temperature[rows] - self._totals[rows]

    def top(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """(log-probabilities, ids) [n, k] of the best k of each row, best first; k is `count`, or
        the vocabulary."""
        count = min(count, self.vocabulary)
        rows = np.arange(len(self.logits))
        if not count:
            return np.empty((len(rows), 0), np.float32), np.empty((len(rows), 0), np.int64)
        values, ids = self._ops.topk(self.logits, count)
        normalized = self.normalize(rows.repeat(count), values.ravel())
        return normalized.reshape(values.shape), ids


def _top(scores: _Scores, wanted: list[int]) -> list[Scored | None]:
    """The best k of each row, best first; None where k is 0."""
    values, ids = scores.top(max(wanted, default=0))
    return [
        list(zip(row_values[:count], row_ids[:count], strict=True)) if count else None
        for count, row_values, row_ids in zip(wanted, values.tolist(), ids.tolist(), strict=True)
    ]


def _lookup(scores: _Scores, row: int, ids: Sequence[int] | None) -> Scored | None:
    """The ids a request named, in its order; None when it named none."""
    if not ids:
        return None
    values = scores.lookup(np.full(len(ids), row), np.array(ids, np.int64))
    return list(zip(values.tolist(), ids, strict=True))
