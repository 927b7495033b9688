"""Mixtures of experts: a router that chooses for every token, the experts of this rank, and the
shared expert that every token passes. Shazeer et al. 2017; Fedus et al. 2021; Dai et al. 2024."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from vivace.checkpoint.weights import Weights
from vivace.layers.layout import split
from vivace.layers.linear import GatedMLP, Linear, Part, Shard
from vivace.layers.module import Bindings, Module, sibling
from vivace.platforms.attention import AttendingStep
from vivace.platforms.ops.moe import Gate
from vivace.platforms.ops.table import Ops
from vivace.quantization.method import (
    ALL,
    ExpertMethod,
    LayerWeights,
    LinearShape,
    LocalPart,
    claim_tensors,
)


@dataclass(frozen=True, kw_only=True)
class ExpertNames:
    """What a family's checkpoints call the mixture and the three matrices of an expert."""

    mixture: str = "mlp"
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"


USUAL_NAMES = ExpertNames()


class RoutedExperts(Module):
    """x[T, hidden] -> [T, hidden]: each token's weighted sum of what its experts make of it, which
    is down(act(gate(x)) * up(x)). Ranks divide the inside of every expert."""

    method: ExpertMethod

    def __init__(
        self,
        hidden: int,
        inner: int,
        count: int,
        activation: str,
        names: ExpertNames = USUAL_NAMES,
    ) -> None:
        self.hidden = hidden
        self.inner = inner
        self.count = count
        self.activation = activation
        self.names = names

    def bind(self, name: str, env: Bindings) -> None:
        super().bind(name, env)
        group = env.layout.experts
        share = split(name, self.inner, 1, group)
        self.shapes = [self._shapes(expert, share) for expert in range(self.count)]
        self._sum: Callable[[Tensor], Tensor] | None = group.sum if group.size > 1 else None
        self.method = env.quantization.expert_method(name, self.activation)

    def _shapes(self, expert: int, share: slice) -> tuple[LinearShape, LinearShape]:
        """(gate above up, down)"""
        place, names = f"{self.name}.{expert}", self.names
        gate = LocalPart(f"{place}.{names.gate}", self.inner, share)
        up = LocalPart(f"{place}.{names.up}", self.inner, share)
        down = LocalPart(f"{place}.{names.down}", self.hidden, ALL)
        return (
            LinearShape((gate, up), self.hidden),
            LinearShape((down,), self.inner, columns=share),
        )

    def _weights(self, weights: Weights) -> Sequence[tuple[LayerWeights, LayerWeights]]:
        return [
            (LayerWeights(weights, gate_up), LayerWeights(weights, down))
            for gate_up, down in self.shapes
        ]

    def load(self, weights: Weights) -> None:
        self.method.load(self._weights(weights))

    def update(self, weights: Weights) -> None:
        self.method.update(self._weights(weights))

    def claims(self) -> Iterator[str]:
        for shapes in self.shapes:
            for shape in shapes:
                yield from claim_tensors(shape, self.method.suffixes())

    def __call__(self, x: Tensor, weights: Tensor, chosen: Tensor, step: AttendingStep) -> Tensor:
        """weights[T, top] float32, chosen[T, top] int64: a token's experts"""
        y = self.method.apply(x, weights, chosen, step)
        return y if self._sum is None else self._sum(y)


class MixtureOfExperts(Module):
    """What stands in the place of the MLP. `shared_inner`: of the expert that every token passes,
    gated by the token; 0 where there is none."""

    _ops: Ops

    def __init__(
        self,
        hidden: int,
        inner: int,
        count: int,
        activation: str,
        gate: Gate,
        *,
        names: ExpertNames = USUAL_NAMES,
        shared_inner: int = 0,
    ) -> None:
        self._choose = gate
        self._name = names.mixture
        self.gate = replicated(hidden, "gate", count)
        self.experts = RoutedExperts(hidden, inner, count, activation, names)
        self.shared_expert: GatedMLP | None = None
        self.shared_expert_gate: Linear | None = None
        if shared_inner:
            self.shared_expert = GatedMLP(hidden, shared_inner, activation)
            self.shared_expert_gate = replicated(hidden, "shared_expert_gate", 1)

    def bind(self, name: str, env: Bindings) -> None:
        super().bind(sibling(name, self._name), env)
        self._ops = env.ops

    def __call__(self, x: Tensor, step: AttendingStep) -> Tensor:
        """x[T, hidden] -> [T, hidden]"""
        weights, chosen = self._ops.moe_gate(self._choose, self.gate(x, step))
        routed = self.experts(x, weights, chosen, step)
        if self.shared_expert is None or self.shared_expert_gate is None:
            return routed
        shared = self.shared_expert(x, step)
        return self._ops.add_gated(routed, shared, self.shared_expert_gate(x, step))


def replicated(hidden: int, name: str, size: int) -> Linear:
    """A small layer that every rank has whole, and no format quantizes."""
    return Linear(hidden, [Part(name, size)], shard=Shard.OUTPUTS, group="replicated", floats=True)
