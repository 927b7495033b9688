"""Ops of one row at a time: embedding, norms, rotation, gated activations, scaling and capping.

RMS norm: Zhang and Sennrich 2019, reduced in float32. Rotary embedding: Su et al. 2021, neox
layout: halves are rotated, not pairs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from vivace.platforms.ops.stored import StoredBlocks


def pack_embedding(weight: Tensor | StoredBlocks) -> Tensor:
    """weight[V, hidden] in the form `embedding` likes best: here, itself; blocks are decoded."""
    return weight if isinstance(weight, Tensor) else weight.dequantize()


def embedding(
    ids: Tensor,
    weight: Tensor,
    out: Tensor | None = None,
    *,
    first: int = 0,
    whole: int | None = None,
) -> Tensor:
    """Rows of `weight[V, hidden]` for `ids[T]` (int64 or int32) -> [T, hidden]. `whole`: the weight
    is that of ids first .. first + V - 1 of so many, and the others give zeros."""
    if whole is None:
        return torch.index_select(weight, 0, ids, out=out)
    foreign = (ids < first) | (ids >= first + len(weight))
    rows = torch.index_select(weight, 0, (ids - first).masked_fill_(foreign, 0), out=out)
    return rows.masked_fill_(foreign.unsqueeze(1), 0)


def rms_norm(
    x: Tensor, weight: Tensor, eps: float, *, offset: float = 0.0, out: Tensor | None = None
) -> Tensor:
    """x[..., n] / rms(x) * (weight[n] + offset). Result has x's dtype; `out` must not alias x.

    With `offset` (Gemma) the scale is applied in float32, without it in the model's dtype, as the
    families' own definitions do.
    """
    wide = x.float()
    wide = wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt()
    if offset:
        result = (wide * (weight.float() + offset)).to(x.dtype)
    else:
        result = weight * wide.to(x.dtype)
    if out is None:
        return result
    return out.copy_(result)


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, offset: float = 0.0
) -> tuple[Tensor, Tensor]:
    """residual += x (in place), then its norm -> (normed, residual)."""
    residual.add_(x)
    return rms_norm(residual, weight, eps, offset=offset), residual


def gated_rms_norm(x: Tensor, weight: Tensor, gate: Tensor, eps: float) -> Tensor:
    """The norm of float32 x[T, H, n], times silu(gate[T, groups, H / groups * n]) -> [T, H * n] of
    the weight's dtype"""
    normed = x * (x.square().mean(-1, keepdim=True) + eps).rsqrt()
    opened = functional.silu(gate.to(x.dtype)).reshape(x.shape)
    return ((weight * normed.to(weight.dtype)) * opened).to(weight.dtype).flatten(1)


def sigmoid_mul(x: Tensor, gate: Tensor) -> Tensor:
    """x[T, H * n] *= sigmoid(gate[T, H, n]), in place"""
    return x.mul_(gate.sigmoid().flatten(1))


def add_bias(x: Tensor, bias: Tensor) -> Tensor:
    """x[..., n] += bias[n]"""
    return x.add_(bias)


def rotary(q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate q[T, Hq, D] and k[T, Hk, D] in place by their positions[T]; returns (q, k).

    `cos_sin[max_positions, rot]` holds cosines in its first half and sines in the second
    (float32 is best); rot <= D, dimensions from rot on stay as they are.
    """
    table = torch.index_select(cos_sin, 0, positions).unsqueeze(1)
    cos, sin = table.chunk(2, dim=-1)
    _rotate(q, cos, sin)
    _rotate(k, cos, sin)
    return q, k


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    half = cos.shape[-1]
    first, second = x[..., :half], x[..., half : 2 * half]
    turned_first = first * cos - second * sin
    turned_second = second * cos + first * sin
    first.copy_(turned_first)
    second.copy_(turned_second)


def silu_mul(x: Tensor, out: Tensor | None = None) -> Tensor:
    """silu(x[:, :n]) * x[:, n:] for x[T, 2n] -> [T, n]."""
    gate, up = x.chunk(2, dim=-1)
    return torch.mul(functional.silu(gate), up, out=out)


def gelu_mul(x: Tensor, *, tanh: bool, out: Tensor | None = None) -> Tensor:
    """gelu(x[:, :n]) * x[:, n:] for x[T, 2n] -> [T, n]; `tanh` picks the tanh approximation."""
    gate, up = x.chunk(2, dim=-1)
    return torch.mul(functional.gelu(gate, approximate="tanh" if tanh else "none"), up, out=out)


@dataclass(frozen=True)
class SwigluOai:
    """The gated activation of gpt-oss (vLLM's `swigluoai`; transformers' `_apply_gate`):
    (up + 1) * gate * sigmoid(alpha * gate), with the gate at most `limit` and up within it."""

    alpha: float
    limit: float


def swigluoai_mul(x: Tensor, activation: SwigluOai) -> Tensor:
    """x[T, 2n], gate beside up -> [T, n]"""
    gate, up = x.chunk(2, dim=-1)
    gate = gate.clamp(max=activation.limit)
    up = up.clamp(-activation.limit, activation.limit)
    return (up + 1) * (gate * torch.sigmoid(gate * activation.alpha))


def soft_cap(x: Tensor, cap: float) -> Tensor:
    """cap * tanh(x / cap), in place."""
    return x.div_(cap).tanh_().mul_(cap)


def scale_positions(x: Tensor, positions: Tensor, factors: Tensor) -> Tensor:
    """x[T, H, D] times factors[max_positions] of positions[T], in place."""
    return x.mul_(factors[positions].view(-1, 1, 1))


def scale(x: Tensor, factor: float) -> Tensor:
    """x * factor, in place; the factor is rounded to x's dtype."""
    return x.mul_(factor)
