"""Logits of the rows that draw -> one token each, and log-probabilities where wanted.

Order: additive penalties and minimum length, repetition scaling, logit bias, temperature,
softmax, top-k / top-p / min-p, draw. A batch in which nobody asks for anything but the best token
is one maximum; every other part runs only when some feature bits of a row name it.

Nothing is remembered between steps: counts are taken from the own tokens of a row, so a penalty is
the same after a retraction, in any batch, and a row that is given up leaves nothing behind.

What is computed stays on the device of the logits, and nobody waits for it here. Which parts run,
and for which rows, follows from `SamplingRows.features`, which the host has.

A token is a pure function of (seed, position, the logits of the row). The uniform number for
position p is `splitmix64(splitmix64(seed) ^ p)`: counter based, so it needs no generator state, and
a request draws the same numbers alone, in any batch, after a retraction or a restart. How a token
is found with it is said in `platforms.ops.sampling`: in the order of token ids, with cuts that are
thresholds on probabilities. Neither depends on how a library sorts ties or on how many candidates
another row of the batch asked for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vivace.platforms.host import upload
from vivace.platforms.ops.sampling import Penalties, SamplingBatch, SamplingOps, Truncations
from vivace.protocol.messages import LogprobOptions, SamplingParams
from vivace.sampling.logprobs import TokenScores, score

BAD_NUMBERS = (
    "the model's output for this request is not a number (NaN or infinite logits); "
    "the request was stopped"
)


@dataclass(frozen=True, slots=True)
class Entries:
    """Where tokens are drawn. A row has several entries where drafts stand behind what it knows:
    each sees the tokens before its own position as history, drafts too."""

    rows: Tensor
    """[n] int64"""
    positions: Tensor
    """[n] int64: of the token that is drawn"""
    host_rows: np.ndarray
    """[n] int64: `rows`, which a plan names on the host"""

    def __len__(self) -> int:
        return len(self.host_rows)

    def select(self, chosen: np.ndarray, index: Tensor) -> Entries:
        """Those at `chosen[m]`, in ascending order; `index`: the same on the device."""
        if len(chosen) == len(self):
            return self
        return Entries(
            self.rows.index_select(0, index),
            self.positions.index_select(0, index),
            self.host_rows[chosen],
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
        wanted = _wanted(columns.features[entries.host_rows])
        if wanted & (PENALIZED | MINIMUM | BIASED):
            adjust(self._ops, logits, entries, columns, history)
        tokens, bad = self._ops.argmax(logits)
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
        settings = columns.settings.index_select(0, picked.rows)
        host = columns.host[picked.host_rows]
        batch = SamplingBatch(
            temperature=settings[:, TEMPERATURE],
            top_k=settings[:, TOP_K],
            top_p=settings[:, TOP_P],
            min_p=settings[:, MIN_P],
            uniform=uniforms(columns.seed.index_select(0, picked.rows), picked.positions),
            host=Truncations(top_k=host[:, TOP_K], top_p=host[:, TOP_P], min_p=host[:, MIN_P]),
        )
        drawn = self._ops.sample(logits, index, batch)
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Histories:
    """The tokens of all rows, by row and not by batch entry."""

    tokens: Tensor
    """[rows, context + 1] int32, or more where drafts stand behind them"""
    prompt: Tensor
    """[rows] int64: how many of them are prompt"""
    known: np.ndarray
    """[rows] int64, on the host: how many are known, or more"""
    drafts: int = 0
    """how many more may stand before an entry"""


def adjust(
    ops: SamplingOps,
    logits: Tensor,
    entries: Entries,
    columns: SamplingRows,
    history: Histories,
) -> None:
    """Apply, in place, to logits[n, V] of n entries: penalties, then minimum length, then bias."""
    features = columns.features[entries.host_rows]
    wanted = _wanted(features)
    if wanted & PENALIZED:
        _penalize(ops, logits, np.flatnonzero(features & PENALIZED), entries, columns, history)
    if wanted & MINIMUM:
        _mask_stops(logits, np.flatnonzero(features & MINIMUM), entries, columns, history)
    if wanted & BIASED:
        _add_bias(logits, np.flatnonzero(features & BIASED), entries.host_rows, columns)


def _wanted(features: np.ndarray) -> int:
    """All feature bits of a batch."""
    return int(np.bitwise_or.reduce(features))


def _penalize(
    ops: SamplingOps,
    logits: Tensor,
    penalized: np.ndarray,
    entries: Entries,
    columns: SamplingRows,
    history: Histories,
) -> None:
    index = upload(penalized, logits.device)
    picked = entries.select(penalized, index)
    settings = columns.settings.index_select(0, picked.rows)
    penalties = Penalties(
        rows=picked.rows,
        prompt=history.prompt.index_select(0, picked.rows),
        known=picked.positions,
        frequency=settings[:, FREQUENCY],
        presence=settings[:, PRESENCE],
        repetition=settings[:, REPETITION],
        tokens=history.tokens,
        longest=int(history.known[picked.host_rows].max()) + history.drafts,
    )
    ops.apply_penalties(logits, index, penalties)


def _mask_stops(
    logits: Tensor,
    limited: np.ndarray,
    entries: Entries,
    columns: SamplingRows,
    history: Histories,
) -> None:
    """Stop ids cannot be drawn while a row has fewer output tokens than its minimum."""
    index = upload(limited, logits.device)
    picked = entries.select(limited, index)
    drawn = picked.positions - history.prompt.index_select(0, picked.rows)
    early = drawn < columns.minimum.index_select(0, picked.rows)
    stops = [columns.stop_ids[row] for row in picked.host_rows.tolist()]
    place, ids, which = _flatten(stops, limited, logits)
    masked = torch.where(early.index_select(0, which), -torch.inf, logits[place, ids])
    logits.index_put_((place, ids), masked)


def _add_bias(logits: Tensor, biased: np.ndarray, rows: np.ndarray, columns: SamplingRows) -> None:
    pairs = [columns.bias[row] for row in rows[biased].tolist()]
    place, ids, _ = _flatten([ids for ids, _ in pairs], biased, logits)
    inside = [values[ids < logits.shape[1]] for ids, values in pairs]
    changed = logits[place, ids] + upload(np.concatenate(inside), logits.device)
    logits.index_put_((place, ids), changed)


def _flatten(
    ids: list[np.ndarray], entries: np.ndarray, logits: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """(entry, id, place in `entries`), int64 each, of all ids of the vocabulary in ids[m]."""
    inside = [some[some < logits.shape[1]] for some in ids]
    which = np.repeat(np.arange(len(ids)), [len(some) for some in inside])
    flat = (entries[which], np.concatenate(inside), which)
    place, columns, which = (upload(array, logits.device) for array in flat)
    return place, columns, which


SAMPLED = 1
"""temperature > 0"""
PENALIZED = 2
BIASED = 4
MINIMUM = 8
"""min_new_tokens masks stop ids"""
SCORED = 16
"""log-probabilities are wanted"""

TEMPERATURE, MIN_P, FREQUENCY, PRESENCE, REPETITION, TOP_P, TOP_K, MINIMUM_LENGTH = range(8)
"""columns of the settings; the first five are rounded to float32"""
_DEFAULTS = (1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0)
_SEED_MASK = (1 << 64) - 1


class SamplingRows:
    """Columns of [rows]. `features[row]`, on the host, says which parts of the sampler a row needs
    at all; the numbers are on the device, at addresses that stay."""

    def __init__(self, rows: int, device: torch.device) -> None:
        self._device = device
        self.features = np.zeros(rows, np.uint8)
        self.host = np.tile(np.array(_DEFAULTS), (rows, 1))
        """[rows, 8] float64: the settings on the host, where shapes are decided"""
        self.settings = upload(self.host, device)
        """the same on the device; what follows are its columns"""
        (
            self.temperature,
            self.min_p,
            self.frequency,
            self.presence,
            self.repetition,
            self.top_p,
            self.top_k,
            self.minimum,
        ) = self.settings.unbind(1)
        self.seed = torch.zeros(rows, dtype=torch.int64, device=device)
        """splitmix64 of the request's seed"""
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
        single = (
            1.0 if greedy else params.temperature,
            params.min_p,
            params.frequency_penalty,
            params.presence_penalty,
            params.repetition_penalty,
        )
        self.host[row, :TOP_P] = np.array(single, np.float32)
        self.host[row, TOP_P:] = params.top_p, max(0, params.top_k), params.min_new_tokens
        self.settings[row] = upload(self.host[row], self._device)  # on the CPU onto itself
        if not greedy:
            seed = np.array([params.seed & _SEED_MASK], np.uint64).view(np.int64)
            self.seed[row : row + 1] = splitmix64(upload(seed, self._device))
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
