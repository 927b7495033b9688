"""Experts whose matrices the device multiplies with as they are packed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor

from vivace.platforms.ops.moe import Routes
from vivace.platforms.ops.table import Activation, GroupedLinearOp
from vivace.quantization.grouped import GroupedExperts, GroupedOperands
from vivace.quantization.method import WEIGHT, LayerWeights, LocalPart, Matrix
from vivace.quantization.packed import Quantize, WeightPacker, keep


class PackedProduct:
    """`read` takes a part from the checkpoint, `quantize` marks or changes what is packed."""

    def __init__(
        self,
        packer: WeightPacker,
        read: Callable[[LayerWeights, LocalPart], Matrix],
        quantize: Quantize,
        suffixes: Collection[str],
    ) -> None:
        self._packer = packer
        self._read = read
        self._quantize = quantize
        self._suffixes = suffixes

    def pack(self, experts: Sequence[LayerWeights]) -> GroupedOperands:
        pieces = [self._pieces(one) for one in experts]
        biases = [bias for one in experts if (bias := one.take_bias()) is not None]
        bias = self._packer.place_bias(torch.stack(biases)) if biases else None
        return GroupedOperands(self._packer.pack_grouped(pieces, experts[0].shape.segments), bias)

    def _pieces(self, weights: LayerWeights) -> Sequence[Matrix]:
        return self._quantize([self._read(weights, part) for part in weights.shape.parts])

    def multiply(
        self, product: GroupedLinearOp, x: Tensor, operands: GroupedOperands, routes: Routes
    ) -> Tensor:
        return product(x, operands.weight, routes, operands.bias)

    def suffixes(self) -> Collection[str]:
        return self._suffixes


def packed_experts(
    packer: WeightPacker,
    read: Callable[[LayerWeights, LocalPart], Matrix],
    activation: Activation,
    quantize: Quantize = keep,
    suffixes: Collection[str] = (WEIGHT,),
) -> GroupedExperts:
    return GroupedExperts(packer, activation, PackedProduct(packer, read, quantize, suffixes))
