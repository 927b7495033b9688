"""Mixtures of experts by native kernels: kernels/moe.inc."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vivace.platforms.cpu.native import Kernels
from vivace.platforms.cpu.native_linear import NARROW, PANEL, NativeLinears, PackedWeight
from vivace.platforms.ops.moe import Gate, Routes


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


class NativeMoe:
    """The MoE ops of one table, with the signatures of `platforms.ops.table`."""

    def __init__(self, kernels: Kernels, linears: NativeLinears) -> None:
        self._kernels, self._linears = kernels, linears
        self._gate = kernels.operation("moe_gate", "q" * 12 + "d")
        self._routes = kernels.operation("moe_routes", "q" * 6)
        self._spread = kernels.operation("moe_spread", "q" * 7)
        self._combine = kernels.operation("moe_combine", "q" * 8)
        self._grouped = kernels.operation("grouped_linear", "q" * 12)

    def gate(self, gate: Gate, logits: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
        rows, experts = logits.shape
        weights = self._kernels.empty(rows, gate.top)
        chosen = self._kernels.empty(rows, gate.top, dtype=torch.int64)
        self._gate(
            rows,
            logits.data_ptr(),
            logits.stride(0),
            0 if bias is None else bias.data_ptr(),
            weights.data_ptr(),
            chosen.data_ptr(),
            experts,
            gate.top,
            gate.scoring == "sigmoid",
            gate.renormalise,
            gate.groups,
            gate.top_groups,
            gate.scale,
        )
        return weights, chosen

    def routes(self, experts: Tensor, count: int) -> Routes:
        rows, top = experts.shape
        places = self._kernels.empty(rows, top, dtype=torch.int64)
        starts = self._kernels.empty(count + 1, dtype=torch.int64)
        self._routes(rows, experts.data_ptr(), places.data_ptr(), starts.data_ptr(), top, count)
        return Routes(places, starts)

    def spread(self, x: Tensor, routes: Routes) -> Tensor:
        (rows, inner), top = x.shape, routes.places.shape[1]
        out = self._kernels.empty(rows * top, inner)
        places = routes.places.data_ptr()
        self._spread(rows, x.data_ptr(), x.stride(0), places, out.data_ptr(), top, inner)
        return out

    def combine(self, x: Tensor, weights: Tensor, routes: Routes) -> Tensor:
        rows, top = routes.places.shape
        out = self._kernels.empty(rows, x.shape[1])
        self._combine(
            rows,
            x.data_ptr(),
            x.stride(0),
            routes.places.data_ptr(),
            out.data_ptr(),
            top,
            x.shape[1],
            weights.data_ptr(),
        )
        return out

    def pack(self, experts: Sequence[Sequence[Any]]) -> GroupedWeight:
        """Raises ValueError when experts differ in shape or format, or are blocks that want
        activations in int8: the grouped product has floats only."""
        packed = tuple(self._linears.pack(pieces) for pieces in experts)
        if any(part.kind in NARROW for part in packed[0].parts):
            raise ValueError("experts are multiplied with floats: leave their blocks as stored")
        shapes = {tuple((p.kind, p.first, p.columns) for p in weight.parts) for weight in packed}
        if len(shapes) != 1 or len({weight.inputs for weight in packed}) != 1:
            raise ValueError("the experts of a layer must have one shape and one format")
        parts = []
        for of_experts in zip(*(weight.parts for weight in packed), strict=True):
            part = of_experts[0]
            addresses = torch.tensor([each.data.data_ptr() for each in of_experts])
            panel_bytes = part.data.nbytes // -(-part.columns // PANEL)
            parts.append(GroupedPart(part.kind, addresses, panel_bytes, part.first, part.columns))
        return GroupedWeight(tuple(parts), packed)

    def linear(self, x: Tensor, weight: GroupedWeight, routes: Routes) -> Tensor:
        out = self._kernels.empty(x.shape[0], weight.outputs)
        for part in weight.parts:
            self._grouped(
                routes.places.shape[0],
                self._kernels.address(f"linear_{part.kind}"),
                x.data_ptr(),
                x.stride(0),
                part.addresses.data_ptr(),
                part.panel_bytes,
                routes.starts.data_ptr(),
                out.data_ptr() + 4 * part.first,
                out.stride(0),
                part.columns,
                weight.experts[0].inputs,
                len(weight.experts),
            )
        return out
