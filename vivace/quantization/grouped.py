"""The experts of a rank: each one's gate and up as one product, grouped by expert, and its down."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from vivace.platforms.attention import AttendingStep
from vivace.platforms.ops.moe import Routes
from vivace.platforms.ops.table import (
    Activation,
    GroupedLinearOp,
    PackedWeight,
    gated_activation,
)
from vivace.quantization.method import Combine, LayerWeights
from vivace.quantization.packed import WeightPacker

LocalExperts = Sequence[tuple[LayerWeights, LayerWeights]]
"""(gate above up, down) of each"""


@dataclass(frozen=True, slots=True)
class GroupedOperands:
    """Of one product of all experts"""

    weight: PackedWeight
    bias: Tensor | None = None
    """[experts, outputs]; None where there is none, or another rank adds it"""
    scales: Tensor | None = None
    """float32[experts], of activations; the offsets too"""
    offsets: Tensor | None = None

    def by_expert(self) -> tuple[Tensor | None, ...]:
        return self.bias, self.scales, self.offsets


class ExpertProduct(Protocol):
    """How a format stores the matrices of experts, and multiplies with them."""

    def pack(self, experts: Sequence[LayerWeights]) -> GroupedOperands:
        """The same matrix of each. Raises CheckpointError."""
        ...

    def multiply(
        self, product: GroupedLinearOp, x: Tensor, operands: GroupedOperands, routes: Routes
    ) -> Tensor:
        """x[pairs, in] -> [pairs, out]"""
        ...

    def suffixes(self) -> Collection[str]: ...


class GroupedExperts:
    """An `ExpertMethod`"""

    def __init__(self, packer: WeightPacker, activation: Activation, product: ExpertProduct):
        self._packer = packer
        self._ops = packer.ops
        self._product = product
        self._activate = gated_activation(packer.ops, activation)
        self._multiply_down: GroupedLinearOp = packer.ops.grouped_linear
        self._count = 0
        self.suffixes = product.suffixes
        self.gate_up = self.down = GroupedOperands(None)

    def load(self, experts: LocalExperts) -> None:
        self._count = len(experts)
        self.gate_up, self.down = self._pack(experts)
        if experts[0][1].shape.segments is not None:
            self._multiply_down = self._ops.segmented_linear

    def update(self, experts: LocalExperts) -> None:
        self.prepare(range(self._count), experts)()

    def prepare(self, slots: Sequence[int], experts: LocalExperts) -> Callable[[], None]:
        new, at = self._pack(experts), torch.tensor(list(slots), device=self._packer.device)

        def put() -> None:
            for kept, packed in zip((self.gate_up, self.down), new, strict=True):
                weight = self._ops.select_grouped(kept.weight, slots)
                self._ops.update_weight(weight, packed.weight)
                for old, other in zip(kept.by_expert(), packed.by_expert(), strict=True):
                    if old is not None and other is not None:
                        old.index_copy_(0, at, other)

        return put

    def _pack(self, experts: LocalExperts) -> tuple[GroupedOperands, GroupedOperands]:
        gate_ups, downs = zip(*experts, strict=True)
        return self._product.pack(gate_ups), self._product.pack(downs)

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
        ops, multiply = self._ops, self._product.multiply
        before, behind = (weights, None) if weigh_inputs else (None, weights)
        routes = ops.moe_routes(experts, self._count)
        rows = ops.moe_permute(x, routes, before)
        inner = self._activate(multiply(ops.grouped_linear, rows, self.gate_up, routes))
        pairs = multiply(self._multiply_down, inner, self.down, routes)
        return (combine or ops.moe_combine)(pairs, behind, routes)
