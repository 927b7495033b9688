"""How one linear layer keeps and applies its weight."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from vivace.platforms.ops.table import Ops


class LinearMethod(Protocol):
    """One layer's weight in one format."""

    def load(self, weight: Tensor, bias: Tensor | None) -> None:
        """Keep weight[out, in] and bias[out], in whatever form `apply` wants."""
        ...

    def apply(self, x: Tensor) -> Tensor:
        """x[T, in] -> [T, out]."""
        ...


class Unquantized:
    """The weight in the model's dtype, packed as the device's `linear` likes it."""

    def __init__(self, ops: Ops, dtype: torch.dtype, device: torch.device) -> None:
        self._ops = ops
        self._place = device, dtype
        self._weight: Any = None
        self._bias: Tensor | None = None

    def load(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight = self._ops.pack_linear(weight.to(*self._place))
        self._bias = None if bias is None else bias.to(*self._place)

    def apply(self, x: Tensor) -> Tensor:
        return self._ops.linear(x, self._weight, self._bias)
