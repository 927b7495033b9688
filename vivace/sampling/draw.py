"""The random numbers of draws: a token is a pure function of (seed, position, the row's logits).

The uniform number for position p is `splitmix64(splitmix64(seed) ^ p)`: counter based, so it needs
no generator state, and a request draws the same numbers alone, in any batch, after a retraction or
a restart. How a token is found with it is said in `platforms.ops.sampling`: in the order of token
ids, with cuts that are thresholds on probabilities. Neither depends on how a library sorts ties or
on how many candidates another row of the batch asked for.
"""

from __future__ import annotations

import numpy as np

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
