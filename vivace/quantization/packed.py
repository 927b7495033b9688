"""Weights that the device's `linear` takes as they are packed: floats, blocks, int8 rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vivace.platforms.attention import AttendingStep
from vivace.platforms.ops.linear import Operands
from vivace.platforms.ops.segments import Segments
from vivace.platforms.ops.table import (
    Ops,
    PackedWeight,
)
from vivace.platforms.platform import Platform
from vivace.quantization.method import WEIGHT, LayerWeights, LocalPart, Matrix

Quantize = Callable[[Sequence[Matrix]], Sequence[Matrix]]
"""a layer's pieces -> the pieces that are packed"""


@dataclass(frozen=True, kw_only=True)
class WeightPacker:
    """How one device keeps weights: floats become `dtype`; blocks and int8 rows stay what they
    are. Biases have the activations' dtype."""

    ops: Ops
    dtype: torch.dtype
    activations: torch.dtype
    device: torch.device
    blocks: bool = False
    """the device reads blocks and int8 rows as they are stored"""

    def pack(self, pieces: Sequence[Matrix], segments: Segments | None = None) -> PackedWeight:
        """[some of out, in], one below the other"""
        return self.pack_placed([self._place(piece) for piece in pieces], segments)

    def pack_placed(self, pieces: Sequence[Matrix], segments: Segments | None) -> PackedWeight:
        """Of layers by segments there is one piece."""
        if segments is None:
            return self.ops.pack_linear(pieces)
        return self.ops.pack_segments(pieces, segments)

    def pack_grouped(
        self, experts: Sequence[Sequence[Matrix]], segments: Segments | None = None
    ) -> PackedWeight:
        placed = [[self._place(piece) for piece in pieces] for pieces in experts]
        return self.pack_experts(placed, segments)

    def pack_experts(
        self, experts: Sequence[Sequence[Matrix]], segments: Segments | None
    ) -> PackedWeight:
        """`pack_grouped` of what is in its form and place already"""
        if segments is None:
            return self.ops.pack_grouped(experts)
        return self.ops.pack_segments([piece for (piece,) in experts], segments)

    def product(self, segments: Segments | None) -> Callable[[Tensor, Operands], Tensor]:
        """x[T, in] -> [T, out], or the sums of this rank's subtrees side by side"""
        linear, segmented = self.ops.linear, self.ops.segmented_linear
        if segments is None:
            return lambda x, operands: linear(x, operands.weight, operands.bias)
        return lambda x, operands: segmented(x, operands.weight, None, operands.bias)

    def place_bias(self, bias: Tensor | None) -> Tensor | None:
        return None if bias is None else bias.to(self.device, self.activations)

    def update(self, kept: Operands, new: Operands) -> None:
        """The numbers of `new` in the memory of `kept`."""
        self.ops.update_weight(kept.weight, new.weight)
        if kept.bias is not None and new.bias is not None:
            kept.bias.copy_(new.bias)

    def _place(self, piece: Matrix) -> Matrix:
        return piece.to(self.device, self.dtype) if isinstance(piece, Tensor) else piece


def weight_packer(platform: Platform, dtype: torch.dtype) -> WeightPacker:
    """How `platform` keeps weights of `dtype`."""
    return WeightPacker(
        ops=platform.ops,
        dtype=dtype,
        activations=platform.activations(dtype),
        device=platform.device(),
        blocks=platform.reads_blocks,
    )


def keep(pieces: Sequence[Matrix]) -> Sequence[Matrix]:
    return pieces


class PackedMethod:
    """`read` takes a part from the checkpoint, `quantize` marks or changes what is packed."""

    fusible = True

    def __init__(
        self,
        packer: WeightPacker,
        read: Callable[[LayerWeights, LocalPart], Matrix],
        quantize: Quantize = keep,
        suffixes: Collection[str] = (WEIGHT,),
    ) -> None:
        self._packer = packer
        self._multiply = packer.product(None)
        self._read = read
        self._quantize = quantize
        self._suffixes = suffixes
        self.operands = Operands(None, None)

    def load(self, weights: LayerWeights) -> None:
        self.operands = self._pack(weights)
        self._multiply = self._packer.product(weights.shape.segments)

    def update(self, weights: LayerWeights) -> None:
        self._packer.update(self.operands, self._pack(weights))

    def _pack(self, weights: LayerWeights) -> Operands:
        pieces = [self._read(weights, part) for part in weights.shape.parts]
        bias = self._packer.place_bias(weights.take_bias())
        segments = weights.shape.segments
        return Operands(self._packer.pack(self._quantize(pieces), segments), bias)

    def apply(self, x: Tensor, step: AttendingStep | None) -> Tensor:
        return self._multiply(x, self.operands)

    def suffixes(self) -> Collection[str]:
        return self._suffixes


class SharedMethod:
    """The product with a weight that another layer owns: a head with its embedding's."""

    fusible = False

    def __init__(self, packer: WeightPacker, weight: Callable[[], PackedWeight]) -> None:
        self._ops = packer.ops
        self._weight = weight
        self._packed: PackedWeight = None

    def load(self, weights: LayerWeights) -> None:
        """After the other layer."""
        self._packed = self._ops.pack_linear([self._weight()])

    def update(self, weights: LayerWeights) -> None:
        self._ops.update_weight(self._packed, self._ops.pack_linear([self._weight()]))

    def apply(self, x: Tensor, step: AttendingStep | None) -> Tensor:
        return self._ops.linear(x, self._packed)

    def suffixes(self) -> Collection[str]:
        return (WEIGHT,)
