"""Mixtures of experts: a router that chooses for every token, the experts of this rank, and the
shared expert that every token passes. Shazeer et al. 2017; Fedus et al. 2021; Dai et al. 2024."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vivace.checkpoint.fused_experts import FusedTensors, single_experts
from vivace.checkpoint.weights import Weights
from vivace.layers.expert_location import dispatch_table
from vivace.layers.layout import split_blocks
from vivace.layers.linear import GatedMLP, Linear, Part, Shard
from vivace.layers.module import Bindings, Module, cast, sibling
from vivace.layers.sums import PairSums
from vivace.platforms.attention import AttendingStep
from vivace.platforms.ops.moe import ExpertSlots, Gate
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
    is down(act(gate(x)) * up(x)). Ranks have different ones (expert parallelism) or divide the
    inside of each."""

    method: ExpertMethod
    located: Sequence[int]
    """the expert of each slot, of all ranks"""
    slots: ExpertSlots | None
    """None: slots are experts, and all are here"""

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
        self._ops, self._locations, self._ep = env.ops, env.experts, env.layout.moe_ep
        self._tokens = env.layout.exchange("experts", env.ops)
        inside = env.layout.moe_tp
        tree = self._tree = env.layout.sum_tree(name, self.inner, 1, inside)
        block = env.groups.experts if tree is None else 1
        self._share = split_blocks(name, self.inner, block, inside)
        self.layer = int(next(part for part in name.split(".") if part.isdecimal()))
        self.located = self._locations.find(self.layer, self.count)
        self.method = env.quantization.expert_method(name, self.activation)
        plain = self._locations.is_plain(self.located, self.count) and self._ep.size == 1
        self.slots = None if plain else self._make_slots(env.device)
        group, here = env.layout.experts, self._here
        self._pairs: PairSums | None = None
        if tree is not None and group.size > 1:
            self._pairs = PairSums(group, tree, here.start, len(here))
        self._exchange = env.layout.pairs(len(here))

    def _make_slots(self, device: torch.device) -> ExpertSlots:
        counts = torch.zeros(len(self.located), dtype=torch.int64, device=device)
        return ExpertSlots(
            self._table(self.located).to(device),
            self._here.start,
            counts if self._locations.counted else None,
        )

    def _table(self, located: Sequence[int]) -> Tensor:
        return torch.tensor(dispatch_table(located, self.count, self._locations.algorithm))

    @property
    def _here(self) -> range:
        """This rank's slots"""
        each = len(self.located) // self._ep.size
        return range(self._ep.rank * each, (self._ep.rank + 1) * each)

    def _shapes(self, expert: int) -> tuple[LinearShape, LinearShape]:
        """(gate above up, down); not kept, a checkpoint may tell of millions that it has not"""
        share, first = self._share, self._share.start == 0  # of ranks whose results are added up
        segments = None if self._tree is None else self._tree.segments
        place, names = f"{self.name}.{expert}", self.names
        gate = LocalPart(f"{place}.{names.gate}", self.inner, share)
        up = LocalPart(f"{place}.{names.up}", self.inner, share)
        down = LocalPart(f"{place}.{names.down}", self.hidden, ALL)
        return (
            LinearShape((gate, up), self.hidden, bias=self.bias),
            LinearShape(
                (down,), self.inner, share, bias=self.bias, adds_bias=first, segments=segments
            ),
        )

    def _weights(
        self, weights: Weights, experts: Iterable[int]
    ) -> Sequence[tuple[LayerWeights, LayerWeights]]:
        weights = single_experts(weights, self.name, self.count, self.names.fused)
        shapes = map(self._shapes, experts)
        return [(LayerWeights(weights, up), LayerWeights(weights, down)) for up, down in shapes]

    def load(self, weights: Weights) -> None:
        self.method.load(self._weights(weights, (self.located[slot] for slot in self._here)))

    def update(self, weights: Weights) -> None:
        self.method.update(self._weights(weights, (self.located[slot] for slot in self._here)))

    def move(self, located: Sequence[int], weights: Weights) -> Callable[[], None]:
        """Have other experts in some slots: their weights are read now, and are in their places
        after the returned call. Only with slots (`counted`). Raises CheckpointError."""
        slots, here = self.slots, self._here
        if slots is None:
            raise ValueError(f"{self.name}: its experts have no slots")
        changed = [slot for slot in here if located[slot] != self.located[slot]]
        moved = self._weights(weights, (located[slot] for slot in changed))
        put = self.method.prepare([slot - here.start for slot in changed], moved) if moved else None
        table = self._table(located)

        def finish() -> None:
            if put is not None:
                put()
            slots.table.copy_(table)
            self.located = tuple(located)

        return finish

    def claims(self) -> Iterator[str]:
        if self.names.fused is not None:
            suffixes = (*self.method.suffixes(), *(("bias",) if self.bias else ()))
            yield from self.names.fused.names(self.name, suffixes)
        for expert in range(self.count):
            for shape in self._shapes(expert):
                yield from claim_tensors(shape, self.method.suffixes())

    def __call__(
        self,
        x: Tensor,
        weights: Tensor,
        chosen: Tensor,
        step: AttendingStep,
        own: slice | None = None,
    ) -> Tensor:
        """weights[T, top] float32, chosen[T, top] int64: a token's experts. What this rank has of
        them: all ranks' are to be added up, unless tokens travel. Where sums have a fixed order
        they are already, of the tokens `own`."""
        weights, chosen = self._exchange.announce(weights, chosen, step)
        if self.slots is not None:
            positions = self._tokens.positions(step) if self.slots.by_position else None
            chosen = self._ops.moe_place(chosen, positions, self.slots)
        combine = None if self._pairs is None else self._pairs.combine(chosen, own)
        x = self._exchange.dispatch(x, chosen, step)
        y = self.method.apply(
            x, weights, chosen, step, weigh_inputs=self.weigh_inputs, combine=combine
        )
        return self._exchange.collect(y, chosen, step)


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
        self._tokens = env.layout.exchange("experts", env.ops)
        self._run = self._add_apart if env.layout.deterministic else self._add_together

    def __call__(self, x: Tensor, step: AttendingStep) -> Tensor:
        """x[T, hidden] -> [T, hidden]"""
        return self._run(x, step)

    def _add_apart(self, x: Tensor, step: AttendingStep) -> Tensor:
        """Experts and the shared one are complete before they are added: ranks divide each in its
        own way."""
        every, own = self._tokens.gather(x, step), self._tokens.own_rows(step)
        y = self.experts(every, *self.router(every, step), step, own)
        if self.shared is None:
            return y
        gate = None if self.shared_gate is None else self.shared_gate(x, step)
        shared = self.shared.complete(self.shared.share(every, step), step)
        return self._ops.add_gated(y, shared, gate)

    def _add_together(self, x: Tensor, step: AttendingStep) -> Tensor:
        """One sum over the ranks"""
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
