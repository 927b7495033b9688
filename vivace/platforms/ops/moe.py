"""Mixtures of experts: which experts a token goes to, and linear layers with one weight for each.

A token and one of its experts are a pair. Pairs are sorted by expert (`routes`), so that the
rows of an expert are neighbors in every product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from vivace.platforms.ops.linear import SegmentedWeight, linear, pack_linear
from vivace.platforms.ops.stored import Packable

ELSEWHERE = -1
NOTHING = 1e-20
"""added to a sum that divides, as the models' own definitions do"""


class LinearProduct(Protocol):
    """`linear` of an op table"""

    def __call__(self, x: Tensor, weight: Any, bias: Tensor | None = None) -> Tensor: ...


@dataclass(frozen=True, kw_only=True)
class Gate:
    """How a model chooses experts."""

    top: int
    """experts of a token"""
    scoring: Literal["softmax", "sigmoid"] = "softmax"
    renormalize: bool = False
    """a token's weights sum to `scale`"""
    scale: float = 1.0
    groups: int = 1
    top_groups: int = 1
    """only experts of a token's best groups; a group counts as its best expert or, with a bias, as
    the sum of its two best (DeepSeek V2 and V3)"""


@dataclass(frozen=True, slots=True)
class Routes:
    """Where pairs go. E experts."""

    places: Tensor
    """[T, top] int64: row of each pair, sorted by expert, then by token; ELSEWHERE: none, because
    another rank has the expert"""
    starts: Tensor
    """[E + 1] int64: an expert's rows are starts[e]..starts[e + 1]"""


@dataclass(frozen=True, slots=True)
class ExpertSlots:
    """Where the copies of a layer's experts are: slots count through all ranks."""

    table: Tensor
    """[E, period] int64: the slot of an expert for tokens at a position, modulo the period"""
    first: int
    """of this rank's slots"""
    counts: Tensor | None = None
    """[slots] int64: pairs that went to each are added"""

    @property
    def by_position(self) -> bool:
        """Copies are chosen by positions, or tokens that are nobody's are not to be counted."""
        return self.table.shape[1] > 1 or self.counts is not None


def moe_gate(gate: Gate, logits: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """logits[T, E], bias[E] (for the choice, not the weight) -> (weights[T, top], experts[T, top]).

    Weights are float32, experts int64, the best first and of equal ones the first.
    """
    wide = logits.float()
    scores = wide.softmax(-1) if gate.scoring == "softmax" else wide.sigmoid()
    choice = scores if bias is None else scores + bias
    if gate.top_groups < gate.groups:
        choice = _of_best_groups(gate, choice, two=bias is not None)
    experts = _best(choice, gate.top)
    weights = scores.gather(-1, experts)
    if gate.renormalize:
        weights = weights / (weights.sum(-1, keepdim=True) + NOTHING)
    return weights * gate.scale, experts


def _of_best_groups(gate: Gate, choice: Tensor, *, two: bool) -> Tensor:
    grouped = choice.unflatten(-1, (gate.groups, -1))
    counted = min(2 if two else 1, grouped.shape[-1])
    best = _best(grouped.topk(counted).values.sum(-1), gate.top_groups)
    kept = torch.zeros(grouped.shape[:2], dtype=torch.bool).scatter_(1, best, True)
    return grouped.masked_fill(~kept.unsqueeze(-1), -torch.inf).flatten(1)


def _best(x: Tensor, count: int) -> Tensor:
    return torch.sort(x, dim=-1, descending=True, stable=True).indices[:, :count]


def moe_place(experts: Tensor, positions: Tensor | None, slots: ExpertSlots) -> Tensor:
    """experts[T, top], positions[T] -> [T, top]: this rank's slots count from 0; what is below or
    behind them is another rank's. None where the period is 1. A token at a position below 0 is
    nobody's: it goes nowhere, and is not counted."""
    period = slots.table.shape[1]
    if positions is None:
        positions = experts.new_zeros(len(experts))
    found = slots.table[experts, (positions % period).unsqueeze(1)]
    live = positions >= 0
    if slots.counts is not None:
        slots.counts.add_(found[live].flatten().bincount(minlength=len(slots.counts)))
    return found.masked_fill(~live.unsqueeze(1), ELSEWHERE) - slots.first


def moe_routes(experts: Tensor, count: int) -> Routes:
    """experts[T, top] -> where the pairs of 0..count-1 go; others are another rank's."""
    flat = experts.flatten()
    ours = (flat >= 0) & (flat < count)
    local = flat[ours]
    at = torch.empty_like(local)
    at[local.argsort(stable=True)] = torch.arange(local.numel())
    places = torch.full_like(flat, ELSEWHERE)
    places[ours] = at
    starts = torch.zeros(count + 1, dtype=torch.int64)
    starts[1:] = local.bincount(minlength=count).cumsum(0)
    return Routes(places.view(experts.shape), starts)


def moe_permute(x: Tensor, routes: Routes, weights: Tensor | None = None) -> Tensor:
    """x[T, n] -> [T * top, n]: a token's row at each of its places, times weights[T, top]. Rows
    behind the pairs of this rank hold anything."""
    top = routes.places.shape[1]
    out = x.new_zeros(x.shape[0] * top, x.shape[1])
    rows, flat = x.repeat_interleave(top, dim=0), routes.places.flatten()
    if weights is not None:
        rows = rows * weights.flatten().unsqueeze(-1).to(x.dtype)
    ours = flat != ELSEWHERE
    out[flat[ours]] = rows[ours]
    return out


def moe_combine(x: Tensor, weights: Tensor | None, routes: Routes) -> Tensor:
    """x[T * top, n], weights[T, top] -> [T, n]: each token's weighted sum of what is here; None:
    all are one."""
    ours = (routes.places != ELSEWHERE).unsqueeze(-1)
    rows = x[routes.places].where(ours, x.new_zeros(()))
    return (rows if weights is None else rows * weights.unsqueeze(-1).to(x.dtype)).sum(1)


def add_gated(y: Tensor, x: Tensor, gate: Tensor | None) -> Tensor:
    """y[T, n] + sigmoid(gate[T, 1]) * x[T, n], in y's memory; without a gate y + x."""
    return y.add_(x) if gate is None else y.addcmul_(gate.sigmoid(), x)


def pack_grouped(experts: Sequence[Sequence[Packable]]) -> Any:
    """One weight for each expert, in the pieces that `pack_linear` takes."""
    return [pack_linear(pieces) for pieces in experts]


def select_grouped(weight: Any, chosen: Sequence[int]) -> Any:
    """The weights of some experts, in the same memory."""
    if isinstance(weight, SegmentedWeight):
        return replace(weight, weights=tuple(weight.weights[expert] for expert in chosen))
    return [weight[expert] for expert in chosen]


def quantize_experts(x: Tensor, scales: Tensor, offsets: Tensor, routes: Routes) -> Tensor:
    """x[T * top, n], sorted by expert, scales[E], offsets[E] -> the int8 numbers that stand for it,
    as floats of x's type: `quantize_static` by the expert of each row. Rows behind the pairs of
    this rank hold anything."""
    counts = routes.starts.diff()
    rows = int(routes.starts[-1])
    scale, offset = (each.repeat_interleave(counts).unsqueeze(1) for each in (scales, offsets))
    numbers = x[:rows].float().div(scale).add_(offset).round_().clamp_(-128, 127)
    return torch.cat([numbers.to(x.dtype), x.new_zeros(len(x) - rows, x.shape[1])])


class GroupedLinear:
    """`grouped_linear` by the `linear` of a table: one product for each expert."""

    def __init__(self, product: LinearProduct) -> None:
        self._linear = product

    def __call__(
        self, x: Tensor, weight: Any, routes: Routes, bias: Tensor | None = None
    ) -> Tensor:
        """x[T * top, in], sorted by expert -> [T * top, out], each row by its expert's weight, plus
        bias[E, out]. Rows behind the pairs of this rank hold anything."""
        starts = routes.starts.tolist()
        biases = [None] * len(weight) if bias is None else bias.unbind()
        found = torch.cat(
            [
                self._linear(x[a:b], w, added)
                for w, added, a, b in zip(weight, biases, starts[:-1], starts[1:], strict=True)
            ]
        )
        return torch.cat([found, found.new_zeros(len(x) - len(found), found.shape[1])])


grouped_linear = GroupedLinear(linear)
