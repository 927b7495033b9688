"""Log-probabilities that were asked for: of the token, of the best k, of given ids."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vivace.protocol.output import TokenLogprob
from vivace.protocol.request import LogprobOptions

Option = LogprobOptions


def score(logits: Tensor, tokens: Tensor, options: Sequence[Option]) -> list[TokenLogprob]:
    """One TokenLogprob for each row of logits[n, V] float32 and its token ids [n] int64."""
    total = logits.logsumexp(-1)
    chosen = (logits.gather(1, tokens.unsqueeze(1)).squeeze(1) - total).tolist()
    tops = _top(logits, total, [option.top for option in options])
    asked = _asked(logits, total, options)
    return [
        TokenLogprob(token, logprob, top, ids)
        for token, logprob, top, ids in zip(tokens.tolist(), chosen, tops, asked, strict=True)
    ]


def _top(logits: Tensor, total: Tensor, wanted: list[int]) -> list[list[tuple[float, int]] | None]:
    """The best k of each row, best first; None where k is 0."""
    most = min(max(wanted, default=0), logits.shape[1])
    if most == 0:
        return [None] * len(wanted)
    best = logits.topk(most, dim=-1)
    values = (best.values - total.unsqueeze(1)).tolist()
    ids = best.indices.tolist()
    return [
        list(zip(row_values[:count], row_ids[:count], strict=True)) if count else None
        for count, row_values, row_ids in zip(wanted, values, ids, strict=True)
    ]


def _asked(
    logits: Tensor, total: Tensor, options: Sequence[Option]
) -> list[list[tuple[float, int]] | None]:
    """The ids a request named, in its order; ids outside the vocabulary have -inf."""
    result: list[list[tuple[float, int]] | None] = [None] * len(options)
    vocabulary = logits.shape[1]
    for row, option in enumerate(options):
        if not option.token_ids:
            continue
        inside = [min(max(token, 0), vocabulary - 1) for token in option.token_ids]
        values = (logits[row, torch.tensor(inside)] - total[row]).tolist()
        result[row] = [
            (value if 0 <= token < vocabulary else float("-inf"), token)
            for value, token in zip(values, option.token_ids, strict=True)
        ]
    return result
