"""Mixtures of experts: a router that chooses for every token, the experts of this rank, and the
shared expert that every token passes. Shazeer et al. 2017; Fedus et al. 2021; Dai et al. 2024."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vivace.checkpoint.fused_experts import FusedExperts, FusedTensors
from vivace.checkpoint.weights import Weights
from vivace.layers.layout import split
from vivace.layers.linear import GatedMLP, Linear, Part, Shard
from vivace.layers.module import Bindings, Module, cast, sibling
from vivace.platforms.attention import AttendingStep
from vivace.platforms.ops.moe import Gate
from vivace.platforms.ops.table import Activation, Ops
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
    """What a family's checkpoints call the mixture, its router, the matrices of an expert, and the
    expert that every token passes."""

    mixture: str = "mlp"
    router: str = "gate"
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"
    shared: str = "shared_expert"
    fused: FusedTensors | None = None
    """where all experts of a layer are one tensor"""


USUAL_NAMES = ExpertNames()


class TopkRouter(Module):
    """x[T, hidden] -> each token's experts and their weights. Logits are float32, whatever the
    model's dtype: two that are nearly equal decide which experts run."""

    correction: Tensor | None = None
    """[count] float32, added to scores for the choice"""
    _ops: Ops

    def __init__(
        self,
        hidden: int,
        count: int,
        gate: Gate,
        *,
        name: str = USUAL_NAMES.router,
        bias: bool = False,
        corrected: bool = False,
    ) -> None:
        """`corrected`: the checkpoint has `e_score_correction_bias` (DeepSeek-V3, 2024)"""
        self.count = count
        self.corrected = corrected
        self._gate = gate
        self.linear = replicated(hidden, name, count, bias=bias)

    def bind(self, name: str, env: Bindings) -> None:
        self.name = name
        self._ops, self._device = env.ops, env.device
        wide = replace(env.packer, dtype=torch.float32, activations=torch.float32)
        self.linear.bind(name, replace(env, packer=wide))

    def load(self, weights: Weights) -> None:
        super().load(weights)
        if self.corrected:
            self.correction = self._take_correction(weights)

    def update(self, weights: Weights) -> None:
        super().update(weights)
        if self.correction is not None:
            self.correction.copy_(self._take_correction(weights))

    def _take_correction(self, weights: Weights) -> Tensor:
        taken = weights.take(f"{self.name}.{CORRECTION}", (self.count,))
        return taken.to(self._device, torch.float32)

    def claims(self) -> Iterator[str]:
        yield from super().claims()
        if self.corrected:
            yield f"{self.name}.{CORRECTION}"

    def __call__(self, x: Tensor, step: AttendingStep) -> tuple[Tensor, Tensor]:
        """(weights[T, top] float32, experts[T, top] int64)"""
        logits = self.linear(cast(x, torch.float32), step)
        return self._ops.moe_gate(self._gate, logits, self.correction)


CORRECTION = "e_score_correction_bias"


class RoutedExperts(Module):
    """x[T, hidden] -> [T, hidden]: each token's weighted sum of what its experts make of it, which
    is down(act(gate(x)) * up(x)). Ranks divide the inside of every expert."""

    method: ExpertMethod

    def __init__(
        self,
        hidden: int,
        inner: int,
        count: int,
        activation: Activation,
        names: ExpertNames = USUAL_NAMES,
        *,
        bias: bool = False,
        weigh_inputs: bool = False,
    ) -> None:
        """`weigh_inputs`: an expert sees its token times its weight, instead of the result."""
        self.hidden = hidden
        self.inner = inner
        self.count = count
        self.activation = activation
        self.names = names
        self.bias = bias
        self.weigh_inputs = weigh_inputs

    def bind(self, name: str, env: Bindings) -> None:
        super().bind(name, env)
        group = env.layout.experts
        share = split(name, self.inner, 1, group)
        first = group.rank == 0
        self.shapes = [self._shapes(expert, share, first) for expert in range(self.count)]
        self.method = env.quantization.expert_method(name, self.activation)

    def _shapes(self, expert: int, share: slice, first: bool) -> tuple[LinearShape, LinearShape]:
        """(gate above up, down); `first`: of the ranks whose results are added up"""
        place, names = f"{self.name}.{expert}", self.names
        gate = LocalPart(f"{place}.{names.gate}", self.inner, share)
        up = LocalPart(f"{place}.{names.up}", self.inner, share)
        down = LocalPart(f"{place}.{names.down}", self.hidden, ALL)
        return (
            LinearShape((gate, up), self.hidden, bias=self.bias),
            LinearShape((down,), self.inner, share, bias=self.bias, adds_bias=first),
        )

    def _weights(self, weights: Weights) -> Sequence[tuple[LayerWeights, LayerWeights]]:
        if self.names.fused is not None:
            weights = FusedExperts(weights, self.name, self.count, self.names.fused)
        return [
            (LayerWeights(weights, gate_up), LayerWeights(weights, down))
            for gate_up, down in self.shapes
        ]

    def load(self, weights: Weights) -> None:
        self.method.load(self._weights(weights))

    def update(self, weights: Weights) -> None:
        self.method.update(self._weights(weights))

    def claims(self) -> Iterator[str]:
        if self.names.fused is not None:
            suffixes = (*self.method.suffixes(), *(("bias",) if self.bias else ()))
            yield from self.names.fused.names(self.name, suffixes)
            return
        for shapes in self.shapes:
            for shape in shapes:
                yield from claim_tensors(shape, self.method.suffixes())

    def __call__(self, x: Tensor, weights: Tensor, chosen: Tensor, step: AttendingStep) -> Tensor:
        """weights[T, top] float32, chosen[T, top] int64: a token's experts. What this rank has of
        them: all ranks' are to be added up."""
        return self.method.apply(x, weights, chosen, step, weigh_inputs=self.weigh_inputs)


class MixtureOfExperts(Module):
    """What stands in the place of the MLP. `shared`: the expert that every token passes, where
    there is one, on the ranks that share the others; `shared_gate` weighs it by the token."""

    _ops: Ops

    def __init__(
        self,
        router: TopkRouter,
        experts: RoutedExperts,
        shared: GatedMLP | None = None,
        shared_gate: Linear | None = None,
    ) -> None:
        self.router = router
        self.experts = experts
        self.shared = shared
        self.shared_gate = shared_gate

    def children(self) -> Iterator[tuple[str, Module]]:
        """Under the checkpoint's names."""
        yield self.experts.names.router, self.router
        yield "experts", self.experts
        if self.shared is not None:
            yield self.experts.names.shared, self.shared
        if self.shared_gate is not None:
            yield "shared_expert_gate", self.shared_gate

    def bind(self, name: str, env: Bindings) -> None:
        super().bind(sibling(name, self.experts.names.mixture), env)
        self._ops = env.ops
        self._tokens = env.layout.exchange("experts")

    def __call__(self, x: Tensor, step: AttendingStep) -> Tensor:
        """x[T, hidden] -> [T, hidden]"""
        x = self._tokens.gather(x, step)
        y = self.experts(x, *self.router(x, step), step)
        if self.shared is not None:
            gate = None if self.shared_gate is None else self.shared_gate(x, step)
            y = self._ops.add_gated(y, self.shared.share(x, step), gate)
        return self._tokens.complete(y, step)


def replicated(hidden: int, name: str, size: int, *, bias: bool = False) -> Linear:
    """A small layer that every rank has whole, and no format quantizes."""
    part = Part(name, size)
    return Linear(hidden, [part], shard=Shard.OUTPUTS, group="replicated", bias=bias, floats=True)
