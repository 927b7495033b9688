"""Kinds of GGUF blocks, by GGUF's names in lower case, and segments of sums. Without torch:
settings depend on them."""

from __future__ import annotations

from math import gcd

INT8_ACTIVATION_KINDS = ("q4_0", "q4_1", "q5_0", "q5_1", "q4_k", "q5_k", "q6_k")
"""may be multiplied with activations in int8: those of at most six bits"""
KEPT = (*INT8_ACTIVATION_KINDS, "q8_0", "mxfp4")
"""kernels may be given them as they are stored"""
PLAIN = ("f32", "f16", "bf16")
"""no blocks: numbers"""
SEGMENTS = 24
"""of a layer's inputs at most, whose sums are added in one order on any number of ranks
(--enable-deterministic-inference): so many ranks divide them, and any number that divides it"""


def count_segments(units: int) -> int:
    """Of inputs in so many units that stay together"""
    return gcd(units, SEGMENTS)
