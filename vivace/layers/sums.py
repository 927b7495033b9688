"""Sums over ranks in an order that does not depend on how many ranks there are.

With `--enable-deterministic-inference` the inputs of a layer that ranks divide are cut into the
same segments on any number of ranks, whose sums are added by one binary tree
(platforms/ops/segments.py), and a token's experts are added in the order it chose them in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from vivace.errors import CannotStart
from vivace.platforms.blocks import count_segments
from vivace.platforms.groups import Group
from vivace.platforms.ops.moe import Routes
from vivace.platforms.ops.segments import Segments
from vivace.platforms.ops.table import Ops
from vivace.platforms.partial_sums import SharedPairs
from vivace.quantization.method import Combine


@dataclass(frozen=True)
class SumTree:
    """The segments of a layer's inputs, which `ranks` ranks divide, as leaves of a binary tree."""

    inputs: int
    count: int
    rank: int
    ranks: int

    def here(self, rank: int) -> range:
        each = self.count // self.ranks
        return range(rank * each, (rank + 1) * each)

    @cached_property
    def segments(self) -> Segments:
        """This rank's"""
        here = self.here(self.rank)
        done = [node for node in self._nodes if node[0] >= here.start and node[1] <= here.stop]
        merges = [sum(stop == leaf + 1 for _, stop in done) for leaf in here]
        return Segments(inputs=self.inputs, count=self.count, here=here, merges=tuple(merges))

    @cached_property
    def sums(self) -> tuple[int, ...]:
        """Of each rank: its largest subtrees"""
        return tuple(len(self._covers(rank)) for rank in range(self.ranks))

    @cached_property
    def merges(self) -> tuple[int, ...]:
        """How the sums of all ranks, one behind the other, are added, as `Segments.merges`"""
        covers = [cover for rank in range(self.ranks) for cover in self._covers(rank)]
        left = [node for node in self._nodes if not any(inside(node, cover) for cover in covers)]
        return tuple(sum(stop == cover[1] for _, stop in left) for cover in covers)

    @cached_property
    def _nodes(self) -> list[tuple[int, int]]:
        """Of two segments and more: first..last + 1 of each"""
        return subtrees(0, self.count)

    def _covers(self, rank: int) -> list[tuple[int, int]]:
        here = self.here(rank)
        leaves = [(leaf, leaf + 1) for leaf in here]
        whole = [*(one for one in self._nodes if inside(one, (here.start, here.stop))), *leaves]
        return sorted(
            one for one in whole if not any(inside(one, other) for other in whole if other != one)
        )


def subtrees(first: int, stop: int) -> list[tuple[int, int]]:
    if stop - first < 2:
        return []
    middle = (first + stop) // 2
    return [(first, stop), *subtrees(first, middle), *subtrees(middle, stop)]


def inside(node: tuple[int, int], other: tuple[int, int]) -> bool:
    return other[0] <= node[0] and node[1] <= other[1]


def divide_sums(name: str, inputs: int, unit: int, rank: int, ranks: int) -> SumTree:
    """Of a layer whose inputs stay together in units (a head). Raises CannotStart where ranks would
    have parts of a segment."""
    count = count_segments(inputs // unit)
    if count % ranks:
        possible = ", ".join(str(n) for n in range(1, count + 1) if count % n == 0)
        raise CannotStart(
            f"{name}: --enable-deterministic-inference adds {count} sums of it in one order, which "
            f"{ranks} ranks cannot divide; possible are {possible} ranks"
        )
    return SumTree(inputs, count, rank, ranks)


class Sums(Protocol):
    """Partial results of ranks -> the whole: a `Group`, which adds in the order of its ranks, or
    `TreeSums`."""

    def sum(self, x: Tensor) -> Tensor: ...

    def reduce_scatter(self, x: Tensor, counts: Sequence[int], place: int) -> Tensor: ...


class TreeSums:
    """Partial results of a group's ranks -> the whole, added by a tree."""

    def __init__(self, group: Group, ops: Ops, tree: SumTree) -> None:
        self._group, self._ops = group, ops
        self._mine = tree.sums[tree.rank]
        self._sums = tree.sums
        self._merges = torch.tensor(tree.merges, dtype=torch.int64)

    def sum(self, x: Tensor) -> Tensor:
        """x[T, sums of this rank * n] -> [T, n]"""
        return self._ops.add_segments(self._gather(x), self._merges)

    def reduce_scatter(self, x: Tensor, counts: Sequence[int], place: int) -> Tensor:
        """The same of the rows of `place`, of all engines'"""
        own = self._gather(x).split(list(counts))[place]
        return self._ops.add_segments(own, self._merges)

    def _gather(self, x: Tensor) -> Tensor:
        columns = x.shape[1] // self._mine
        return self._group.gather(x, [sums * columns for sums in self._sums])


class PairSums:
    """A token's experts on several ranks -> their sum, in the order the token chose them in."""

    def __init__(self, group: Group, tree: SumTree, first: int, each: int) -> None:
        """`first`: this rank's first slot; `each`: slots of a rank"""
        self._group = group
        self._first, self._each = first, each
        self._sums = tree.sums
        self._merges = torch.tensor(tree.merges, dtype=torch.int64)

    def combine(self, placed: Tensor, own: slice | None) -> Combine:
        """placed[T, top]: slots, this rank's from 0; `own`: the tokens that are asked for"""
        pairs = SharedPairs(placed, self._first, self._each, self._sums, self._merges)

        def run(x: Tensor, weights: Tensor | None, routes: Routes) -> Tensor:
            return self._group.combine_pairs(x, weights, routes.places, pairs, own)

        return run
