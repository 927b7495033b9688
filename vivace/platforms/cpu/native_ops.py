"""Norms, activations and rotation by native kernels. Activations are float32."""

from __future__ import annotations

from torch import Tensor

from vivace.platforms.cpu.native import Kernels


class NativeOps:
    """Ops of one row at a time, with the signatures of `platforms.ops.table`."""

    def __init__(self, kernels: Kernels) -> None:
        self._empty = kernels.empty
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
        heads, head_stride = (shape[1], stride[1]) if len(shape) == 3 else (1, 0)
        result = self._empty(*shape) if out is None else out
        self._rms_norm(
            shape[0],
            x.data_ptr(),
            stride[0],
            heads,
            head_stride,
            0,
            weight.data_ptr(),
            result.data_ptr(),
            shape[-1],
            eps,
            offset,
        )
        return result

    def add_rms_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, offset: float = 0.0
    ) -> tuple[Tensor, Tensor]:
        """x[T, n], residual[T, n] contiguous"""
        result = self._empty(*x.shape)
        self._rms_norm(
            x.shape[0],
            x.data_ptr(),
            x.stride(0),
            1,
            0,
            residual.data_ptr(),
            weight.data_ptr(),
            result.data_ptr(),
            x.shape[1],
            eps,
            offset,
        )
        return result, residual

    def rotary(
        self, q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor
    ) -> tuple[Tensor, Tensor]:
        for x in (q, k):
            self._rotary(
                x.shape[0],
                x.data_ptr(),
                x.stride(0),
                x.shape[1],
                x.shape[2],
                positions.data_ptr(),
                cos_sin.data_ptr(),
                cos_sin.shape[1],
            )
        return q, k

    def silu_mul(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        return self._activate("silu_mul", x, out)

    def gelu_mul(self, x: Tensor, *, tanh: bool, out: Tensor | None = None) -> Tensor:
        return self._activate("gelu_tanh_mul" if tanh else "gelu_mul", x, out)

    def _activate(self, name: str, x: Tensor, out: Tensor | None) -> Tensor:
        rows, inner = x.shape[0], x.shape[1] // 2
        result = self._empty(rows, inner) if out is None else out
        self._gated[name](rows, x.data_ptr(), x.stride(0), result.data_ptr(), inner)
        return result

    def scale(self, x: Tensor, factor: float) -> Tensor:
        self._scale(x.shape[0], x.data_ptr(), x.shape[1], factor)
        return x

    def soft_cap(self, x: Tensor, cap: float) -> Tensor:
        self._soft_cap(x.shape[0], x.data_ptr(), x.shape[1], cap)
        return x
