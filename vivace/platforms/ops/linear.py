"""Matrix products with a weight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from vivace.platforms.ops.narrow import NarrowWeight, linear_narrow, pack_narrow
from vivace.platforms.ops.stored import Int8Rows, StoredBlocks, joined_int8
from vivace.platforms.ops.w8a8 import W8A8Weight, linear_w8a8, pack_w8a8


@dataclass(frozen=True, slots=True)
class Operands:
    """What `linear` takes beside x."""

    weight: Any
    bias: Tensor | None


def pack_linear(pieces: Sequence[Tensor | StoredBlocks | Int8Rows]) -> Any:
    """Weights [some of out, in] in the form `linear` likes best: here, one tensor [out, in].

    Blocks are decoded to float32, int8 rows too unless activations become int8 as well. Raises
    ValueError where they do for some pieces only.
    """
    blocks = [piece for piece in pieces if isinstance(piece, StoredBlocks) and piece.narrow]
    if len(blocks) == len(pieces):
        return pack_narrow(blocks)
    if blocks:
        raise ValueError("activations are int8 for some parts of a layer and floats for others")
    narrow = [piece for piece in pieces if isinstance(piece, Int8Rows) and piece.narrow]
    if len(narrow) == len(pieces):
        return pack_w8a8(joined_int8(narrow))
    tensors = [piece if isinstance(piece, Tensor) else piece.decoded() for piece in pieces]
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)


def linear(x: Tensor, weight: Any, bias: Tensor | None = None, out: Tensor | None = None) -> Tensor:
    """x[T, in] times weight[out, in] transposed, plus bias[out] -> [T, out]."""
    if isinstance(weight, W8A8Weight):
        return linear_w8a8(x, weight, bias, out)
    if isinstance(weight, NarrowWeight):
        return linear_narrow(x, weight, bias, out)
    if out is None:
        return functional.linear(x, weight, bias)
    if bias is None:
        return torch.mm(x, weight.t(), out=out)
    return torch.addmm(bias, x, weight.t(), out=out)
