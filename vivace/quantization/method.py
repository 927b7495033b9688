"""How one linear layer keeps its weight, and what a quantization does to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from vivace.platforms.blocks import INT8_ACTIVATION_KINDS
from vivace.platforms.ops.linear import Operands
from vivace.platforms.ops.stored import Int8Rows, StoredBlocks, int8_rows
from vivace.platforms.ops.table import Ops

Matrix = Tensor | StoredBlocks | Int8Rows
Quantize = Callable[[Sequence[Matrix]], Sequence[Matrix]]
"""a layer's pieces -> the pieces that are packed"""

SCHEMES = {"w8a8_int8": True, "w8a16": False}
"""--quantization -> activations become int8 too"""
OF_INT8_CHECKPOINTS = "w8a8_int8"
HEAD = "lm_head"


def keep(pieces: Sequence[Matrix]) -> Sequence[Matrix]:
    return pieces


class LinearMethod:
    """One layer's weight, packed as the device's `linear` likes it.

    `quantize` marks or changes the pieces; floats become `dtype` then; blocks and int8 rows stay
    what they are. The bias has the activations' dtype.
    """

    def __init__(
        self,
        ops: Ops,
        dtype: torch.dtype,
        activations: torch.dtype,
        device: torch.device,
        quantize: Quantize = keep,
    ) -> None:
        self._ops = ops
        self._dtype = dtype
        self._activations = activations
        self._device = device
        self._quantize = quantize
        self.operands = Operands(None, None)
        """what ops take, `Ops.linear` and those that do more at once"""

    def load(self, pieces: Sequence[Matrix], bias: Tensor | None) -> None:
        """The pieces [some of out, in], one below the other, and bias[out]."""
        weight: Any = self._ops.pack_linear(
            [
                piece.to(self._device, self._dtype) if isinstance(piece, Tensor) else piece
                for piece in self._quantize(pieces)
            ]
        )
        bias = None if bias is None else bias.to(self._device, self._activations)
        self.operands = Operands(weight, bias)


def select_scheme(requested: str | None, int8_checkpoint: bool) -> str | None:
    """One of SCHEMES, or None: weights stay floats, or blocks. Without a wish, what the
    checkpoint was made for."""
    if requested is None and int8_checkpoint:
        return OF_INT8_CHECKPOINTS
    return requested if requested in SCHEMES else None


def select_quant_method(
    name: str, scheme: str | None, *, int8_checkpoint: bool, blocks: bool, int8_activations: bool
) -> Quantize:
    """For the layer `name`. `blocks`: the device reads int8 rows as they are; `int8_activations`:
    GGUF's blocks are multiplied with those. The head is never quantized here, nor what it reads:
    its error decides tokens."""
    if scheme is None:
        return mark_int8_activations if int8_activations and name != HEAD else keep
    online = not int8_checkpoint and name != HEAD
    return Int8(int8_activations=SCHEMES[scheme], online=online, decode=not blocks)


def mark_int8_activations(pieces: Sequence[Matrix]) -> Sequence[Matrix]:
    """Marks the blocks that a kernel multiplies with int8. Wider blocks and floats are multiplied
    with floats."""
    return [
        piece.with_int8_activations()
        if isinstance(piece, StoredBlocks) and piece.kind in INT8_ACTIVATION_KINDS
        else piece
        for piece in pieces
    ]


class Int8:
    """A layer's pieces as int8 rows with one scale for each output channel.

    `int8_activations`: activations become int8 too (W8A8), otherwise they stay floats (W8A16).
    `online`: floats and blocks are quantized here; otherwise a layer that the checkpoint left alone
    stays as it is, and so does a weight that was packed already (a head that shares the
    embedding's). `decode`: the device has no product of floats with int8, so W8A16 weights become
    floats again.
    """

    def __init__(self, *, int8_activations: bool, online: bool, decode: bool = False) -> None:
        self._int8_activations = int8_activations
        self._online = online
        self._decode = decode and not int8_activations

    def __call__(self, pieces: Sequence[Matrix]) -> Sequence[Matrix]:
        stored = any(isinstance(piece, Int8Rows) for piece in pieces)
        return [self._rows(piece) for piece in pieces] if self._online or stored else pieces

    def _rows(self, piece: Matrix) -> Matrix:
        if not isinstance(piece, Int8Rows):
            piece = int8_rows(piece.dequantize() if isinstance(piece, StoredBlocks) else piece)
        return (
            piece.dequantize()
            if self._decode
            else replace(piece, int8_activations=self._int8_activations)
        )
