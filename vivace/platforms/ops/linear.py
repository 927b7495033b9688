"""Matrix products with a weight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from vivace.platforms.ops.stored import StoredBlocks


def pack_linear(pieces: Sequence[Tensor | StoredBlocks]) -> Any:
    """Weights [some of out, in] in the form `linear` likes best: here, one tensor [out, in].

    Blocks are decoded to float32.
    """
    tensors = [piece if isinstance(piece, Tensor) else piece.decoded() for piece in pieces]
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)


def linear(x: Tensor, weight: Any, bias: Tensor | None = None, out: Tensor | None = None) -> Tensor:
    """x[T, in] times weight[out, in] transposed, plus bias[out] -> [T, out]."""
    if out is None:
        return functional.linear(x, weight, bias)
    if bias is None:
        return torch.mm(x, weight.t(), out=out)
    return torch.addmm(bias, x, weight.t(), out=out)
