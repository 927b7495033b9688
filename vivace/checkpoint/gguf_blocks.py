"""GGUF's blocks of quantized numbers -> tensors.

Blocks are decoded a few at a time, in threads, by torch for the commonest types and by the gguf
package for the others; the numbers are the gguf package's to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from gguf import constants, quants
from torch import Tensor

from vivace.checkpoint.gguf_types import GGML_QUANT_SIZES, GGMLQuantizationType

ELEMENTS_AT_ONCE = 1 << 15
"""Decoded by one call. Stays in the cache, and torch starts no threads of its own for so few:
its threads and ours together would be more than there are cores."""
ELEMENTS_PER_TASK = 1 << 19
TWICE_E2M1 = (0.0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
"""twice the numbers of four bits: a sign, two bits of exponent, one of fraction"""


def known_to_gguf(kind: GGMLQuantizationType) -> constants.GGMLQuantizationType:
    """The package's own member; raises NotImplementedError where the installed one is older."""
    try:
        return constants.GGMLQuantizationType(kind)
    except ValueError:
        unknown = f"the installed package gguf does not know {kind.name}: pip install -U gguf"
        raise NotImplementedError(unknown) from None


def decode_blocks(data: np.ndarray, kind: GGMLQuantizationType, dtype: torch.dtype) -> Tensor:
    """uint8[rows, bytes] -> [rows, numbers] of `dtype`.

    Raises NotImplementedError for a type nobody can decode.
    """
    decode = DECODERS.get(kind)
    if decode is None:
        theirs = known_to_gguf(kind)
        return torch.from_numpy(np.array(quants.dequantize(data, theirs), np.float32)).to(dtype)
    return in_threads(decode, data, kind, dtype).view(data.shape[0], -1)


def in_threads(
    decode: Callable[[np.ndarray], Tensor],
    data: np.ndarray,
    kind: GGMLQuantizationType,
    dtype: torch.dtype,
) -> Tensor:
    """Every block of uint8[rows, bytes] -> [blocks, numbers of a block]."""
    size, nbytes = GGML_QUANT_SIZES[kind]
    blocks = data.reshape(-1, nbytes)
    result = torch.empty(len(blocks), size, dtype=dtype)
    share, step = ELEMENTS_PER_TASK // size, ELEMENTS_AT_ONCE // size

    def work(start: int) -> None:
        end = min(start + share, len(blocks))
        with torch.inference_mode():  # every thread has its own mode
            for at in range(start, end, step):
                to = min(at + step, end)
                result[at:to].copy_(decode(blocks[at:to]))

    starts = range(0, len(blocks), share)
    threads = min(torch.get_num_threads(), len(starts))
    if threads == 1:
        for start in starts:
            work(start)
    else:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(work, starts))
    return result


def q4_0(data: np.ndarray) -> Tensor:
    """[n, 18]: scale, 16 bytes of two numbers each -> float32 [n, 32]"""
    blocks = copy_tensor(data)
    return nibbles(blocks[:, 2:]).sub_(8).mul_(half(blocks, 0))


def q4_1(data: np.ndarray) -> Tensor:
    """[n, 20]: scale, minimum, 16 bytes of two numbers each -> float32 [n, 32]"""
    blocks = copy_tensor(data)
    return nibbles(blocks[:, 4:]).mul_(half(blocks, 0)).add_(half(blocks, 2))


def mxfp4(data: np.ndarray) -> Tensor:
    """[n, 17]: the exponent of a scale, 16 bytes of two numbers each -> float32 [n, 32]"""
    blocks = copy_tensor(data)
    codes = nibbles(blocks[:, 1:]).to(torch.int32)
    scales = torch.exp2(blocks[:, :1].float() - 128)
    return torch.tensor(TWICE_E2M1)[codes].mul_(scales)


def q8_0(data: np.ndarray) -> Tensor:
    """[n, 34]: scale, 32 signed bytes -> float32 [n, 32]"""
    blocks = copy_tensor(data)
    return blocks[:, 2:].view(torch.int8).float().mul_(half(blocks, 0))


def copy_tensor(data: np.ndarray) -> Tensor:
    """A copy: the file is mapped read-only, which torch does not like."""
    return torch.from_numpy(data.copy())


def half(blocks: Tensor, at: int) -> Tensor:
    """The float16 at byte `at` of every block, as float32 [n, 1]."""
    return blocks[:, at : at + 2].contiguous().view(torch.float16).float()


def nibbles(packed: Tensor) -> Tensor:
    """uint8[n, 16] -> float32 [n, 32]: the low halves of all bytes, then the high ones."""
    both = torch.empty(len(packed), 32, dtype=torch.uint8)
    torch.bitwise_and(packed, 15, out=both[:, :16])
    torch.bitwise_right_shift(packed, 4, out=both[:, 16:])
    return both.float()


def by_gguf(decoder: Any) -> Callable[[np.ndarray], Tensor]:
    return lambda data: torch.from_numpy(decoder.dequantize_blocks(data))


DECODERS: dict[GGMLQuantizationType, Callable[[np.ndarray], Tensor]] = {
    GGMLQuantizationType.Q4_0: q4_0,
    GGMLQuantizationType.Q4_1: q4_1,
    GGMLQuantizationType.Q8_0: q8_0,
    GGMLQuantizationType.Q5_0: by_gguf(quants.Q5_0),
    GGMLQuantizationType.Q5_1: by_gguf(quants.Q5_1),
    GGMLQuantizationType.Q2_K: by_gguf(quants.Q2_K),
    GGMLQuantizationType.Q3_K: by_gguf(quants.Q3_K),
    GGMLQuantizationType.Q4_K: by_gguf(quants.Q4_K),
    GGMLQuantizationType.Q5_K: by_gguf(quants.Q5_K),
    GGMLQuantizationType.Q6_K: by_gguf(quants.Q6_K),
    GGMLQuantizationType.MXFP4: mxfp4,
}
"""types whose blocks are decoded independently of each other, without preparation"""
