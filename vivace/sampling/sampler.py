"""Logits of the rows that draw -> one token each, and log-probabilities where asked.

Order: additive penalties and minimum length, repetition scaling, logit bias, temperature,
softmax, top-k / top-p / min-p, draw. A batch in which nobody asks for anything but the best token
is one maximum; every other part runs only when some row's feature bits name it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from vivace.protocol.output import TokenLogprob
from vivace.protocol.request import LogprobOptions
from vivace.sampling.adjust import Histories, adjust
from vivace.sampling.draw import cut, invert, uniforms
from vivace.sampling.logprobs import score
from vivace.sampling.rows import (
    BIASED,
    FILTERED,
    MINIMUM,
    PENALISED,
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

    def __init__(self, *, original_logprobs: bool = False) -> None:
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
        asked = int(np.bitwise_or.reduce(columns.features[rows])) if len(rows) else 0
        if asked & (PENALISED | MINIMUM | BIASED):
            adjust(logits, rows, columns, history)
        best, tokens = logits.max(-1)
        draws = Draws(tokens=tokens.numpy(), bad=_bad(best))
        if draws.bad is not None:
            logits[torch.from_numpy(draws.bad)] = 0.0
        if asked & SAMPLED:
            self._sample(logits, draws.tokens, rows, columns, history)
        if asked & SCORED:
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
        features = columns.features[rows]
        entries = np.flatnonzero(features & SAMPLED)
        of = rows[entries]
        probabilities = _scaled(logits, entries, columns.temperature[of]).softmax(-1)
        filtered = np.flatnonzero(features[entries] & FILTERED)
        if len(filtered) == len(entries):
            cut(probabilities, columns.top_k[of], columns.top_p[of], columns.min_p[of])
        elif len(filtered):
            index, some = torch.from_numpy(filtered), of[filtered]
            part = probabilities.index_select(0, index)
            cut(part, columns.top_k[some], columns.top_p[some], columns.min_p[some])
            probabilities.index_copy_(0, index, part)
        uniform = torch.from_numpy(uniforms(columns.seed[of], history.known[of]))
        tokens[entries] = invert(probabilities, uniform).numpy()

    def _score(
        self,
        logits: Tensor,
        draws: Draws,
        rows: np.ndarray,
        columns: SamplingRows,
        options: dict[int, LogprobOptions],
    ) -> None:
        entries = np.flatnonzero(columns.features[rows] & SCORED)
        of = rows[entries]
        if self._original_logprobs:
            chosen = logits.index_select(0, torch.from_numpy(entries))
        else:
            chosen = _scaled(logits, entries, columns.temperature[of])
        tokens = torch.from_numpy(draws.tokens[entries])
        scored = score(chosen, tokens, [options[row] for row in of.tolist()])
        draws.logprobs = dict(zip(entries.tolist(), scored, strict=True))


def _bad(best: Tensor) -> np.ndarray | None:
    """Entries whose largest logit is no number: a NaN anywhere, +inf, or nothing but -inf."""
    finite = torch.isfinite(best)
    return None if bool(finite.all()) else ~finite.numpy()


def _scaled(logits: Tensor, entries: np.ndarray, temperature: np.ndarray) -> Tensor:
    """A copy of the entries' logits divided by their temperature."""
    chosen = logits if len(entries) == len(logits) else logits[torch.from_numpy(entries)]
    return chosen / torch.from_numpy(temperature).unsqueeze(1)
