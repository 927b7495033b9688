"""Linear layers with a weight for each head by native kernels: kernels/latent.inc."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from vivace.platforms.cpu.native import F32, Kernels, sizes, wrong
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


def spread_heads(
    op: str, name: str, x: Tensor, rows: int, heads: int, size: int
) -> tuple[int, int, int]:
    """(address, elements from row to row, from head to head) of float32 x[rows, heads, size], the
    numbers of each head without gaps; heads may lie anywhere."""
    shape, stride = x.shape, x.stride()
    if (
        x.dtype is not F32
        or shape != (rows, heads, size)
        or (stride[2] != 1 and size > 1)
        or not x.is_cpu
    ):
        raise wrong(op, name, x, f"float32 [{rows}, {heads}, {size}], each head without gaps")
    return x.data_ptr(), stride[0], stride[1]
