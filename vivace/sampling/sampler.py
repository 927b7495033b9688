"""Logits of the rows that draw -> one token each, and log-probabilities where wanted.

Order: additive penalties and minimum length, repetition scaling, logit bias, temperature,
softmax, top-k / top-p / min-p, draw. A batch in which nobody asks for anything but the best token
is one maximum; every other part runs only when some row's feature bits name it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from vivace.platforms.ops.sampling import Drawing, SamplingOps
from vivace.protocol.messages import LogprobOptions, TokenLogprob
from vivace.sampling.adjust import Histories, adjust
from vivace.sampling.draw import uniforms
from vivace.sampling.logprobs import score
from vivace.sampling.rows import (
    BIASED,
    MINIMUM,
    PENALIZED,
    SAMPLED,
    SCORED,
    SamplingRows,
)

BAD_NUMBERS = (
    "the model's output for this request is not a number (NaN or infinite logits); "
    "the request was stopped"
)


@dataclass(kw_only=True, slots=True)
class Draws:
    """What a batch drew. n entries, in the order of the rows given."""

    tokens: np.ndarray
    """[n] int64, always inside the vocabulary; meaningless where `bad`"""
    bad: np.ndarray | None = None
    """[n] bool: entries without a usable distribution; None when there is none"""
    logprobs: dict[int, TokenLogprob] = field(default_factory=dict)
    """batch entry -> its token's log-probabilities"""


class Sampler:
    """Draws for rows. Holds settings only: the rows' columns are the state."""

    def __init__(self, ops: SamplingOps, *, original_logprobs: bool = False) -> None:
        self._ops = ops
        self._original_logprobs = original_logprobs

    def draw(
        self,
        logits: Tensor,
        rows: np.ndarray,
        columns: SamplingRows,
        options: dict[int, LogprobOptions],
        history: Histories,
    ) -> Draws:
        """`logits[n, V]` float32 (overwritten) of `rows[n]`; the token drawn stands at
        position history.known[row]."""
        wanted = int(np.bitwise_or.reduce(columns.features[rows])) if len(rows) else 0
        if wanted & (PENALIZED | MINIMUM | BIASED):
            adjust(self._ops, logits, rows, columns, history)
        tokens, bad = self._ops.best(logits)
        draws = Draws(tokens=tokens, bad=bad)
        if draws.bad is not None:
            logits[torch.from_numpy(draws.bad)] = 0.0
        if wanted & SAMPLED:
            self._sample(logits, draws.tokens, rows, columns, history)
        if wanted & SCORED:
            self._score(logits, draws, rows, columns, options)
        return draws

    def _sample(
        self,
        logits: Tensor,
        tokens: np.ndarray,
        rows: np.ndarray,
        columns: SamplingRows,
        history: Histories,
    ) -> None:
        """Replace the best token by a drawn one in the entries that sample."""
        entries = np.flatnonzero(columns.features[rows] & SAMPLED)
        picked = rows[entries]
        drawing = Drawing(
            temperature=columns.temperature[picked],
            top_k=columns.top_k[picked],
            top_p=columns.top_p[picked],
            min_p=columns.min_p[picked],
            uniform=uniforms(columns.seed[picked], history.known[picked]),
        )
        tokens[entries] = self._ops.draw(logits, entries, drawing)

    def _score(
        self,
        logits: Tensor,
        draws: Draws,
        rows: np.ndarray,
        columns: SamplingRows,
        options: dict[int, LogprobOptions],
    ) -> None:
        entries = np.flatnonzero(columns.features[rows] & SCORED)
        picked = rows[entries]
        scored = score(
            self._ops,
            logits.index_select(0, torch.from_numpy(entries)),
            np.ones(len(picked), np.float32)
            if self._original_logprobs
            else columns.temperature[picked],
            draws.tokens[entries],
            [options[row] for row in picked.tolist()],
        )
        draws.logprobs = dict(zip(entries.tolist(), scored, strict=True))
