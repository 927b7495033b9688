"""int8 weights, one scale for each output channel: from the checkpoint, or made while loading."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from vivace.platforms.ops.linear import Operands
from vivace.platforms.ops.stored import Int8Rows, StoredBlocks, int8_rows
from vivace.quantization.method import LinearMethod, Matrix


class Int8:
    """Turns a layer's pieces into int8 rows and leaves the rest to the method it wraps.

    `narrow`: activations become int8 too (W8A8), otherwise they stay floats (W8A16). `online`:
    floats and blocks are quantized here; otherwise a layer that the checkpoint left alone stays
    as it is, and so does a weight that was packed already (a head that shares the embedding's).
    `decode`: the device has no product of floats with int8, so W8A16 weights become floats again.
    """

    def __init__(
        self, inner: LinearMethod, *, narrow: bool, online: bool, decode: bool = False
    ) -> None:
        self._inner = inner
        self._narrow = narrow
        self._online = online
        self._decode = decode and not narrow

    def load(self, pieces: Sequence[Matrix], bias: Tensor | None) -> None:
        stored = any(isinstance(piece, Int8Rows) for piece in pieces)
        chosen = [self._rows(piece) for piece in pieces] if self._online or stored else pieces
        self._inner.load(chosen, bias)

    def _rows(self, piece: Matrix) -> Matrix:
        if not isinstance(piece, Int8Rows):
            piece = int8_rows(piece.decoded() if isinstance(piece, StoredBlocks) else piece)
        return piece.decoded() if self._decode else replace(piece, narrow=self._narrow)

    def apply(self, x: Tensor) -> Tensor:
        return self._inner.apply(x)

    @property
    def operands(self) -> Operands:
        return self._inner.operands
