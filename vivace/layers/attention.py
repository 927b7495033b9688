"""Attention over paged KV: projections, norms of heads, rotation; the backend does the rest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from vivace.checkpoint.weights import Weights
from vivace.layers.layout import split
from vivace.layers.linear import Linear, Part, RMSNorm, Shard
from vivace.layers.module import Bindings, Module
from vivace.layers.rotary import RotaryTable
from vivace.platforms.attention import AttendingStep, AttentionLayer
from vivace.platforms.ops.table import Ops


class AttentionSinks(Module):
    """A score of each head that takes its part of the softmax and has no value (Xiao et al. 2023;
    gpt-oss learns them)."""

    values: Tensor
    """[this rank's heads] float32, at an address that stays"""

    def __init__(self, heads: int) -> None:
        self.heads = heads

    def bind(self, name: str, env: Bindings) -> None:
        super().bind(name, env)
        self._rows = split(name, self.heads, 1, env.layout.attention)
        count = len(range(self.heads)[self._rows])
        self.values = torch.zeros(count, device=env.device)

    def load(self, weights: Weights) -> None:
        self.values.copy_(weights.take(self.name, (self.heads,), self._rows))

    update = load

    def claims(self) -> Iterator[str]:
        yield self.name


class HeadNorm(Module):
    """Root mean square normalization of heads, without a weight (Llama 4's L2 norm)."""

    _ops: Ops

    def __init__(self, size: int, eps: float) -> None:
        self.size = size
        self.eps = eps

    def bind(self, name: str, env: Bindings) -> None:
        super().bind(name, env)
        self._ops = env.ops
        self._ones = torch.ones(self.size, dtype=env.dtype, device=env.device)

    def __call__(self, x: Tensor) -> Tensor:
        """x[T, H, size] -> normed, like x"""
        return self._ops.rms_norm(x, self._ones, self.eps)


class Attention(Module):
    """Grouped-query attention of one layer."""

    _ops: Ops

    def __init__(
        self,
        shape: AttentionLayer,
        hidden: int,
        rotary: RotaryTable,
        *,
        qkv_bias: bool = False,
        output_bias: bool = False,
        q_norm: RMSNorm | None = None,
        k_norm: RMSNorm | None = None,
        sinks: AttentionSinks | None = None,
        gated: bool = False,
    ) -> None:
        """`gated`: each head of `q_proj` has as many numbers again, whose sigmoid its result is
        times (Qwen3-Next); it takes norms of heads"""
        q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.shape = shape
        """this rank's heads, once it is bound"""
        self._parts = 2 if gated else 1
        """of a head of `q_proj`"""
        parts = [
            Part("q_proj", self._parts * q, self._parts * shape.head_dim),
            Part("k_proj", kv, shape.head_dim, repeated=True),
            Part("v_proj", kv, shape.head_dim, repeated=True),
        ]
        self.qkv_proj = Linear(hidden, parts, bias=qkv_bias, shard=Shard.OUTPUTS, group="attention")
        self.o_proj = Linear(
            q,
            [Part("o_proj", hidden)],
            bias=output_bias,
            shard=Shard.INPUTS,
            group="attention",
            input_unit=shape.head_dim,
        )
        self.q_norm = q_norm
        self.k_norm = k_norm
        self.sinks = sinks
        self._table = rotary

    def bind(self, name: str, env: Bindings) -> None:
        super().bind(name, env)
        self._ops = env.ops
        self.sizes = [part.local_size for part in self.qkv_proj.shape.parts]
        q, kv, _ = (size // self.shape.head_dim for size in self.sizes)
        sinks = None if self.sinks is None else self.sinks.values
        self.shape = replace(self.shape, heads=q // self._parts, kv_heads=kv, sinks=sinks)

    def __call__(self, x: Tensor, step: AttendingStep) -> Tensor:
        """x[T, hidden] -> [T, hidden]; keys and values of the T tokens are stored on the way."""
        head, gate = self.shape.head_dim, None
        parts = self.qkv_proj(x, step).split(self.sizes, -1)
        widths = self._parts * head, head, head
        q, k, v = (x.unflatten(-1, (-1, n)) for x, n in zip(parts, widths, strict=True))
        if self._parts > 1:
            q, gate = q.split(head, -1)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        attended = self.attend(q, k, v, step)
        if gate is not None:
            attended = self._ops.sigmoid_mul(attended, gate)
        return self.o_proj(attended, step)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, step: AttendingStep) -> Tensor:
        """q[T, Hq, D], k[T, Hk, D], v[T, Hk, D] as they were projected and normed -> [T, Hq * D]"""
        return self._ops.rotary_attend(self.shape, q, k, v, self._table.cos_sin, step)
