"""Log-probabilities that were asked for: of the token, of the best k, of given ids.

They are tensors until somebody reads them, and only then objects or bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
import torch
from torch import Tensor

from vivace.platforms.host import download, upload
from vivace.platforms.ops.sampling import SamplingOps
from vivace.protocol.messages import LogprobOptions, PromptLogprobs, TokenLogprob


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenScores:
    """Log-probabilities at m entries of a batch, on the device."""

    entries: np.ndarray
    """[m] int64, ascending"""
    options: Sequence[LogprobOptions]
    """[m]"""
    tokens: Tensor
    """[m] int64"""
    logprobs: Tensor
    """[m] float32"""
    top: Tensor
    """[m, k] float32, best first; k is the most that any entry wants, or the vocabulary"""
    top_ids: Tensor
    """[m, k] int64"""
    chosen: Tensor
    """float32, of the ids that the options name, one entry after the other"""

    def read(self) -> dict[int, TokenLogprob]:
        """Entry of the batch -> its token's."""
        tensors = (self.tokens, self.logprobs, self.top, self.top_ids, self.chosen)
        tokens, logprobs, top, top_ids, chosen = (download(one).tolist() for one in tensors)
        ends = accumulate((len(one.token_ids) for one in self.options), initial=0)
        named = [chosen[start:end] for start, end in pairwise(ends)]
        return {
            entry: TokenLogprob(
                tokens[i],
                logprobs[i],
                list(zip(top[i], top_ids[i], strict=True))[: one.top] if one.top else None,
                list(zip(named[i], one.token_ids, strict=True)) if one.token_ids else None,
            )
            for i, (entry, one) in enumerate(zip(self.entries.tolist(), self.options, strict=True))
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptScores:
    """Log-probabilities of n prompt tokens that follow each other, on the device."""

    start: int
    """position of the first"""
    logprobs: Tensor
    """[n] float32"""
    top: Tensor
    """[n, k] float32, best first"""
    top_ids: Tensor
    """[n, k] int64"""
    chosen: Tensor
    """[n * m] float32"""

    def read(self) -> PromptLogprobs:
        return PromptLogprobs(
            start=self.start,
            logprobs=download(self.logprobs).tobytes(),
            top=download(self.top).tobytes(),
            top_ids=download(self.top_ids).astype(np.int32).tobytes(),
            chosen=download(self.chosen).tobytes(),
        )


def score(
    ops: SamplingOps,
    logits: Tensor,
    temperature: Tensor,
    entries: np.ndarray,
    tokens: Tensor,
    options: Sequence[LogprobOptions],
) -> TokenScores:
    """log(softmax(logits / temperature)) of each row of logits[m, V] float32, its temperature [m]
    float32 and its token id [m] int64, at `entries[m]` of a batch."""
    scores = _Scores(ops, logits, temperature)
    rows = np.repeat(np.arange(len(options)), [len(option.token_ids) for option in options])
    named = np.array([token for option in options for token in option.token_ids], np.int64)
    top, top_ids = scores.top(max((option.top for option in options), default=0))
    return TokenScores(
        entries=entries,
        options=options,
        tokens=tokens,
        logprobs=scores.lookup(upload(np.arange(len(options)), logits.device), tokens),
        top=top,
        top_ids=top_ids,
        chosen=scores.lookup(upload(rows, logits.device), upload(named, logits.device)),
    )


def score_prompt(
    ops: SamplingOps, logits: Tensor, tokens: Tensor, start: int, options: LogprobOptions
) -> PromptScores:
    """log(softmax(logits)) of logits[n, V] float32 for the prompt tokens [n] int64 at position
    `start` and behind it."""
    rows, ids = np.arange(len(logits)), np.array(options.token_ids, np.int64)
    scores = _Scores(ops, logits, torch.ones(len(logits), device=logits.device))
    top, top_ids = scores.top(options.top)
    which, named = rows.repeat(len(ids)), np.tile(ids, len(rows))
    return PromptScores(
        start=start,
        logprobs=scores.lookup(upload(rows, logits.device), tokens),
        top=top,
        top_ids=top_ids,
        chosen=scores.lookup(upload(which, logits.device), upload(named, logits.device)),
    )


class _Scores:
    """Log-probabilities of logits[n, V], computed where they are looked at."""

    def __init__(self, ops: SamplingOps, logits: Tensor, temperature: Tensor) -> None:
        self._ops, self._logits, self._temperature = ops, logits, temperature
        self._totals = ops.logsumexp(logits, temperature)

    def lookup(self, rows: Tensor, ids: Tensor) -> Tensor:
        """[m] float32, of token `ids[m]` in `rows[m]`; -inf outside the vocabulary"""
        inside = (ids >= 0) & (ids < self._logits.shape[1])
        values = self._logits[rows, torch.where(inside, ids, 0)]
        normalized = values / self._temperature[rows] - self._totals[rows]
        return torch.where(inside, normalized, -torch.inf)

    def top(self, count: int) -> tuple[Tensor, Tensor]:
        """(log-probabilities, ids) [n, k] of the best k of each row, best first; k is `count`, or
        the vocabulary."""
        count = min(count, self._logits.shape[1])
        if not count:
            empty = self._logits.new_empty(len(self._logits), 0)
            return empty, empty.long()
        values, ids = self._ops.topk(self._logits, count)
        return values / self._temperature.unsqueeze(1) - self._totals.unsqueeze(1), ids
