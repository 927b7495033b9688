"""Products by segments of their inputs by native kernels: kernels/segments.inc."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ctypes import c_int64
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from vivace.platforms.cpu.native import I64, Kernels, block, matrix, optional, require, sizes
from vivace.platforms.cpu.native_linear import PANEL, NativeLinears, PackedWeight, layout
from vivace.platforms.ops.moe import Routes
from vivace.platforms.ops.segments import Segments, common_edges, cut_segments
from vivace.platforms.ops.stored import Packable

MOST_SUMS = 16
"""that wait for others at once (kernels/sums.h)"""


@dataclass(frozen=True, slots=True)
class SegmentedPanels:
    """One layer, of one expert or several."""

    kind: str
    addresses: Tensor
    """[experts * segments] int64: where panels are; 0 of an empty segment"""
    panel_bytes: Tensor
    """[segments] int64"""
    widths: Tensor
    """[segments] int64: inputs of each"""
    merges: Tensor
    """[segments] int64"""
    sums: int
    inputs: int
    outputs: int
    experts: tuple[tuple[PackedWeight | None, ...], ...]
    """keeps the panels alive"""

    @property
    def plain(self) -> tuple[PackedWeight, ...]:
        """Every packed part"""
        return tuple(part for parts in self.experts for part in parts if part is not None)

    def select(self, chosen: Sequence[int]) -> SegmentedPanels:
        """Some experts, for `update_weight`"""
        return replace(self, experts=tuple(self.experts[expert] for expert in chosen))


class NativeSegments:
    """The ops of products by segments of one table."""

    def __init__(self, kernels: Kernels, linears: NativeLinears) -> None:
        self._kernels, self._linears = kernels, linears
        self._segmented = kernels.operation("segmented_linear", "q" * 15)
        self._add = kernels.operation("add_segments", "q" * 7)

    def pack(self, matrices: Sequence[Packable], segments: Segments) -> SegmentedPanels:
        """Raises ValueError where segments would part blocks, or matrices differ."""
        require("pack_segments", len(matrices) > 0, "no weight")
        require_tree("pack_segments", segments.merges, segments.sums)
        edges = common_edges(matrices, segments)
        experts = tuple(
            tuple(None if part is None else self._linears.pack([part]) for part in parts)
            for parts in cut_segments(matrices, segments)
        )
        layouts = {tuple(part and layout(part) for part in parts) for parts in experts}
        if len(layouts) != 1:
            raise ValueError("the weights of a layer must have one shape and one format")
        first = [None if part is None else part.parts[0] for part in experts[0]]
        (kind, *_), outputs = (part.kind for part in first if part), matrices[0].shape[0]
        panels = -(-outputs // PANEL)
        return SegmentedPanels(
            kind=kind,
            addresses=numbers(address(part) for parts in experts for part in parts),
            panel_bytes=numbers(part.data.nbytes // panels if part else 0 for part in first),
            widths=numbers(stop - start for start, stop in pairwise(edges)),
            merges=numbers(segments.merges),
            sums=segments.sums,
            inputs=edges[-1],
            outputs=outputs,
            experts=experts,
        )

    def linear(
        self,
        x: Tensor,
        weight: SegmentedPanels,
        routes: Routes | None = None,
        bias: Tensor | None = None,
    ) -> Tensor:
        """x[T, in] float32, rows of any stride -> [T, sums * out]; with `routes` as
        `NativeMoe.linear`"""
        op, outputs, count = "segmented_linear", weight.outputs, len(weight.experts)
        address, stride = matrix(op, "x", x, weight.inputs)
        rows, starts = x.shape[0], 0
        if routes is None:
            require(op, count == 1, f"{count} experts and no routes")
            added = optional(op, "bias", bias, outputs)
        else:
            rows, top = sizes(op, "places", routes.places)
            require(op, x.shape[0] == rows * top, f"{x.shape[0]} rows of {rows} x {top} pairs")
            starts = block(op, "starts", routes.starts, count + 1, dtype=I64)
            added = optional(op, "bias", bias, count, outputs)
        out = self._kernels.empty(x.shape[0], weight.sums * outputs)
        self._segmented(
            rows,
            self._kernels.address(f"linear_{weight.kind}"),
            address,
            stride,
            weight.addresses.data_ptr(),
            weight.panel_bytes.data_ptr(),
            weight.widths.data_ptr(),
            weight.merges.data_ptr(),
            len(weight.merges),
            starts,
            count,
            out.data_ptr(),
            outputs,
            weight.sums,
            added,
        )
        return out

    def add(self, x: Tensor, merges: Tensor) -> Tensor:
        """`Ops.add_segments`; `merges` stays where it is as long as a captured step is there"""
        (rows, wide), (count,) = (
            sizes("add_segments", "x", x),
            sizes("add_segments", "m", merges, 1),
        )
        require("add_segments", count > 0 and wide % count == 0, f"{wide} numbers, {count} sums")
        address, stride = matrix("add_segments", "x", x, wide, rows)
        out = self._kernels.empty(rows, wide // count)
        at = block("add_segments", "merges", merges, count, dtype=I64)
        require_tree("add_segments", words_at(at, count))
        self._add(rows, address, stride, at, count, out.data_ptr(), wide // count)
        return out


def address(part: PackedWeight | None) -> int:
    return 0 if part is None else part.parts[0].data.data_ptr()


def numbers(found: Iterable[int]) -> Tensor:
    return torch.tensor(list(found), dtype=I64)


def words_at(address: int, count: int) -> list[int]:
    """Of a block of int64, without an operation of torch's: captured steps have none."""
    return (c_int64 * count).from_address(address)[:]


def require_tree(op: str, merges: Sequence[int], left: int = 1) -> None:
    """The kernel's stack has room for the sums that wait, and is never empty. `left`: at the end.
    Raises ValueError."""
    waiting = 0
    for count in merges:
        waiting += 1
        require(op, 0 <= count < waiting, f"{count} of {waiting} sums are added")
        require(op, waiting <= MOST_SUMS, f"more than {MOST_SUMS} sums wait at once")
        waiting -= count
    require(op, waiting == left, f"{waiting} sums are left, not {left}")
