"""How one linear layer keeps and applies its weight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from vivace.platforms.ops.linear import Operands
from vivace.platforms.ops.stored import Int8Rows, StoredBlocks
from vivace.platforms.ops.table import Ops

Matrix = Tensor | StoredBlocks | Int8Rows


class LinearMethod(Protocol):
    """One layer's weight in one format."""

    def load(self, pieces: Sequence[Matrix], bias: Tensor | None) -> None:
        """Keep the pieces [some of out, in], one below the other, and bias[out], in whatever form
        `apply` wants."""
        ...

    def apply(self, x: Tensor) -> Tensor:
        """x[T, in] -> [T, out]."""
        ...

    @property
    def operands(self) -> Operands:
        """What ops take that do more than `apply`."""
        ...


class Packed:
    """The weight as the checkpoint has it, packed as the device's `linear` likes it.

    Floats become `dtype` first; blocks and int8 rows stay what they are. The bias has the
    activations' dtype.
    """

    def __init__(
        self, ops: Ops, dtype: torch.dtype, activations: torch.dtype, device: torch.device
    ) -> None:
        self._ops = ops
        self._dtype = dtype
        self._activations = activations
        self._device = device
        self._weight: Any = None
        self._bias: Tensor | None = None

    def load(self, pieces: Sequence[Matrix], bias: Tensor | None) -> None:
        self._weight = self._ops.pack_linear(
            [
                piece.to(self._device, self._dtype) if isinstance(piece, Tensor) else piece
                for piece in pieces
            ]
        )
        self._bias = None if bias is None else bias.to(self._device, self._activations)

    def apply(self, x: Tensor) -> Tensor:
        return self._ops.linear(x, self._weight, self._bias)

    @property
    def operands(self) -> Operands:
        return Operands(self._weight, self._bias)
