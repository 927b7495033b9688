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
    Activation,
    GroupedLinearOp,
    Ops,
    PackedWeight,
    gated_activation,
)
from vivace.quantization.method import WEIGHT, Combine, LayerWeights, LocalPart, Matrix

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


class PackedExperts:
    """Every expert's gate and up as one product, grouped by expert, and its down."""

    def __init__(
        self,
        packer: WeightPacker,
        read: Callable[[LayerWeights, LocalPart], Matrix],
        activation: Activation,
        quantize: Quantize = keep,
        suffixes: Collection[str] = (WEIGHT,),
    ) -> None:
        self._packer = packer
        self._ops = packer.ops
        self._read = read
        self._quantize = quantize
        self._suffixes = suffixes
        self._activate = gated_activation(packer.ops, activation)
        self._gate_up = Operands(None, None)
        self._down = Operands(None, None)
        self._count = 0
        self._multiply_down: GroupedLinearOp = packer.ops.grouped_linear

    def load(self, experts: Sequence[tuple[LayerWeights, LayerWeights]]) -> None:
        self._count = len(experts)
        self._gate_up, self._down = self._pack(experts)
        if experts[0][1].shape.segments is not None:
            self._multiply_down = self._ops.segmented_linear

    def update(self, experts: Sequence[tuple[LayerWeights, LayerWeights]]) -> None:
        self.prepare(range(self._count), experts)()

    def prepare(
        self, slots: Sequence[int], experts: Sequence[tuple[LayerWeights, LayerWeights]]
    ) -> Callable[[], None]:
        new, at = self._pack(experts), torch.tensor(list(slots), device=self._packer.device)

        def put() -> None:
            for kept, packed in zip((self._gate_up, self._down), new, strict=True):
                weight = self._ops.select_grouped(kept.weight, slots)
                self._ops.update_weight(weight, packed.weight)
                if kept.bias is not None and packed.bias is not None:
                    kept.bias.index_copy_(0, at, packed.bias)

        return put

    def _pack(
        self, experts: Sequence[tuple[LayerWeights, LayerWeights]]
    ) -> tuple[Operands, Operands]:
        gate_ups, downs = zip(*experts, strict=True)
        return self._pack_experts(gate_ups), self._pack_experts(downs)

    def _pack_experts(self, experts: Sequence[LayerWeights]) -> Operands:
        """Biases [experts, outputs], where they have some."""
        pieces = [self._pieces(one) for one in experts]
        biases = [bias for one in experts if (bias := one.take_bias()) is not None]
        bias = self._packer.place_bias(torch.stack(biases)) if biases else None
        segments = experts[0].shape.segments
        return Operands(self._packer.pack_grouped(pieces, segments), bias)

    def _pieces(self, weights: LayerWeights) -> Sequence[Matrix]:
        return self._quantize([self._read(weights, part) for part in weights.shape.parts])

    def apply(
        self,
        x: Tensor,
        weights: Tensor,
        experts: Tensor,
        step: AttendingStep,
        *,
        weigh_inputs: bool = False,
        combine: Combine | None = None,
    ) -> Tensor:
        ops = self._ops
        before, behind = (weights, None) if weigh_inputs else (None, weights)
        routes = ops.moe_routes(experts, self._count)
        rows = ops.moe_permute(x, routes, before)
        gate_up, down = self._gate_up, self._down
        inner = self._activate(ops.grouped_linear(rows, gate_up.weight, routes, gate_up.bias))
        pairs = self._multiply_down(inner, down.weight, routes, down.bias)
        return (combine or ops.moe_combine)(pairs, behind, routes)

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
