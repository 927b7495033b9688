"""What several ranks have of a sum, and in which order it is added: the slow twins of
kernels/segments.inc and, for pairs of a token and one of its experts, of `Group.combine_pairs`
(kernels/collectives.inc)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


def add_by_tree(sums: Iterable[Tensor], merges: Iterable[int]) -> list[Tensor]:
    left: list[Tensor] = []
    for one, count in zip(sums, merges, strict=True):
        left.append(one)
        for _ in range(count):
            last = left.pop()
            left[-1] = left[-1] + last
    return left


@dataclass(frozen=True, slots=True)
class SharedPairs:
    """Which rank has what of the experts of tokens. Ranks are ordered by the experts they have,
    and neighbors divide the inside of the same ones."""

    placed: Tensor
    """[T, top] int64: a token's experts, less `first`"""
    first: int
    each: int
    """experts of a rank"""
    sums: tuple[int, ...]
    """of each of the ranks that divide an expert: what it has of a pair"""
    merges: Tensor
    """int64[all of those]: the tree that they are added by (ops/segments.py)"""


def spread_pairs(x: Tensor, places: Tensor) -> Tensor:
    """x[P, n] -> [T, top, n], zeros where places[T, top] is negative"""
    rows = x[places.clamp_min(0)]
    return rows.where((places >= 0).unsqueeze(-1), x.new_zeros(()))


def combine_gathered(
    parts: Sequence[Tensor], weights: Tensor | None, pairs: SharedPairs, own: slice | None
) -> Tensor:
    """parts: [T, top, sums * n] of each rank -> as `Group.combine_pairs`. Its slow twin."""
    inside = len(pairs.sums)
    merges = pairs.merges.tolist()
    of_experts = []
    for first in range(0, len(parts), inside):
        sums = [
            one
            for part, count in zip(parts[first:], pairs.sums, strict=False)
            for one in part.chunk(count, -1)
        ]
        (whole,) = add_by_tree(sums, merges)
        of_experts.append(whole)
    found = torch.stack(of_experts)  # [ranks of different experts, T, top, n]
    owners = ((pairs.placed + pairs.first) // pairs.each).clamp_min(0)  # nobody's has zeros
    rows = found.gather(0, owners[None, :, :, None].expand(1, *found.shape[1:]))[0]
    total = torch.zeros_like(rows[:, 0])
    for place in range(rows.shape[1]):
        one = rows[:, place]
        total += one if weights is None else one * weights[:, place, None].to(one.dtype)
    return total if own is None else total[own]
