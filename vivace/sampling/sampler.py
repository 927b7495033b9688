"""Logits of the rows that draw -> one token each, and log-probabilities where wanted.

Order: what changes logits (`processors`), masks, temperature, softmax, top-k / top-p / min-p, draw.
A batch in which nobody asks for anything but the best token is one maximum; every other part runs
only when some row asks for it.

What is computed stays on the device of the logits, and nobody waits for it here. Which parts run,
and for which rows, the host knows.

A token is a pure function of (seed, position, the logits of the row). The uniform number for
position p is `splitmix64(splitmix64(seed) ^ p)`: counter based, so it needs no generator state, and
a request draws the same numbers alone, in any batch, after a retraction or a restart. How a token
is found with it is said in `platforms.ops.sampling`: in the order of token ids, with cuts that are
thresholds on probabilities. Neither depends on how a library sorts ties or on how many candidates
another row of the batch asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from vivace.platforms.host import upload
from vivace.platforms.ops.sampling import SamplingBatch, SamplingOps, Truncations
from vivace.protocol.messages import LogprobOptions, SamplingParams
from vivace.sampling.logprobs import TokenScores, score
from vivace.sampling.processors import Entries, LogitsProcessors

BAD_NUMBERS = (
    "the model's output for this request is not a number (NaN or infinite logits); "
    "the request was stopped"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplerOutput:
    """What a batch drew, for each of n entries."""

    tokens: Tensor
    """[n] int64, always inside the vocabulary; meaningless where `bad`"""
    bad: Tensor
    """[n] bool: entries without a usable distribution"""
    logprobs: TokenScores | None = None
    """of the entries that want them"""


class Draw(Protocol):
    def __call__(
        self, logits: Tensor, index: Tensor, entries: Entries, columns: SamplingRows
    ) -> Tensor:
        """[m] int64: a token for each of m entries, which sample, from the rows `index[m]` of
        logits[n, V] float32."""
        ...


class ExactDraw:
    """What is drawn depends on logits, seed and position only."""

    def __init__(self, ops: SamplingOps) -> None:
        self._ops = ops

    def __call__(
        self, logits: Tensor, index: Tensor, entries: Entries, columns: SamplingRows
    ) -> Tensor:
        return self._ops.sample(logits, index, columns.batch(entries))


class Sampler:
    """Samples for rows. Holds settings only: the rows' columns are the state."""

    def __init__(
        self,
        ops: SamplingOps,
        processors: LogitsProcessors,
        draw: Draw,
        *,
        original_logprobs: bool = False,
    ) -> None:
        self._ops, self._draw = ops, draw
        self._processors = processors
        self._original_logprobs = original_logprobs

    def sample(
        self,
        logits: Tensor,
        entries: Entries,
        columns: SamplingRows,
        options: dict[int, LogprobOptions],
    ) -> SamplerOutput:
        """`logits[n, V]` float32 (overwritten) of n entries."""
        masks = self._processors.apply(logits, entries) if self._processors.rows else None
        wanted = int(np.bitwise_or.reduce(columns.features[entries.host_rows]))
        tokens, bad = self._ops.argmax(logits, masks)
        if wanted & SAMPLED:
            tokens = self._sample_entries(logits, tokens, entries, columns)
        if not wanted & SCORED:
            return SamplerOutput(tokens=tokens, bad=bad)
        scores = self._score(logits, tokens, bad, entries, columns, options)
        return SamplerOutput(tokens=tokens, bad=bad, logprobs=scores)

    def _sample_entries(
        self,
        logits: Tensor,
        tokens: Tensor,
        entries: Entries,
        columns: SamplingRows,
    ) -> Tensor:
        """`tokens[n]` with a drawn one instead of the best in the entries that sample."""
        sampled = np.flatnonzero(columns.features[entries.host_rows] & SAMPLED)
        index = upload(sampled, logits.device)
        picked = entries.select(sampled, index)
        drawn = self._draw(logits, index, picked, columns)
        return drawn if len(drawn) == len(tokens) else tokens.index_copy_(0, index, drawn)

    def _score(
        self,
        logits: Tensor,
        tokens: Tensor,
        bad: Tensor,
        entries: Entries,
        columns: SamplingRows,
        options: dict[int, LogprobOptions],
    ) -> TokenScores:
        scored = np.flatnonzero(columns.features[entries.host_rows] & SCORED)
        index = upload(scored, logits.device)
        picked = entries.select(scored, index)
        temperature = columns.temperature.index_select(0, picked.rows).float()
        if self._original_logprobs:
            temperature = torch.ones_like(temperature)
        unusable = bad.index_select(0, index).unsqueeze(1)
        return score(
            self._ops,
            logits.index_select(0, index).masked_fill_(unusable, 0.0),
            temperature,
            scored,
            tokens.index_select(0, index),
            [options[row] for row in picked.host_rows.tolist()],
        )


SAMPLED = 1
"""temperature > 0"""
SCORED = 2
"""log-probabilities are wanted"""

TEMPERATURE, MIN_P, TOP_P, TOP_K = range(4)
"""columns of the settings; the first two are rounded to float32"""
_DEFAULTS = (1.0, 0.0, 1.0, 0.0)
_SEED_MASK = (1 << 64) - 1


class SamplingRows:
    """Columns of [rows]. `features[row]`, on the host, says which parts of the sampler a row needs
    at all; the numbers are on the device, at addresses that stay."""

    def __init__(self, rows: int, device: torch.device) -> None:
        self._device = device
        self.features = np.zeros(rows, np.uint8)
        self.host = np.tile(np.array(_DEFAULTS), (rows, 1))
        """[rows, 4] float64: the settings on the host, where shapes are decided"""
        self.settings = upload(self.host, device)
        """the same on the device"""
        self.temperature = self.settings[:, TEMPERATURE]
        self.seed = torch.zeros(rows, dtype=torch.int64, device=device)
        """splitmix64 of the request's seed"""

    def clear(self, row: int) -> None:
        self.features[row] = 0

    def ask_logprobs(self, row: int) -> None:
        self.features[row] |= SCORED

    def set(self, row: int, params: SamplingParams) -> None:
        """Settings of the request that joins `row`."""
        greedy = params.temperature == 0.0
        single = (1.0 if greedy else params.temperature, params.min_p)
        self.host[row, :TOP_P] = np.array(single, np.float32)
        self.host[row, TOP_P:] = params.top_p, max(0, params.top_k)
        self.settings[row] = upload(self.host[row], self._device)  # on the CPU onto itself
        if not greedy:
            seed = np.array([params.seed & _SEED_MASK], np.uint64).view(np.int64)
            self.seed[row : row + 1] = splitmix64(upload(seed, self._device))
        self.features[row] = 0 if greedy else SAMPLED

    def batch(self, entries: Entries) -> SamplingBatch:
        """How entries of rows that sample are drawn."""
        settings = self.settings.index_select(0, entries.rows)
        host = self.host[entries.host_rows]
        return SamplingBatch(
            temperature=settings[:, TEMPERATURE],
            top_k=settings[:, TOP_K],
            top_p=settings[:, TOP_P],
            min_p=settings[:, MIN_P],
            uniform=uniforms(self.seed.index_select(0, entries.rows), entries.positions),
            host=Truncations(top_k=host[:, TOP_K], top_p=host[:, TOP_P], min_p=host[:, MIN_P]),
        )


_GAMMA = 0x9E3779B97F4A7C15 - (1 << 64)
_MIX_A = 0xBF58476D1CE4E5B9 - (1 << 64)
_MIX_B = 0x94D049BB133111EB - (1 << 64)


def splitmix64(words: Tensor) -> Tensor:
    """One output of splitmix64 (Steele, Lea, Flood 2014) for each 64-bit state: int64 of the same
    bits, whose sums and products wrap around as those without a sign do."""
    words = words + _GAMMA
    words = _mix(words, 30).mul_(_MIX_A)
    words = _mix(words, 27).mul_(_MIX_B)
    return _mix(words, 31)


def _mix(words: Tensor, count: int) -> Tensor:
    return (words >> count).bitwise_and_((1 << 64 - count) - 1).bitwise_xor_(words)


def uniforms(seeds: Tensor, positions: Tensor) -> Tensor:
    """A float64 in [0, 1) for each (splitmix64(seed), position of the token to draw), int64."""
    words = splitmix64(seeds ^ positions)
    return (words >> 11).bitwise_and_((1 << 53) - 1).double().mul_(2.0**-53)
