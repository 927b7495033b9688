"""Matrix products of int8 by int8: the slow twin of the kernels, with the same bits.

A row of activations becomes int8 with the scale max|x| / 127, as SGLang and vLLM do it. The sum of
products is exact, so neither the order nor the instruction set matters; it is rounded to float32
once, and then scaled.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from vivace.platforms.ops.stored import Int8Rows

EXACT = 1024
"""so many products of int8 add up exactly in float32"""
SMALLEST = 1e-10
"""the least maximum of a row: one of zeros has a scale too"""


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
    narrow = rows.mul(factor).round_().split(EXACT, dim=1)
    sums = sum(
        (functional.linear(a, b).double() for a, b in zip(narrow, weight.parts, strict=True)),
        start=torch.zeros((), dtype=torch.float64),
    )
    result = sums.float() * ((largest / 127.0) * weight.scales)
    if bias is not None:
        result += bias
    return result.to(x.dtype) if out is None else out.copy_(result)
