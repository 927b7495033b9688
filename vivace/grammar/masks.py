"""Masks: one bit for each token of a vocabulary, in words of int32."""

from __future__ import annotations

import numpy as np

MASK_BITS = 32
"""tokens in a word of a mask"""


def mask_words(vocabulary: int) -> int:
    return -(-vocabulary // MASK_BITS)


def pack_mask(bits: np.ndarray) -> np.ndarray:
    """[words] int32 of bits[tokens]."""
    padded = np.zeros(mask_words(len(bits)) * MASK_BITS, np.bool_)
    padded[: len(bits)] = bits
    return np.packbits(padded, bitorder="little").view(np.int32)


def has_bit(mask: np.ndarray, token: int) -> bool:
    return bool(mask[token // MASK_BITS] >> token % MASK_BITS & 1)


def set_bit(mask: np.ndarray, token: int) -> None:
    mask.view(np.uint32)[token // MASK_BITS] |= np.uint32(1 << token % MASK_BITS)


def find_bits(mask: np.ndarray) -> list[int]:
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()
