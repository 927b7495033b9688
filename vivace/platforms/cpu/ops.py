"""Ops the CPU does better than the reference, with the same results."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor
from torch.nn import functional

from vivace.platforms.cpu.linear import PackedLinears
from vivace.platforms.ops import elementwise
from vivace.platforms.ops.attention import RotaryAttend, RotaryAttendLatent
from vivace.platforms.ops.heads import HeadsLinear
from vivace.platforms.ops.table import Ops, reference_ops


def cpu_ops() -> Ops:
    """The CPU's op table."""
    linears, norms, turn = PackedLinears(), CpuNorm(), CpuRotary()
    return dataclasses.replace(
        reference_ops(),
        pack_linear=linears.pack,
        update_weight=linears.update,
        linear=linears.linear,
        heads_linear=HeadsLinear(linears.linear),
        rms_norm=norms.rms_norm,
        add_rms_norm=norms.add_rms_norm,
        rotary=turn,
        rotary_attend=RotaryAttend(turn),
        rotary_attend_latent=RotaryAttendLatent(turn),
        silu_mul=silu_mul,
    )


class CpuNorm:
    """Root mean square norm in four calls: the mean of squares is a product with a column.

    Other dtypes than float32, and Gemma's offset, take the reference.
    """

    def __init__(self) -> None:
        self._columns: dict[tuple[int, float], tuple[Tensor, Tensor]] = {}

    def rms_norm(
        self,
        x: Tensor,
        weight: Tensor,
        eps: float,
        *,
        offset: float = 0.0,
        out: Tensor | None = None,
    ) -> Tensor:
        if x.dtype != torch.float32 or offset or x.dim() != 2:
            return elementwise.rms_norm(x, weight, eps, offset=offset, out=out)
        shift, column = self._column(x.shape[-1], eps)
        scale = torch.addmm(shift, x.square(), column).rsqrt_()
        return torch.mul(x, scale, out=out).mul_(weight)

    def add_rms_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, offset: float = 0.0
    ) -> tuple[Tensor, Tensor]:
        residual.add_(x)
        return self.rms_norm(residual, weight, eps, offset=offset), residual

    def _column(self, size: int, eps: float) -> tuple[Tensor, Tensor]:
        """([1] of eps, [size, 1] of 1 / size)"""
        kept = self._columns.get((size, eps))
        if kept is None:
            kept = torch.tensor([eps]), torch.full((size, 1), 1.0 / size)
            self._columns[size, eps] = kept
        return kept


def silu_mul(x: Tensor, out: Tensor | None = None) -> Tensor:
    """The product goes into the activation's own buffer."""
    if out is not None:
        return elementwise.silu_mul(x, out)
    gate, up = x.chunk(2, dim=-1)
    return functional.silu(gate).mul_(up)


class CpuRotary:
    """Rotation in four calls for q and k together, when they are neighbors in one buffer.

    A table of full width (cos, cos, -sin, sin) is made once for each table of the model and kept:
    models have one or two.
    """

    def __init__(self) -> None:
        self._wide: dict[int, tuple[Tensor, Tensor]] = {}

    def __call__(
        self, q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor
    ) -> tuple[Tensor, Tensor]:
        if q.dtype != cos_sin.dtype:
            return elementwise.rotary(q, k, positions, cos_sin)
        width = cos_sin.shape[-1]
        table = torch.index_select(self._widen(cos_sin), 0, positions).unsqueeze(1)
        cos, sin = table[..., :width], table[..., width:]
        both = neighbors(q, k)
        for x in (q, k) if both is None else (both,):
            _rotate(x if width == x.shape[-1] else x[..., :width], cos, sin)
        return q, k

    def _widen(self, cos_sin: Tensor) -> Tensor:
        kept = self._wide.get(id(cos_sin))
        if kept is None:
            cos, sin = cos_sin.chunk(2, dim=-1)
            kept = cos_sin, torch.cat((cos, cos, -sin, sin), dim=-1)
            self._wide[id(cos_sin)] = kept
        return kept[1]


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    half = x.shape[-1] // 2
    turned = torch.cat((x[..., half:], x[..., :half]), dim=-1)
    x.mul_(cos).addcmul_(turned, sin)


def neighbors(first: Tensor, second: Tensor) -> Tensor | None:
    """[T, Ha + Hb, D] when second[T, Hb, D] follows first[T, Ha, D] in each token's memory."""
    tokens, heads, size = first.shape
    strides = first.stride()
    if (
        strides != second.stride()
        or strides[1] != size
        or strides[2] != 1
        or second.storage_offset() != first.storage_offset() + heads * size
        or second.untyped_storage().data_ptr() != first.untyped_storage().data_ptr()
        or (tokens > 1 and strides[0] < (heads + second.shape[1]) * size)
    ):
        return None
    return first.as_strided((tokens, heads + second.shape[1], size), strides)
