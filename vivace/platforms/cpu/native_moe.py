"""Mixtures of experts by native kernels: kernels/moe.inc."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vivace.platforms.cpu.native import I64, Kernels, block, matrix, optional, require, sizes
from vivace.platforms.cpu.native_linear import (
    A8_BLOCKS,
    PANEL,
    NativeLinears,
    PackedWeight,
    layout,
    quantized_bytes,
)
from vivace.platforms.cpu.native_segments import SegmentedPanels
from vivace.platforms.ops.moe import ExpertSlots, Gate, Routes


@dataclass(frozen=True, slots=True)
class GroupedPart:
    """Some output columns of all experts, in one format."""

    kind: str
    addresses: Tensor
    """[experts] int64: where each expert's panels are"""
    panel_bytes: int
    first: int
    columns: int


@dataclass(frozen=True, slots=True)
class GroupedWeight:
    """All experts of one layer."""

    parts: tuple[GroupedPart, ...]
    experts: tuple[PackedWeight, ...]
    """keeps the panels alive"""

    @property
    def outputs(self) -> int:
        return self.experts[0].outputs

    @property
    def nbytes(self) -> int:
        return sum(expert.nbytes for expert in self.experts)


AnyWeight = PackedWeight | GroupedWeight | SegmentedPanels


class NativeMoe:
    """The MoE ops of one table, with the signatures of `platforms.ops.table`."""

    def __init__(self, kernels: Kernels, linears: NativeLinears) -> None:
        self._kernels, self._linears = kernels, linears
        self._gate = kernels.operation("moe_gate", "q" * 12 + "d")
        self._place = kernels.operation("moe_place", "q" * 11)
        self._routes = kernels.operation("moe_routes", "q" * 6)
        self._permute = kernels.operation("moe_permute", "q" * 8)
        self._combine = kernels.operation("moe_combine", "q" * 8)
        self._add_gated = kernels.operation("add_gated", "q" * 6)
        self._grouped = kernels.operation("grouped_linear", "q" * 16)
        self._quantize = kernels.operation("quantize_groups", "q" * 7)
        self._quantize_experts = kernels.operation("quantize_experts", "q" * 9)

    def gate(self, gate: Gate, logits: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
        rows, experts = sizes("moe_gate", "logits", logits)
        address, stride = matrix("moe_gate", "logits", logits, experts, rows)
        require(
            "moe_gate",
            0 < gate.top <= experts
            and 0 < gate.top_groups <= gate.groups
            and experts % gate.groups == 0,
            f"{gate} does not fit {experts} experts",
        )
        weights = self._kernels.empty(rows, gate.top)
        chosen = self._kernels.empty(rows, gate.top, dtype=torch.int64)
        self._gate(
            rows,
            address,
            stride,
            optional("moe_gate", "bias", bias, experts),
            weights.data_ptr(),
            chosen.data_ptr(),
            experts,
            gate.top,
            gate.scoring == "sigmoid",
            gate.renormalize,
            gate.groups,
            gate.top_groups,
            gate.scale,
        )
        return weights, chosen

    def place(self, experts: Tensor, positions: Tensor | None, slots: ExpertSlots) -> Tensor:
        rows, top = sizes("moe_place", "experts", experts)
        chosen = block("moe_place", "experts", experts, rows, top, dtype=I64)
        count, period = sizes("moe_place", "table", slots.table)
        fits = count > 0 and (period == 1 if positions is None else period > 0)
        require("moe_place", fits, f"{count} experts, period {period}")
        at = 0
        if positions is not None:
            at = block("moe_place", "positions", positions, rows, dtype=I64)
        counted = 0 if slots.counts is None else slots.counts.numel()
        counts = 0
        if slots.counts is not None:
            counts = block("moe_place", "counts", slots.counts, counted, dtype=I64)
        placed = self._kernels.empty(rows, top, dtype=torch.int64)
        self._place(
            rows,
            chosen,
            at,
            block("moe_place", "table", slots.table, count, period, dtype=I64),
            placed.data_ptr(),
            top,
            count,
            period,
            slots.first,
            counts,
            counted,
        )
        return placed

    def routes(self, experts: Tensor, count: int) -> Routes:
        rows, top = sizes("moe_routes", "experts", experts)
        chosen = block("moe_routes", "experts", experts, rows, top, dtype=I64)
        require("moe_routes", count > 0, f"{count} experts")
        places = self._kernels.empty(rows, top, dtype=torch.int64)
        starts = self._kernels.empty(count + 1, dtype=torch.int64)
        self._routes(rows, chosen, places.data_ptr(), starts.data_ptr(), top, count)
        return Routes(places, starts)

    def permute(self, x: Tensor, routes: Routes, weights: Tensor | None = None) -> Tensor:
        rows, inner = sizes("moe_permute", "x", x)
        _, top = sizes("moe_permute", "places", routes.places)
        address, stride = matrix("moe_permute", "x", x, inner, rows)
        places = block("moe_permute", "places", routes.places, rows, top, dtype=I64)
        out = self._kernels.empty(rows * top, inner)
        by = optional("moe_permute", "weights", weights, rows, top)
        self._permute(rows, address, stride, places, out.data_ptr(), top, inner, by)
        return out

    def combine(self, x: Tensor, weights: Tensor | None, routes: Routes) -> Tensor:
        rows, top = sizes("moe_combine", "places", routes.places)
        _, inner = sizes("moe_combine", "x", x)
        address, stride = matrix("moe_combine", "x", x, inner, rows * top)
        out = self._kernels.empty(rows, inner)
        self._combine(
            rows,
            address,
            stride,
            block("moe_combine", "places", routes.places, rows, top, dtype=I64),
            out.data_ptr(),
            top,
            inner,
            optional("moe_combine", "weights", weights, rows, top),
        )
        return out

    def add_gated(self, y: Tensor, x: Tensor, gate: Tensor | None) -> Tensor:
        rows, inner = sizes("add_gated", "y", y)
        address, stride = matrix("add_gated", "x", x, inner, rows)
        self._add_gated(
            rows,
            block("add_gated", "y", y, rows, inner),
            address,
            stride,
            optional("add_gated", "gate", gate, rows, 1),
            inner,
        )
        return y

    def pack(self, experts: Sequence[Sequence[Any]]) -> GroupedWeight:
        """Raises ValueError when experts differ in shape or format."""
        require("pack_grouped", len(experts) > 0, "no experts")
        packed = tuple(self._linears.pack(pieces) for pieces in experts)
        if len({layout(weight) for weight in packed}) != 1:
            raise ValueError("the weights of a layer must have one shape and one format")
        parts = []
        for of_experts in zip(*(weight.parts for weight in packed), strict=True):
            part = of_experts[0]
            addresses = torch.tensor([each.data.data_ptr() for each in of_experts])
            panel_bytes = part.data.nbytes // -(-part.columns // PANEL)
            parts.append(GroupedPart(part.kind, addresses, panel_bytes, part.first, part.columns))
        return GroupedWeight(tuple(parts), packed)

    def update(self, kept: AnyWeight, new: AnyWeight) -> None:
        """`Ops.update_weight`"""
        for old, other in zip(plain_weights(kept), plain_weights(new), strict=True):
            self._linears.update(old, other)

    def select(
        self, weight: GroupedWeight | SegmentedPanels, chosen: Sequence[int]
    ) -> GroupedWeight | SegmentedPanels:
        """`Ops.select_grouped`"""
        if isinstance(weight, SegmentedPanels):
            return weight.select(chosen)
        return GroupedWeight((), tuple(weight.experts[expert] for expert in chosen))

    def quantize(self, x: Tensor, scales: Tensor, offsets: Tensor, routes: Routes) -> Tensor:
        """`Ops.quantize_experts`"""
        op = "quantize_experts"
        (rows, top), (experts,) = sizes(op, "places", routes.places), sizes(op, "scales", scales, 1)
        _, columns = sizes(op, "x", x)
        address, stride = matrix(op, "x", x, columns, rows * top)
        out = self._kernels.empty(rows * top, columns)
        self._quantize_experts(
            rows,
            address,
            stride,
            out.data_ptr(),
            columns,
            block(op, "scales", scales, experts),
            block(op, "offsets", offsets, experts),
            block(op, "starts", routes.starts, experts + 1, dtype=I64),
            experts,
        )
        return out

    def linear(
        self, x: Tensor, weight: GroupedWeight, routes: Routes, bias: Tensor | None = None
    ) -> Tensor:
        rows, top = sizes("grouped_linear", "places", routes.places)
        experts, inputs = len(weight.experts), weight.experts[0].inputs
        address, stride = matrix("grouped_linear", "x", x, inputs, rows * top)
        starts = block("grouped_linear", "starts", routes.starts, experts + 1, dtype=I64)
        added = optional("grouped_linear", "bias", bias, experts, weight.outputs)
        out = self._kernels.empty(rows * top, weight.outputs)
        row_bytes = quantized_bytes(inputs)
        quantized: Tensor | None = None
        if any(part.kind in A8_BLOCKS for part in weight.parts):
            quantized = self._kernels.empty(rows * top * row_bytes, dtype=torch.uint8)
            self._quantize(rows, address, stride, quantized.data_ptr(), inputs, starts, experts)
        for part in weight.parts:
            self._grouped(
                rows,
                self._kernels.address(f"linear_{part.kind}"),
                address,
                stride,
                part.addresses.data_ptr(),
                part.panel_bytes,
                starts,
                out.data_ptr() + 4 * part.first,
                out.stride(0),
                part.columns,
                inputs,
                experts,
                added and added + 4 * part.first,
                weight.outputs,
                0 if quantized is None else quantized.data_ptr(),
                row_bytes,
            )
        return out


def plain_weights(weight: AnyWeight) -> tuple[PackedWeight, ...]:
    if isinstance(weight, SegmentedPanels):
        return weight.plain
    return weight.experts if isinstance(weight, GroupedWeight) else (weight,)
