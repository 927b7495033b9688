"""Drawing a token: a pure function of (seed, position, the row's own logits).

The uniform number for position p is `splitmix64(splitmix64(seed) ^ p)`: counter based, so it needs
no generator state, and a request draws the same numbers alone, in any batch, after a retraction or
a restart. The token is found by inverting the distribution in the order of token ids. That order,
and a cut that is a threshold on probabilities (tokens tied at the cut stay), do not depend on how
a library sorts ties or on how many candidates another row of the batch asked for. Rows never mix:
every operation here reduces along the vocabulary of one row.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_A = np.uint64(0xBF58476D1CE4E5B9)
_MIX_B = np.uint64(0x94D049BB133111EB)
_MANTISSA = np.uint64(11)
CANDIDATES = (128, 2048)
"""how many of the most probable tokens the search for a nucleus ranks, before it sorts them all"""


def splitmix64(words: np.ndarray) -> np.ndarray:
    """One output of splitmix64 (Steele, Lea, Flood 2014) for each uint64 state."""
    words = words + _GAMMA
    words = (words ^ (words >> np.uint64(30))) * _MIX_A
    words = (words ^ (words >> np.uint64(27))) * _MIX_B
    return words ^ (words >> np.uint64(31))


def uniforms(seeds: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """A float64 in [0, 1) for each (seed uint64, position of the token to draw)."""
    words = splitmix64(splitmix64(seeds) ^ positions.astype(np.uint64))
    return (words >> _MANTISSA).astype(np.float64) * 2.0**-53


def invert(weights: Tensor, uniform: Tensor) -> Tensor:
    """Token ids [n]: the first id whose cumulative weight exceeds uniform * total.

    `weights[n, V]` float32, not negative, at least one positive a row; `uniform[n]` float64.
    Sums are float64: with float32 the tail of a large vocabulary would get lost in rounding.
    """
    cumulative = weights.cumsum(-1, dtype=torch.float64)
    targets = uniform.unsqueeze(1) * cumulative[:, -1:]
    found = torch.searchsorted(cumulative, targets, right=True).squeeze(1)
    last = torch.searchsorted(cumulative, cumulative[:, -1:].contiguous()).squeeze(1)
    return torch.minimum(found, last)


def cut(probabilities: Tensor, top_k: np.ndarray, top_p: np.ndarray, min_p: np.ndarray) -> Tensor:
    """Set to zero, in place, what top-k, top-p and min-p of each row exclude.

    All three look at the same probabilities [n, V] (nothing is renormalised in between, as in
    SGLang): rank >= top_k (0 = all); probability mass before the token > top_p; less than min_p
    times the largest.
    """
    threshold = probabilities.amax(-1) * torch.from_numpy(min_p)
    _raise(threshold, _kth_largest(probabilities, top_k), np.flatnonzero(top_k > 0))
    _raise(threshold, _nucleus(probabilities, top_p), np.flatnonzero(top_p < 1.0))
    return probabilities.masked_fill_(probabilities < threshold.unsqueeze(1), 0.0)


def _raise(threshold: Tensor, floors: Tensor, rows: np.ndarray) -> None:
    if len(rows):
        index = torch.from_numpy(rows)
        threshold[index] = torch.maximum(threshold[index], floors)


def _kth_largest(probabilities: Tensor, top_k: np.ndarray) -> Tensor:
    """The top_k-th largest probability of each row that has a top_k."""
    rows = np.flatnonzero(top_k > 0)
    if not len(rows):
        return probabilities.new_empty(0)
    kept = np.minimum(top_k[rows], probabilities.shape[1])
    ranked = _select(probabilities, rows).topk(int(kept.max()), dim=-1).values
    return ranked.gather(1, torch.from_numpy(kept - 1).unsqueeze(1)).squeeze(1)


def _nucleus(probabilities: Tensor, top_p: np.ndarray) -> Tensor:
    """The smallest probability inside the nucleus, for each row with top_p < 1.

    Only as many candidates are ranked as the nucleus needs: most nuclei are small.
    """
    rows = np.flatnonzero(top_p < 1.0)
    result = probabilities.new_empty(len(rows))
    vocabulary = probabilities.shape[1]
    todo = np.arange(len(rows))
    for candidates in (*(count for count in CANDIDATES if count < vocabulary), vocabulary):
        ranked = _ranked(_select(probabilities, rows[todo]), candidates)
        before = ranked.cumsum(-1, dtype=torch.float64) - ranked
        limit = torch.from_numpy(top_p[rows[todo]]).unsqueeze(1)
        inside = (before <= limit).sum(-1)
        result[torch.from_numpy(todo)] = ranked.gather(1, inside.unsqueeze(1) - 1).squeeze(1)
        todo = todo[(inside == candidates).numpy()]
        if not len(todo):
            break
    return result


def _ranked(probabilities: Tensor, count: int) -> Tensor:
    """The largest `count` of each row, descending."""
    if count < probabilities.shape[1]:
        return probabilities.topk(count, dim=-1).values
    return probabilities.sort(dim=-1, descending=True).values


def _select(table: Tensor, rows: np.ndarray) -> Tensor:
    return table if len(rows) == table.shape[0] else table[torch.from_numpy(rows)]
