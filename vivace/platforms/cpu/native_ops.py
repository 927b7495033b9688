"""Norms, activations and rotation by native kernels. Activations are float32."""

from __future__ import annotations

from torch import Tensor

from vivace.platforms.cpu.native import (
    F32,
    I64,
    Kernels,
    block,
    heads_of,
    indices,
    matrix,
    require,
    sizes,
    wrong,
)


class NativeOps:
    """Ops of one row at a time, with the signatures of `platforms.ops.table`."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels, self._empty = kernels, kernels.empty
        self._rms_norm = kernels.operation("rms_norm", "q" * 9 + "dd")
        self._rotary = kernels.operation("rotary", "q" * 8)
        self._gated = {
            name: kernels.operation(name, "q" * 5)
            for name in ("silu_mul", "gelu_mul", "gelu_tanh_mul")
        }
        self._scale = kernels.operation("scale", "qqqd")
        self._soft_cap = kernels.operation("soft_cap", "qqqd")

    def rms_norm(
        self,
        x: Tensor,
        weight: Tensor,
        eps: float,
        *,
        offset: float = 0.0,
        out: Tensor | None = None,
    ) -> Tensor:
        """x[T, n] or x[T, heads, n] -> contiguous, of x's shape"""
        shape, stride = x.shape, x.stride()
        if x.dtype is not F32 or len(shape) not in (2, 3) or stride[-1] != 1 or not x.is_cpu:
            raise wrong("rms_norm", "x", x, "float32 [T, n] or [T, heads, n] without gaps in n")
        heads, head_stride = (shape[1], stride[1]) if len(shape) == 3 else (1, 0)
        result = self._empty(*shape) if out is None else out
        self._rms_norm(
            shape[0],
            x.data_ptr(),
            stride[0],
            heads,
            head_stride,
            0,
            block("rms_norm", "weight", weight, shape[-1]),
            block("rms_norm", "out", result, *shape),
            shape[-1],
            eps,
            offset,
        )
        return result

    def add_rms_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, offset: float = 0.0
    ) -> tuple[Tensor, Tensor]:
        """x[T, n], residual[T, n] contiguous"""
        rows, columns = sizes("add_rms_norm", "x", x)
        address, stride = matrix("add_rms_norm", "x", x, columns, rows)
        result = self._empty(rows, columns)
        self._rms_norm(
            rows,
            address,
            stride,
            1,
            0,
            block("add_rms_norm", "residual", residual, rows, columns),
            block("add_rms_norm", "weight", weight, columns),
            result.data_ptr(),
            columns,
            eps,
            offset,
        )
        return result, residual

    def rotary(
        self, q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor
    ) -> tuple[Tensor, Tensor]:
        (rows,) = sizes("rotary", "positions", positions, 1)
        where = block("rotary", "positions", positions, rows, dtype=I64)
        longest, _ = sizes("rotary", "cos_sin", cos_sin)
        if not self._kernels.capturing:
            indices("rotary", "positions", positions.numpy(), rows, longest)
        for name, x in (("q", q), ("k", k)):
            _, heads, size = sizes("rotary", name, x, 3)
            table, rotated = rotation("rotary", cos_sin, size)
            address, stride = heads_of("rotary", name, x, rows, heads, size)
            self._rotary(rows, address, stride, heads, size, where, table, rotated)
        return q, k

    def silu_mul(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        return self._activate("silu_mul", x, out)

    def gelu_mul(self, x: Tensor, *, tanh: bool, out: Tensor | None = None) -> Tensor:
        return self._activate("gelu_tanh_mul" if tanh else "gelu_mul", x, out)

    def _activate(self, name: str, x: Tensor, out: Tensor | None) -> Tensor:
        rows, both = sizes(name, "x", x)
        inner = both // 2
        address, stride = matrix(name, "x", x, 2 * inner)
        result = self._empty(rows, inner) if out is None else out
        self._gated[name](rows, address, stride, block(name, "out", result, rows, inner), inner)
        return result

    def scale(self, x: Tensor, factor: float) -> Tensor:
        rows, columns = sizes("scale", "x", x)
        self._scale(rows, block("scale", "x", x, rows, columns), columns, factor)
        return x

    def soft_cap(self, x: Tensor, cap: float) -> Tensor:
        rows, columns = sizes("soft_cap", "x", x)
        self._soft_cap(rows, block("soft_cap", "x", x, rows, columns), columns, cap)
        return x


def rotation(op: str, cos_sin: Tensor, size: int) -> tuple[int, int]:
    """(address, how many numbers of a head are turned) of a table for heads of `size`."""
    positions, rotated = sizes(op, "cos_sin", cos_sin)
    address = block(op, "cos_sin", cos_sin, positions, rotated)
    require(op, rotated <= size and rotated % 2 == 0, f"{rotated} of {size} numbers turned")
    return address, rotated
