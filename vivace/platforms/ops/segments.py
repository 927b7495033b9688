"""Products whose sums do not depend on how ranks divide the inputs.

A sum of floats depends on its order. So the inputs of such a layer are divided into segments, the
same ones however many ranks there are; each is a product of its own, and their sums are added by a
binary tree. A rank that has some of the segments adds up its whole subtrees; what it shares with
others goes on in the same tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from vivace.platforms.ops.linear import SegmentedWeight, linear, pack_linear
from vivace.platforms.ops.moe import Routes
from vivace.platforms.ops.stored import Packable, columns_per_block, cut_columns
from vivace.platforms.partial_sums import add_by_tree


@dataclass(frozen=True, kw_only=True)
class Segments:
    """Those that a rank has of a layer."""

    inputs: int
    """of the whole layer"""
    count: int
    """segments of it, of equal width as far as blocks allow"""
    here: range
    """this rank's"""
    merges: tuple[int, ...]
    """the tree as a stack sees it: behind each segment, how often the last sum is added to the one
    before it"""

    @property
    def sums(self) -> int:
        """What is left: this rank's largest subtrees"""
        return len(self.here) - sum(self.merges)

    def edges(self, block: int) -> list[int]:
        """Where segments begin among this rank's inputs, and where the last one ends; whole blocks
        of inputs each, so that some may have none. Raises ValueError where the rank's own do not
        begin and end with blocks."""
        edges = [self._edge(number, block) for number in range(self.here.start, self.here.stop + 1)]
        if any(number * self.inputs != edge * self.count for number, edge in self._ends(edges)):
            raise ValueError(f"a rank's inputs are no whole blocks of {block}")
        return [edge - edges[0] for edge in edges]

    def _edge(self, number: int, block: int) -> int:
        blocks = -(-number * self.inputs // (self.count * block))
        return min(blocks * block, self.inputs)

    def _ends(self, edges: Sequence[int]) -> tuple[tuple[int, int], tuple[int, int]]:
        return (self.here.start, edges[0]), (self.here.stop, edges[-1])


def cut_segments(matrices: Sequence[Packable], segments: Segments) -> list[list[Packable | None]]:
    """The segments of each matrix[out, this rank's inputs]; None: an empty one."""
    edges = common_edges(matrices, segments)
    places = [slice(start, stop) for start, stop in pairwise(edges)]
    return [
        [cut_columns(one, place) if place.start < place.stop else None for place in places]
        for one in matrices
    ]


def common_edges(matrices: Sequence[Packable], segments: Segments) -> list[int]:
    """Raises ValueError where matrices differ in their blocks, or are of another width."""
    blocks = {columns_per_block(one) for one in matrices}
    if len(blocks) != 1:
        raise ValueError("the weights of a layer must have one format")
    edges = segments.edges(blocks.pop())
    if any(one.shape[1] != edges[-1] for one in matrices):
        raise ValueError(f"weights of {[*matrices[0].shape]}, segments end at {edges[-1]}")
    return edges


def pack_segments(matrices: Sequence[Packable], segments: Segments) -> SegmentedWeight:
    """matrix[out, this rank's inputs] of each expert, or of the only one"""
    weights = [
        tuple(None if part is None else pack_linear([part]) for part in parts)
        for parts in cut_segments(matrices, segments)
    ]
    return SegmentedWeight(tuple(weights), tuple(common_edges(matrices, segments)), segments.merges)


def segmented_linear(
    x: Tensor, weight: SegmentedWeight, routes: Routes | None = None, bias: Tensor | None = None
) -> Tensor:
    """x[T, in] -> [T, sums * out]. With `routes` x[T * top, in] is sorted by expert, rows behind
    the pairs of this rank hold anything, and bias is [E, out] instead of [out]."""
    if routes is None:
        return _multiply(x, weight, 0, bias)
    starts = routes.starts.tolist()
    parts = [
        _multiply(x[start:stop], weight, expert, None if bias is None else bias[expert])
        for expert, (start, stop) in enumerate(pairwise(starts))
    ]
    found = torch.cat(parts)
    return torch.cat([found, found.new_zeros(len(x) - len(found), found.shape[1])])


def _multiply(x: Tensor, weight: SegmentedWeight, expert: int, bias: Tensor | None) -> Tensor:
    """The bias is added to the first segment's sum."""
    parts, edges = weight.weights[expert], weight.edges
    products = [
        None if part is None else linear(x[:, start:stop], part)
        for part, start, stop in zip(parts, edges[:-1], edges[1:], strict=True)
    ]
    some = next(product for product in products if product is not None)
    sums = [torch.zeros_like(some) if one is None else one for one in products]
    if bias is not None:
        sums[0] = sums[0] + bias
    return torch.cat(add_by_tree(sums, weight.merges), 1)


def add_segments(x: Tensor, merges: Tensor) -> Tensor:
    """x[T, n * len(merges)], the sums of all ranks side by side -> [T, n]; `merges` int64"""
    (whole,) = add_by_tree(x.chunk(len(merges), 1), merges.tolist())
    return whole
