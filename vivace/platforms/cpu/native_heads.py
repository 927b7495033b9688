"""Linear layers with a weight for each head by native kernels: kernels/heads.inc."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from vivace.platforms.cpu.native import Kernels, sizes, spread_heads
from vivace.platforms.cpu.native_moe import GroupedWeight, NativeMoe


class NativeHeads:
    """The pair `pack_heads` and `heads_linear` of one op table. Heads are packed as experts are."""

    def __init__(self, kernels: Kernels, experts: NativeMoe) -> None:
        self._kernels, self._experts = kernels, experts
        self._linear = kernels.operation("heads_linear", "q" * 11)

    def pack(self, heads: Sequence[Any]) -> GroupedWeight:
        """Raises ValueError as `NativeMoe.pack` does."""
        return self._experts.pack([[weight] for weight in heads])

    def linear(self, x: Tensor, weight: GroupedWeight) -> Tensor:
        """x[T, H, in] float32, the numbers of a head without gaps -> [T, H, out]"""
        heads, inputs = len(weight.experts), weight.experts[0].inputs
        rows, *_ = sizes("heads_linear", "x", x, 3)
        address, stride, head_stride = spread_heads("heads_linear", "x", x, rows, heads, inputs)
        out = self._kernels.empty(rows, heads, weight.outputs)
        (part,) = weight.parts
        self._linear(
            rows,
            self._kernels.address(f"linear_{part.kind}"),
            address,
            stride,
            head_stride,
            part.addresses.data_ptr(),
            part.panel_bytes,
            out.data_ptr(),
            weight.outputs,
            inputs,
            heads,
        )
        return out
