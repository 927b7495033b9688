"""What a device does between hidden states and tokens, and the same with torch's operations.

Everything that is taken and given is on the device of the logits, but for what decides shapes: so
nobody has to wait for the device before a result is wanted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from vivace.platforms.host import download, upload

CANDIDATES = (128, 2048)
"""how many of the most probable tokens the search for a nucleus ranks, before it sorts them all"""
PENALTY_ELEMENTS = 1 << 24
"""elements of the largest temporary table of counts"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Truncations:
    """Which tokens of m rows can be drawn at all, known on the host: arrays of [m], float64."""

    top_k: np.ndarray
    """0 = all"""
    top_p: np.ndarray
    """in (0, 1]"""
    min_p: np.ndarray
    """in [0, 1]"""


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingBatch:
    """How m rows are drawn: float64 [m] each."""

    temperature: Tensor
    """a positive number of float32"""
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    """a number of float32"""
    uniform: Tensor
    """in [0, 1)"""
    host: Truncations
    """top_k, top_p and min_p again"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Penalties:
    """What m rows are penalized for: [m] each, and the tokens of all rows."""

    rows: Tensor
    """int64: which rows of `tokens`"""
    prompt: Tensor
    """int64: how many of a row's tokens are prompt"""
    known: Tensor
    """int64: how many there are"""
    frequency: Tensor
    presence: Tensor
    repetition: Tensor
    """float64, positive; all three are numbers of float32"""
    tokens: Tensor
    """[rows, context] int32"""
    longest: int
    """no row knows more than that, which may be more than `context`"""


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenMasks:
    """What m rows of logits[n, V] may draw."""

    entries: Tensor
    """[m] int64: which rows, in ascending order"""
    bits: Tensor
    """[m, ceil(V / 32)] int32: token t is bit t % 32 of word t // 32"""


class SamplingOps(Protocol):
    """A row's result depends on that row alone."""

    def argmax(self, logits: Tensor, masks: TokenMasks | None = None) -> tuple[Tensor, Tensor]:
        """logits[n, V] float32 -> (token ids [n] int64, rows without one [n] bool).

        The first of the largest. A row has none when a logit is NaN, or the largest is infinite;
        its id is some token of the vocabulary then.

        Rows that have a mask are changed first, in place: -inf where its bit is not set. Where all
        that is left is -inf it becomes 0: what an answer has to be goes before its least length.
        """
        ...

    def sample(self, logits: Tensor, entries: Tensor, batch: SamplingBatch) -> Tensor:
        """Token ids [m] int64 of the rows `entries[m]` int64 of logits[n, V] float32.

        Probabilities are softmax(logits / temperature). Top-k, top-p and min-p all look at these
        (nothing is renormalized in between, as in SGLang) and exclude a token when k tokens are
        more probable; when the more probable ones together have more than p; when it has less
        than min_p of the largest. Tokens that tie stay or go together. What is left is inverted in
        the order of ids: the first one whose cumulative probability exceeds uniform * total.
        A row that `argmax` finds none in gives some token of the vocabulary.
        """
        ...

    def weights(self, logits: Tensor, entries: Tensor, batch: SamplingBatch) -> Tensor:
        """[m, V] float32, in memory of its own: what `sample` inverts. Probabilities, 0 where
        excluded."""
        ...

    def apply_penalties(self, logits: Tensor, entries: Tensor, penalties: Penalties) -> None:
        """Change, in place, the rows `entries[m]` int64 of logits[n, V] float32.

        Tokens of the output: minus frequency * (how often) and presence. Then tokens of prompt or
        output: what is positive is divided by repetition, the rest multiplied.
        """
        ...

    def logsumexp(self, logits: Tensor, temperature: Tensor) -> Tensor:
        """log(sum(exp(logits / temperature))), [n] float32, of logits[n, V] and [n] float32"""
        ...

    def topk(self, logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """(values float32, ids int64), both [n, count], of the largest of logits[n, V], best
        first. 0 < count <= V."""
        ...

    def bad_tokens(self, hidden: Tensor) -> Tensor:
        """[T] bool: rows of hidden[T, n] with a NaN or an infinity."""
        ...


class TorchSampling:
    """SamplingOps of torch's operations, and the reference of all others.

    `reads`: numbers may be read on the way, which costs nothing where logits are in the host's
    memory: a nucleus that is small is then found to be. The results are the same.
    """

    def __init__(self, *, reads: bool = False) -> None:
        self._reads = reads

    def argmax(self, logits: Tensor, masks: TokenMasks | None = None) -> tuple[Tensor, Tensor]:
        if masks is not None:
            self._mask(logits, masks)
        best, tokens = logits.max(-1)
        return tokens, torch.isfinite(best).logical_not_()

    def sample(self, logits: Tensor, entries: Tensor, batch: SamplingBatch) -> Tensor:
        return invert(self.weights(logits, entries, batch), batch.uniform)

    def weights(self, logits: Tensor, entries: Tensor, batch: SamplingBatch) -> Tensor:
        chosen = _select(logits, entries)
        probabilities = (chosen / batch.temperature.float().unsqueeze(1)).softmax(-1)
        mask_excluded(probabilities, batch, CANDIDATES if self._reads else ())
        return probabilities

    def apply_penalties(self, logits: Tensor, entries: Tensor, penalties: Penalties) -> None:
        size = max(1, PENALTY_ELEMENTS // max(penalties.longest, logits.shape[1]))
        for first in range(0, len(entries), size):
            part = slice(first, first + size)
            chosen = _apply_penalties(_select(logits, entries[part]), penalties, part)
            logits.index_copy_(0, entries[part], chosen)

    def _mask(self, logits: Tensor, masks: TokenMasks) -> None:
        if self._reads:
            _mask_rows(logits, masks)
            return
        size = max(1, PENALTY_ELEMENTS // logits.shape[1])
        for first in range(0, len(masks.entries), size):
            entries = masks.entries[first : first + size]
            allowed = unpack_bits(masks.bits[first : first + size], logits.shape[1])
            chosen = _select(logits, entries).masked_fill(~allowed, -torch.inf)
            lost = (chosen.amax(-1) == -torch.inf).unsqueeze(1)
            logits.index_copy_(0, entries, chosen.masked_fill_(lost & allowed, 0.0))

    def logsumexp(self, logits: Tensor, temperature: Tensor) -> Tensor:
        return (logits / temperature.unsqueeze(1)).logsumexp(-1)

    def topk(self, logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
        best = logits.topk(count, dim=-1)
        return best.values, best.indices

    def bad_tokens(self, hidden: Tensor) -> Tensor:
        """Zero times NaN or infinity is NaN, which stays."""
        return (hidden * 0).sum(-1).isnan()


def unpack_bits(mask: Tensor, count: int) -> Tensor:
    """[m, count] bool: the first bits of each row of mask[m, words] int32."""
    places = torch.arange(32, dtype=torch.int32, device=mask.device)
    bits = (mask.unsqueeze(-1) >> places) & 1
    return bits.flatten(1)[:, :count].bool()


def _mask_rows(logits: Tensor, masks: TokenMasks) -> None:
    """In the host's memory, without a copy of a row. (Operations of torch on a single row wait for
    all its threads, which others keep from running.)"""
    lines = logits.numpy()
    for row, words in zip(masks.entries.tolist(), masks.bits.numpy(), strict=True):
        bits = np.unpackbits(words.view(np.uint8), count=lines.shape[1], bitorder="little")
        allowed, line = bits.view(np.bool_), lines[row]
        np.copyto(line, -np.inf, where=~allowed)
        if line.max() == -np.inf:
            line[allowed] = 0.0


def invert(weights: Tensor, uniform: Tensor) -> Tensor:
    """Token ids [n]: the first id whose cumulative weight exceeds uniform * total.

    `weights[n, V]` float32, not negative, at least one positive a row; `uniform[n]` float64.
    Sums are float64: with float32 the tail of a large vocabulary would get lost in rounding.
    A row of NaN gives some id.
    """
    cumulative = weights.cumsum(-1, dtype=torch.float64)
    targets = uniform.unsqueeze(1) * cumulative[:, -1:]
    found = torch.searchsorted(cumulative, targets, right=True).squeeze(1)
    last = torch.searchsorted(cumulative, cumulative[:, -1:].contiguous()).squeeze(1)
    return torch.minimum(found, last).clamp_(max=weights.shape[1] - 1)


def mask_excluded(
    probabilities: Tensor, batch: SamplingBatch, candidates: tuple[int, ...] = ()
) -> None:
    """Set to zero, in place, what top-k, top-p and min-p of each row of [n, V] exclude.

    `candidates`: how many tokens are ranked first, in a search that reads whether they were
    enough; without, all are sorted.
    """
    host = batch.host
    cut = np.flatnonzero((host.top_k > 0) | (host.top_p < 1.0) | (host.min_p > 0.0))
    if not len(cut):
        return
    rows = upload(cut, probabilities.device)
    chosen = _select(probabilities, rows)
    threshold = chosen.amax(-1) * _select(batch.min_p, rows).float()
    _raise_to_top_k(threshold, chosen, _select(batch.top_k, rows), host.top_k[cut])
    _raise_to_nucleus(threshold, chosen, _select(batch.top_p, rows), host.top_p[cut], candidates)
    chosen.masked_fill_(chosen < threshold.unsqueeze(1), 0.0)
    if chosen is not probabilities:
        probabilities.index_copy_(0, rows, chosen)


def _raise_to_top_k(
    threshold: Tensor, probabilities: Tensor, top_k: Tensor, host: np.ndarray
) -> None:
    """Raise thresholds[n] to the top_k-th largest probability of each row that has a top_k."""
    limited = np.flatnonzero(host > 0)
    if not len(limited):
        return
    vocabulary = probabilities.shape[1]
    rows = upload(limited, probabilities.device)
    largest = int(min(host.max(), vocabulary))
    ranked = _select(probabilities, rows).topk(largest, dim=-1).values
    kept = _select(top_k, rows).clamp(max=vocabulary).long() - 1
    _raise(threshold, ranked.gather(1, kept.unsqueeze(1)).squeeze(1), rows)


def _raise_to_nucleus(
    threshold: Tensor,
    probabilities: Tensor,
    top_p: Tensor,
    host: np.ndarray,
    candidates: tuple[int, ...],
) -> None:
    """Raise thresholds[n] to the smallest probability inside the nucleus of each row with
    top_p < 1."""
    limited = np.flatnonzero(host < 1.0)
    if not len(limited):
        return
    device, vocabulary = probabilities.device, probabilities.shape[1]
    floors, todo = probabilities.new_empty(len(limited)), np.arange(len(limited))
    for count in (*(count for count in candidates if count < vocabulary), vocabulary):
        rows = upload(limited[todo], device)
        ranked = _rank(_select(probabilities, rows), count)
        before = ranked.cumsum(-1, dtype=torch.float64) - ranked
        inside = (before <= _select(top_p, rows).unsqueeze(1)).sum(-1)
        last = (inside - 1).clamp_(min=0)  # nothing is inside where probabilities are NaN
        found = ranked.gather(1, last.unsqueeze(1)).squeeze(1)
        floors.index_copy_(0, upload(todo, device), found)
        if count < vocabulary:  # the nuclei that end with the last one may be larger
            todo = todo[download(inside) == count]
            if not len(todo):
                break
    _raise(threshold, floors, upload(limited, device))


def _raise(threshold: Tensor, floors: Tensor, rows: Tensor) -> None:
    raised = torch.maximum(threshold.index_select(0, rows), floors)
    threshold.index_copy_(0, rows, raised)


def _rank(probabilities: Tensor, count: int) -> Tensor:
    """The largest `count` of each row, descending."""
    if count < probabilities.shape[1]:
        return probabilities.topk(count, dim=-1).values
    return probabilities.sort(dim=-1, descending=True).values


def _select(table: Tensor, rows: Tensor) -> Tensor:
    """The rows, which are in ascending order, of a table."""
    return table if len(rows) == table.shape[0] else table.index_select(0, rows)


def _apply_penalties(chosen: Tensor, penalties: Penalties, part: slice) -> Tensor:
    """chosen[m, V] after the penalties of this part of the rows."""
    prompt, vocabulary = penalties.prompt[part].unsqueeze(1), chosen.shape[1]
    known = penalties.known[part].unsqueeze(1)
    ids = penalties.tokens.index_select(0, penalties.rows[part])[:, : penalties.longest].long()
    ids.clamp_(0, vocabulary - 1)
    places = torch.arange(ids.shape[1], device=ids.device)
    seen = places < known
    output = _count(ids, seen & (places >= prompt), vocabulary)
    change = output * penalties.frequency[part].float().unsqueeze(1)
    change += (output > 0) * penalties.presence[part].float().unsqueeze(1)
    chosen = chosen - change
    repetition = penalties.repetition[part].float().unsqueeze(1)
    scaled = torch.where(chosen > 0, chosen / repetition, chosen * repetition)
    return torch.where(_count(ids, seen, vocabulary) > 0, scaled, chosen)


def _count(ids: Tensor, counted: Tensor, vocabulary: int) -> Tensor:
    """[m, V] float32: how often each id occurs among those `counted` of ids[m, n]."""
    counts = torch.zeros(len(ids), vocabulary, device=ids.device)
    return counts.scatter_add_(1, ids, counted.float())
