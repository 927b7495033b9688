"""Matrix products with a weight, and the slow twins of the int8 kernels.

GGUF's blocks (kernels/linear_int8.inc): every 32 neighboring activations of a row become int8
with the scale max|x| / 127, as llama.cpp does it (ggml-quants, block_q8_1). Kernels sum the
integers exactly; here the rounded activations are floats again, so that results differ by the
roundings of a sum in float32.

W8A8: a row of activations becomes int8 with the scale max|x| / 127, as SGLang and vLLM do it. The
sum of products is exact, so neither the order nor the instruction set matters; it is rounded to
float32 once, and then scaled: the same bits as the kernels'.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from vivace.platforms.ops.stored import (
    ACTIVATION_BLOCK,
    Int8Rows,
    Packable,
    StoredBlocks,
    concat_int8,
)

EXACT = 1024
"""so many products of int8 add up exactly in float32"""
SMALLEST = 1e-10
"""the least maximum of a block or row: one of zeros has a scale too"""


@dataclass(frozen=True, slots=True)
class Operands:
    """What `linear` takes beside x."""

    weight: Any
    bias: Tensor | None


def pack_linear(pieces: Sequence[Packable]) -> Any:
    """Weights [some of out, in] in the form `linear` likes best: here, one tensor [out, in].

    Blocks are decoded to float32, int8 rows too unless activations become int8 as well. Raises
    ValueError where they do for some pieces only.
    """
    blocks = [
        piece for piece in pieces if isinstance(piece, StoredBlocks) and piece.int8_activations
    ]
    if len(blocks) == len(pieces):
        return decode_blocks(blocks)
    if blocks:
        raise ValueError("activations are int8 for some parts of a layer and floats for others")
    int8 = [piece for piece in pieces if isinstance(piece, Int8Rows) and piece.int8_activations]
    if len(int8) == len(pieces):
        return pack_w8a8(concat_int8(int8))
    tensors = [piece if isinstance(piece, Tensor) else piece.dequantize() for piece in pieces]
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)


def linear(x: Tensor, weight: Any, bias: Tensor | None = None, out: Tensor | None = None) -> Tensor:
    """x[T, in] times weight[out, in] transposed, plus bias[out] -> [T, out]."""
    if isinstance(weight, W8A8Weight):
        return linear_w8a8(x, weight, bias, out)
    if isinstance(weight, DecodedBlocks):
        return linear_int8_blocks(x, weight, bias, out)
    if out is None:
        return functional.linear(x, weight, bias)
    if bias is None:
        return torch.mm(x, weight.t(), out=out)
    return torch.addmm(bias, x, weight.t(), out=out)


@dataclass(frozen=True, slots=True)
class DecodedBlocks:
    """Decoded blocks: float32[out, in]"""

    numbers: Tensor


def decode_blocks(pieces: Sequence[StoredBlocks]) -> DecodedBlocks:
    return DecodedBlocks(torch.cat([piece.dequantize() for piece in pieces]))


def fake_quantize(x: Tensor) -> Tensor:
    """x[T, in] float32 -> what its int8 numbers stand for; a block with a NaN or an infinity is
    NaN"""
    blocks = x.unflatten(1, (-1, ACTIVATION_BLOCK))
    largest = blocks.abs().amax(2, keepdim=True).clamp_min(SMALLEST)
    # `127 / largest` would be a product with the reciprocal: other bits than the kernels'.
    factor = torch.div(torch.full_like(largest, 127.0), largest)
    numbers = blocks.mul(factor).round_()
    return numbers.mul_(largest / 127.0).flatten(1)


def linear_int8_blocks(
    x: Tensor, weight: DecodedBlocks, bias: Tensor | None = None, out: Tensor | None = None
) -> Tensor:
    """x[T, in] -> [T, out]"""
    result = functional.linear(fake_quantize(x.float()), weight.numbers, bias).to(x.dtype)
    return result if out is None else out.copy_(result)


@dataclass(frozen=True, slots=True)
class W8A8Weight:
    """int8 numbers as float32, in parts [out, up to EXACT of in]."""

    parts: tuple[Tensor, ...]
    scales: Tensor


def pack_w8a8(rows: Int8Rows) -> W8A8Weight:
    parts = tuple(part.float() for part in rows.numbers.split(EXACT, dim=1))
    return W8A8Weight(parts, rows.scales)


def linear_w8a8(
    x: Tensor, weight: W8A8Weight, bias: Tensor | None = None, out: Tensor | None = None
) -> Tensor:
    """x[T, in] -> [T, out]; a row with a NaN or an infinity becomes NaN"""
    rows = x.float()
    largest = rows.abs().amax(1, keepdim=True).clamp_min(SMALLEST)
    # `127 / largest` would be a product with the reciprocal: other bits than the kernels'.
    factor = torch.div(torch.full_like(largest, 127.0), largest)
    int8 = rows.mul(factor).round_().split(EXACT, dim=1)
    sums = sum(
        (functional.linear(a, b).double() for a, b in zip(int8, weight.parts, strict=True)),
        start=torch.zeros((), dtype=torch.float64),
    )
    result = sums.float() * ((largest / 127.0) * weight.scales)
    if bias is not None:
        result += bias
    return result.to(x.dtype) if out is None else out.copy_(result)


@dataclass(frozen=True, slots=True)
class SegmentedWeight:
    """What `pack_segments` returns here."""

    weights: tuple[tuple[Any, ...], ...]
    """of each expert, its segments as `pack_linear` has them; None: an empty one"""
    edges: tuple[int, ...]
    """where segments begin among the inputs, and the end"""
    merges: tuple[int, ...]


def quantize_static(x: Tensor, scale: float, offset: float) -> Tensor:
    """x[T, n] -> the int8 numbers that stand for it, as floats of x's type (ModelSlim's
    npu_quantize)."""
    return x.float().div(scale).add_(offset).round_().clamp_(-128, 127).to(x.dtype)


def update_weight(kept: Any, new: Any) -> None:
    """`kept` gets the numbers of `new`, in its own memory: tensors, one by one, of what
    `pack_linear`, `pack_embedding` and `pack_grouped` return here.

    Raises ValueError where the two were not packed alike.
    """
    if isinstance(kept, Tensor):
        if kept.shape != new.shape or kept.dtype != new.dtype:
            raise ValueError(f"{kept.dtype} {list(kept.shape)} is not {new.dtype} {new.shape}")
        kept.copy_(new)
        return
    for old, other in zip(packed_parts(kept), packed_parts(new), strict=True):
        update_weight(old, other)


def packed_parts(weight: Any) -> Sequence[Any]:
    match weight:
        case DecodedBlocks():
            return (weight.numbers,)
        case W8A8Weight():
            return (*weight.parts, weight.scales)
        case list():
            return weight
        case SegmentedWeight():
            return [part for parts in weight.weights for part in parts if part is not None]
    raise ValueError(f"{type(weight).__name__}: not a packed weight")
