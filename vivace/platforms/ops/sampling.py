"""What a device does between hidden states and tokens, and the same with torch's operations.

Results are numpy arrays on the host: they are a few numbers a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

CANDIDATES = (128, 2048)
"""how many of the most probable tokens the search for a nucleus ranks, before it sorts them all"""
PENALTY_ELEMENTS = 1 << 24
"""elements of the largest temporary table of counts"""


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingBatch:
    """How m rows are drawn: arrays of [m]."""

    temperature: np.ndarray
    """float32, positive"""
    top_k: np.ndarray
    """int64; 0 = all"""
    top_p: np.ndarray
    """float64 in (0, 1]"""
    min_p: np.ndarray
    """float32 in [0, 1]"""
    uniform: np.ndarray
    """float64 in [0, 1)"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Penalties:
    """What m rows are penalized for: arrays of [m], and the tokens of all rows."""

    rows: np.ndarray
    """int64: which rows of `tokens`"""
    prompt: np.ndarray
    """int64: how many of a row's tokens are prompt"""
    known: np.ndarray
    """int64: how many there are"""
    frequency: np.ndarray
    presence: np.ndarray
    repetition: np.ndarray
    """float32, positive"""
    tokens: np.ndarray
    """[rows, context] int32"""


class SamplingOps(Protocol):
    """A row's result depends on that row alone."""

    def argmax(self, logits: Tensor) -> tuple[np.ndarray, np.ndarray | None]:
        """logits[n, V] float32 -> (token ids [n] int64, rows without one [n] bool).

        The first of the largest. A row has none when a logit is NaN, or the largest is infinite;
        its id means nothing then. None when every row has one.
        """
        ...

    def sample(self, logits: Tensor, entries: np.ndarray, batch: SamplingBatch) -> np.ndarray:
        """Token ids [m] int64 of the rows `entries[m]` of logits[n, V] float32.

        Probabilities are softmax(logits / temperature). Top-k, top-p and min-p all look at these
        (nothing is renormalized in between, as in SGLang) and exclude a token when k tokens are
        more probable; when the more probable ones together have more than p; when it has less
        than min_p of the largest. Tokens that tie stay or go together. What is left is inverted in
        the order of ids: the first one whose cumulative probability exceeds uniform * total.
        """
        ...

    def apply_penalties(self, logits: Tensor, entries: np.ndarray, penalties: Penalties) -> None:
        """Change, in place, the rows `entries[m]` of logits[n, V] float32.

        Tokens of the output: minus frequency * (how often) and presence. Then tokens of prompt or
        output: what is positive is divided by repetition, the rest multiplied.
        """
        ...

    def logsumexp(self, logits: Tensor, temperature: np.ndarray) -> np.ndarray:
        """log(sum(exp(logits / temperature))), [n] float32, of logits[n, V] and [n] float32"""
        ...

    def topk(self, logits: Tensor, count: int) -> tuple[np.ndarray, np.ndarray]:
        """(values float32, ids int64), both [n, count], of the largest of logits[n, V], best
        first. 0 < count <= V."""
        ...

    def bad_tokens(self, hidden: Tensor) -> np.ndarray | None:
        """[T] bool: rows of hidden[T, n] with a NaN or an infinity; None when there is none."""
        ...


class TorchSampling:
    """SamplingOps of torch's operations, and the reference of all others."""

    def argmax(self, logits: Tensor) -> tuple[np.ndarray, np.ndarray | None]:
        best, tokens = logits.max(-1)
        finite = torch.isfinite(best)
        return tokens.numpy(), None if bool(finite.all()) else ~finite.numpy()

    def sample(self, logits: Tensor, entries: np.ndarray, batch: SamplingBatch) -> np.ndarray:
        chosen = _select(logits, entries)
        probabilities = (chosen / torch.from_numpy(batch.temperature).unsqueeze(1)).softmax(-1)
        mask_excluded(probabilities, batch.top_k, batch.top_p, batch.min_p)
        return invert(probabilities, torch.from_numpy(batch.uniform)).numpy()

    def apply_penalties(self, logits: Tensor, entries: np.ndarray, penalties: Penalties) -> None:
        size = max(1, PENALTY_ELEMENTS // logits.shape[1])
        for first in range(0, len(entries), size):
            part = slice(first, first + size)
            index = torch.from_numpy(entries[part])
            chosen = logits.index_select(0, index)
            logits.index_copy_(0, index, _apply_penalties(chosen, penalties, part))

    def logsumexp(self, logits: Tensor, temperature: np.ndarray) -> np.ndarray:
        return (logits / torch.from_numpy(temperature).unsqueeze(1)).logsumexp(-1).numpy()

    def topk(self, logits: Tensor, count: int) -> tuple[np.ndarray, np.ndarray]:
        best = logits.topk(count, dim=-1)
        return best.values.numpy(), best.indices.numpy()

    def bad_tokens(self, hidden: Tensor) -> np.ndarray | None:
        """One reduction in the usual case: a NaN or an infinity anywhere makes the sum one."""
        if bool(torch.isfinite(hidden.sum(dtype=torch.float32))):
            return None
        bad = ~torch.isfinite(hidden).all(-1).numpy()
        return bad if bad.any() else None


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


def mask_excluded(
    probabilities: Tensor, top_k: np.ndarray, top_p: np.ndarray, min_p: np.ndarray
) -> None:
    """Set to zero, in place, what top-k, top-p and min-p of each row of [n, V] exclude."""
    rows = np.flatnonzero((top_k > 0) | (top_p < 1.0) | (min_p > 0.0))
    if not len(rows):
        return
    chosen, top_k, top_p = _select(probabilities, rows), top_k[rows], top_p[rows]
    threshold = chosen.amax(-1) * torch.from_numpy(min_p[rows])
    _raise(threshold, _kth_largest(chosen, top_k), np.flatnonzero(top_k > 0))
    _raise(threshold, _nucleus(chosen, top_p), np.flatnonzero(top_p < 1.0))
    chosen.masked_fill_(chosen < threshold.unsqueeze(1), 0.0)
    if chosen is not probabilities:
        probabilities.index_copy_(0, torch.from_numpy(rows), chosen)


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
        if not len(todo):
            break
        ranked = _largest(_select(probabilities, rows[todo]), candidates)
        before = ranked.cumsum(-1, dtype=torch.float64) - ranked
        limit = torch.from_numpy(top_p[rows[todo]]).unsqueeze(1)
        inside = (before <= limit).sum(-1)
        result[torch.from_numpy(todo)] = ranked.gather(1, inside.unsqueeze(1) - 1).squeeze(1)
        todo = todo[(inside == candidates).numpy()]
    return result


def _largest(probabilities: Tensor, count: int) -> Tensor:
    """The largest `count` of each row, descending."""
    if count < probabilities.shape[1]:
        return probabilities.topk(count, dim=-1).values
    return probabilities.sort(dim=-1, descending=True).values


def _select(table: Tensor, rows: np.ndarray) -> Tensor:
    """The rows, which are in ascending order, of a table."""
    return table if len(rows) == table.shape[0] else table[torch.from_numpy(rows)]


def _apply_penalties(chosen: Tensor, penalties: Penalties, part: slice) -> Tensor:
    """chosen[m, V] after the penalties of this part of the rows."""
    prompt, vocabulary = penalties.prompt[part], chosen.shape[1]
    output = _counts(penalties, part, prompt, vocabulary)
    change = output * torch.from_numpy(penalties.frequency[part]).unsqueeze(1)
    change += (output > 0) * torch.from_numpy(penalties.presence[part]).unsqueeze(1)
    chosen = chosen - change
    seen = _counts(penalties, part, np.zeros_like(prompt), vocabulary) > 0
    repetition = torch.from_numpy(penalties.repetition[part]).unsqueeze(1)
    scaled = torch.where(chosen > 0, chosen / repetition, chosen * repetition)
    return torch.where(seen, scaled, chosen)


def _counts(penalties: Penalties, part: slice, first: np.ndarray, vocabulary: int) -> Tensor:
    """[m, V] float32: how often each id occurs in tokens[first..known] of each row."""
    ends = penalties.known[part]
    width = int(ends.max())
    places = np.arange(width)
    ids = torch.from_numpy(penalties.tokens[penalties.rows[part], :width].astype(np.int64))
    counted = (places >= first[:, None]) & (places < ends[:, None])
    counts = torch.zeros(len(first), vocabulary)
    ids.clamp_(0, vocabulary - 1)
    return counts.scatter_add_(1, ids, torch.from_numpy(counted.astype(np.float32)))
