"""GGUF's blocks as they are stored, multiplied with activations in int8."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from vivace.platforms.blocks import NARROWED
from vivace.platforms.ops.linear import Operands
from vivace.platforms.ops.stored import StoredBlocks
from vivace.quantization.method import LinearMethod, Matrix


class NarrowBlocks:
    """Marks the blocks that a kernel multiplies with int8 and leaves the rest to the method it
    wraps. Wider blocks and floats are multiplied with floats."""

    def __init__(self, inner: LinearMethod) -> None:
        self._inner = inner

    def load(self, pieces: Sequence[Matrix], bias: Tensor | None) -> None:
        self._inner.load([marked(piece) for piece in pieces], bias)

    def apply(self, x: Tensor) -> Tensor:
        return self._inner.apply(x)

    @property
    def operands(self) -> Operands:
        return self._inner.operands


def marked(piece: Matrix) -> Matrix:
    if isinstance(piece, StoredBlocks) and piece.kind in NARROWED:
        return piece.narrowed()
    return piece
