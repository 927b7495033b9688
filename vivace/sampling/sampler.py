"""Logits of the rows that draw -> one token each, and log-probabilities where wanted.

Order: additive penalties and minimum length, repetition scaling, logit bias, temperature,
softmax, top-k / top-p / min-p, draw. A batch in which nobody asks for anything but the best token
is one maximum; every other part runs only when some feature bits of a row name it.

Nothing is remembered between steps: counts are taken from the own tokens of a row, so a penalty is
the same after a retraction, in any batch, and a row that is given up leaves nothing behind.

A token is a pure function of (seed, position, the logits of the row). The uniform number for
position p is `splitmix64(splitmix64(seed) ^ p)`: counter based, so it needs no generator state, and
a request draws the same numbers alone, in any batch, after a retraction or a restart. How a token
is found with it is said in `platforms.ops.sampling`: in the order of token ids, with cuts that are
thresholds on probabilities. Neither depends on how a library sorts ties or on how many candidates
another row of the batch asked for.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from vivace.platforms.ops.sampling import Penalties, SamplingBatch, SamplingOps
from vivace.protocol.messages import LogprobOptions, SamplingParams, TokenLogprob
from vivace.sampling.logprobs import score

BAD_NUMBERS = (
    "the model's output for this request is not a number (NaN or infinite logits); "
    "the request was stopped"
)


@dataclass(frozen=True, slots=True)
class Entries:
    """Where tokens are drawn. A row has several entries where drafts stand behind what it knows:
    each sees the tokens before its own position as history, drafts too."""

    rows: np.ndarray
    """[n] int64"""
    positions: np.ndarray
    """[n] int64: of the token that is drawn"""

    def __len__(self) -> int:
        return len(self.rows)

    def select(self, chosen: np.ndarray) -> Entries:
        return Entries(self.rows[chosen], self.positions[chosen])


@dataclass(kw_only=True, slots=True)
class SamplerOutput:
    """What a batch drew, for each of n entries."""

    tokens: np.ndarray
    """[n] int64, always inside the vocabulary; meaningless where `bad`"""
    bad: np.ndarray | None = None
    """[n] bool: entries without a usable distribution; None when there is none"""
    logprobs: dict[int, TokenLogprob] = field(default_factory=dict)
    """batch entry -> its token's log-probabilities"""


class Sampler:
    """Samples for rows. Holds settings only: the rows' columns are the state."""

    def __init__(self, ops: SamplingOps, *, original_logprobs: bool = False) -> None:
        self._ops = ops
        self._original_logprobs = original_logprobs

    def sample(
        self,
        logits: Tensor,
        entries: Entries,
        columns: SamplingRows,
        options: dict[int, LogprobOptions],
        history: Histories,
    ) -> SamplerOutput:
        """`logits[n, V]` float32 (overwritten) of n entries."""
        wanted = int(np.bitwise_or.reduce(columns.features[entries.rows])) if len(entries) else 0
        if wanted & (PENALIZED | MINIMUM | BIASED):
            adjust(self._ops, logits, entries, columns, history)
        tokens, bad = self._ops.argmax(logits)
        output = SamplerOutput(tokens=tokens, bad=bad)
        if output.bad is not None:
            logits[torch.from_numpy(output.bad)] = 0.0
        if wanted & SAMPLED:
            self._sample_entries(logits, output.tokens, entries, columns)
        if wanted & SCORED:
            self._score(logits, output, entries.rows, columns, options)
        return output

    def _sample_entries(
        self,
        logits: Tensor,
        tokens: np.ndarray,
        entries: Entries,
        columns: SamplingRows,
    ) -> None:
        """Replace the best token by a drawn one in the entries that sample."""
        sampled = np.flatnonzero(columns.features[entries.rows] & SAMPLED)
        picked = entries.rows[sampled]
        batch = SamplingBatch(
            temperature=columns.temperature[picked],
            top_k=columns.top_k[picked],
            top_p=columns.top_p[picked],
            min_p=columns.min_p[picked],
            uniform=uniforms(columns.seed[picked], entries.positions[sampled]),
        )
        tokens[sampled] = self._ops.sample(logits, sampled, batch)

    def _score(
        self,
        logits: Tensor,
        output: SamplerOutput,
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
            output.tokens[entries],
            [options[row] for row in picked.tolist()],
        )
        output.logprobs = dict(zip(entries.tolist(), scored, strict=True))


@dataclass(frozen=True, kw_only=True, slots=True)
class Histories:
    """The tokens of the rows that draw. All arrays are indexed by row, not by batch entry."""

    tokens: np.ndarray
    """[rows, context + 1] int32, or more where drafts stand behind them"""
    prompt: np.ndarray
    """[rows]: how many of them are prompt"""


def adjust(
    ops: SamplingOps,
    logits: Tensor,
    entries: Entries,
    columns: SamplingRows,
    history: Histories,
) -> None:
    """Apply, in place, to logits[n, V] of n entries: penalties, then minimum length, then bias."""
    features = columns.features[entries.rows]
    wanted = int(np.bitwise_or.reduce(features))
    if wanted & PENALIZED:
        _penalize(ops, logits, np.flatnonzero(features & PENALIZED), entries, columns, history)
    if wanted & MINIMUM:
        _mask_stops(logits, np.flatnonzero(features & MINIMUM), entries, columns, history)
    if wanted & BIASED:
        _add_bias(logits, np.flatnonzero(features & BIASED), entries.rows, columns)


def _penalize(
    ops: SamplingOps,
    logits: Tensor,
    penalized: np.ndarray,
    entries: Entries,
    columns: SamplingRows,
    history: Histories,
) -> None:
    picked = entries.rows[penalized]
    penalties = Penalties(
        rows=picked,
        prompt=history.prompt[picked],
        known=entries.positions[penalized],
        frequency=columns.frequency[picked],
        presence=columns.presence[picked],
        repetition=columns.repetition[picked],
        tokens=history.tokens,
    )
    ops.apply_penalties(logits, penalized, penalties)


def _mask_stops(
    logits: Tensor,
    limited: np.ndarray,
    entries: Entries,
    columns: SamplingRows,
    history: Histories,
) -> None:
    """Stop ids cannot be drawn while a row has fewer output tokens than its minimum."""
    rows = entries.rows[limited]
    drawn = entries.positions[limited] - history.prompt[rows]
    for entry in limited[drawn < columns.minimum[rows]].tolist():
        ids = columns.stop_ids[int(entries.rows[entry])]
        logits[entry, torch.from_numpy(ids[ids < logits.shape[1]])] = -torch.inf


def _add_bias(logits: Tensor, entries: np.ndarray, rows: np.ndarray, columns: SamplingRows) -> None:
    for entry in entries.tolist():
        ids, values = columns.bias[int(rows[entry])]
        inside = ids < logits.shape[1]
        logits[entry].index_add_(0, torch.from_numpy(ids[inside]), torch.from_numpy(values[inside]))


SAMPLED = 1
"""temperature > 0"""
PENALIZED = 2
BIASED = 4
MINIMUM = 8
"""min_new_tokens masks stop ids"""
SCORED = 16
"""log-probabilities are wanted"""

_SEED_MASK = (1 << 64) - 1


class SamplingRows:
    """Columns of [rows]. `features[row]` says which parts of the sampler a row needs at all."""

    def __init__(self, rows: int) -> None:
        self.features = np.zeros(rows, np.uint8)
        self.temperature = np.ones(rows, np.float32)
        self.top_p = np.ones(rows, np.float64)
        self.top_k = np.zeros(rows, np.int64)
        self.min_p = np.zeros(rows, np.float32)
        self.frequency = np.zeros(rows, np.float32)
        self.presence = np.zeros(rows, np.float32)
        self.repetition = np.ones(rows, np.float32)
        self.minimum = np.zeros(rows, np.int64)
        self.seed = np.zeros(rows, np.uint64)
        self.stop_ids: dict[int, np.ndarray] = {}
        """rows with MINIMUM -> ids to mask, int64"""
        self.bias: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        """rows with BIASED -> (ids int64, values float32)"""

    def clear(self, row: int) -> None:
        self.features[row] = 0
        self.stop_ids.pop(row, None)
        self.bias.pop(row, None)

    def ask_logprobs(self, row: int) -> None:
        self.features[row] |= SCORED

    def set(self, row: int, params: SamplingParams, stop_ids: tuple[int, ...]) -> None:
        """Settings of the request that joins `row`."""
        self.clear(row)
        greedy = params.temperature == 0.0
        self.temperature[row] = 1.0 if greedy else params.temperature
        self.top_p[row], self.min_p[row] = params.top_p, params.min_p
        self.top_k[row] = max(0, params.top_k)
        self.frequency[row], self.presence[row] = params.frequency_penalty, params.presence_penalty
        self.repetition[row] = params.repetition_penalty
        self.minimum[row] = params.min_new_tokens
        self.seed[row] = params.seed & _SEED_MASK
        if params.min_new_tokens > 0 and stop_ids:
            self.stop_ids[row] = np.array(stop_ids, np.int64)
        if params.logit_bias:
            ids = np.array(list(params.logit_bias), np.int64)
            self.bias[row] = (ids, np.array(list(params.logit_bias.values()), np.float32))
        self.features[row] = _features(params, greedy, row in self.stop_ids, row in self.bias)


def _features(params: SamplingParams, greedy: bool, minimum: bool, biased: bool) -> int:
    features = 0
    if not greedy:
        features |= SAMPLED
    if (
        params.frequency_penalty != 0.0
        or params.presence_penalty != 0.0
        or params.repetition_penalty != 1.0
    ):
        features |= PENALIZED
    if minimum:
        features |= MINIMUM
    if biased:
        features |= BIASED
    return features


_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_A = np.uint64(0xBF58476D1CE4E5B9)
_MIX_B = np.uint64(0x94D049BB133111EB)
_MANTISSA = np.uint64(11)


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
