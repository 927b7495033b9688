"""Matrix products with a weight."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def pack_linear(weight: Tensor) -> Any:
    """weight[out, in] in the form `linear` likes best: here, itself."""
    return weight


def linear(x: Tensor, weight: Any, bias: Tensor | None = None, out: Tensor | None = None) -> Tensor:
    """x[T, in] times weight[out, in] transposed, plus bias[out] -> [T, out]."""
    if out is None:
        return functional.linear(x, weight, bias)
    if bias is None:
        return torch.mm(x, weight.t(), out=out)
    return torch.addmm(bias, x, weight.t(), out=out)
