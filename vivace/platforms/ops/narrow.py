"""Products of GGUF's blocks with activations in int8: the slow twin of kernels/linear_narrow.inc.

Every 32 neighboring activations of a row become int8 with the scale max|x| / 127, as llama.cpp
does it (ggml-quants, block_q8_1). Kernels sum the integers exactly; here the rounded activations
are floats again, so that results differ by the roundings of a sum in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from vivace.platforms.ops.stored import NARROW_BLOCK, StoredBlocks

SMALLEST = 1e-10
"""the least maximum of a block: one of zeros has a scale too"""


@dataclass(frozen=True, slots=True)
class NarrowWeight:
    """Decoded blocks: float32[out, in]"""

    numbers: Tensor


def pack_narrow(pieces: Sequence[StoredBlocks]) -> NarrowWeight:
    return NarrowWeight(torch.cat([piece.decoded() for piece in pieces]))


def rounded(x: Tensor) -> Tensor:
    """x[T, in] float32 -> what its int8 numbers stand for; a block with a NaN or an infinity is
    NaN"""
    blocks = x.unflatten(1, (-1, NARROW_BLOCK))
    largest = blocks.abs().amax(2, keepdim=True).clamp_min(SMALLEST)
    # `127 / largest` would be a product with the reciprocal: other bits than the kernels'.
    factor = torch.div(torch.full_like(largest, 127.0), largest)
    numbers = blocks.mul(factor).round_()
    return numbers.mul_(largest / 127.0).flatten(1)


def linear_narrow(
    x: Tensor, weight: NarrowWeight, bias: Tensor | None = None, out: Tensor | None = None
) -> Tensor:
    """x[T, in] -> [T, out]"""
    result = functional.linear(rounded(x.float()), weight.numbers, bias).to(x.dtype)
    return result if out is None else out.copy_(result)
