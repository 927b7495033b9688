"""Mixtures of experts: which experts a token goes to, and linear layers with one weight for each.

A token and one of its experts are a pair. Pairs are sorted by expert (`routes`), so that the
rows of an expert are neighbors in every product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from vivace.platforms.ops.linear import linear, pack_linear
from vivace.platforms.ops.stored import Packable

NOTHING = 1e-20
"""added to a sum that divides, as the models' own definitions do"""


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
    """[T, top] int64: row of each pair, sorted by expert, then by token"""
    starts: Tensor
    """[E + 1] int64: an expert's rows are starts[e]..starts[e + 1]"""


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


def moe_routes(experts: Tensor, count: int) -> Routes:
    """experts[T, top] of 0..count-1 -> where their pairs go."""
    flat = experts.flatten()
    places = torch.empty_like(flat)
    places[flat.argsort(stable=True)] = torch.arange(flat.numel())
    starts = torch.zeros(count + 1, dtype=torch.int64)
    starts[1:] = flat.bincount(minlength=count).cumsum(0)
    return Routes(places.view(experts.shape), starts)


def moe_permute(x: Tensor, routes: Routes, weights: Tensor | None = None) -> Tensor:
    """x[T, n] -> [T * top, n]: a token's row at each of its places, times weights[T, top]."""
    top = routes.places.shape[1]
    out = x.new_empty(x.shape[0] * top, x.shape[1])
    rows = x.repeat_interleave(top, dim=0)
    if weights is not None:
        rows = rows * weights.flatten().unsqueeze(-1).to(x.dtype)
    out[routes.places.flatten()] = rows
    return out


def moe_combine(x: Tensor, weights: Tensor | None, routes: Routes) -> Tensor:
    """x[T * top, n], weights[T, top] -> [T, n]: each token's weighted sum; None: all are one."""
    if weights is None:
        return x[routes.places].sum(1)
    return (x[routes.places] * weights.unsqueeze(-1).to(x.dtype)).sum(1)


def add_gated(y: Tensor, x: Tensor, gate: Tensor | None) -> Tensor:
    """y[T, n] + sigmoid(gate[T, 1]) * x[T, n], in y's memory; without a gate y + x."""
    return y.add_(x) if gate is None else y.addcmul_(gate.sigmoid(), x)


def pack_grouped(experts: Sequence[Sequence[Packable]]) -> Any:
    """One weight for each expert, in the pieces that `pack_linear` takes."""
    return [pack_linear(pieces) for pieces in experts]


def grouped_linear(x: Tensor, weight: Any, routes: Routes, bias: Tensor | None = None) -> Tensor:
    """x[T * top, in], sorted by expert -> [T * top, out], each row by its expert's weight, plus
    bias[E, out]."""
    starts = routes.starts.tolist()
    biases = [None] * len(weight) if bias is None else bias.unbind()
    return torch.cat(
        [
            linear(x[a:b], w, added)
            for w, added, a, b in zip(weight, biases, starts[:-1], starts[1:], strict=True)
        ]
    )
