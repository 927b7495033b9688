"""Sampling settings of every row, as columns: one array per field, indexed by row."""

from __future__ import annotations

import numpy as np

from vivace.protocol.messages import SamplingParams

SAMPLED = 1
"""temperature > 0"""
PENALIZED = 2
BIASED = 4
MINIMUM = 8
"""min_new_tokens masks stop ids"""
SCORED = 16
"""log-probabilities are wanted"""

GREEDY_BELOW = 1e-6
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
        greedy = params.temperature < GREEDY_BELOW
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
