"""Layers that keep weights of the checkpoint: linear layers, declared by their parts and kept as
one product, the gated MLP, token embeddings, the head that may share their weight, and norms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vivace.layers.module import Bindings, Module, Weights, sibling
from vivace.platforms.ops.stored import Int8Rows
from vivace.platforms.ops.table import Ops, PackedWeight, gated_mlp
from vivace.quantization.method import LinearMethod


@dataclass(frozen=True)
class Part:
    """One tensor of the checkpoint: its name beside this layer, and its rows."""

    name: str
    size: int


class Linear(Module):
    """x[T, inputs] -> [T, sum of parts]: q, k and v (or gate and up) are one product."""

    method: LinearMethod

    def __init__(self, inputs: int, parts: Sequence[Part], *, bias: bool = False) -> None:
        self.inputs = inputs
        self.parts = tuple(parts)
        self.bias = bias

    def bind(self, name: str, env: Bindings) -> None:
        super().bind(name, env)
        self.method = env.linear_method(name)
        self._linear = env.ops.linear
        self._read = env.read

    def load(self, weights: Weights) -> None:
        rows = [
            self._read(weights, f"{sibling(self.name, part.name)}.weight", (part.size, self.inputs))
            for part in self.parts
        ]
        self.method.load(rows, concat(self._biases(weights)) if self.bias else None)

    def _biases(self, weights: Weights) -> list[Tensor]:
        return [
            weights.take(f"{sibling(self.name, part.name)}.bias", (part.size,))
            for part in self.parts
        ]

    def __call__(self, x: Tensor) -> Tensor:
        operands = self.method.operands
        return self._linear(x, operands.weight, operands.bias)


class GatedMLP(Module):
    """down(act(gate(x)) * up(x)); `activation`: one of `platforms.ops.table.ACTIVATIONS`."""

    def __init__(self, hidden: int, inner: int, activation: str, *, bias: bool = False) -> None:
        self.activation = activation
        self.gate_up_proj = Linear(
            hidden, [Part("gate_proj", inner), Part("up_proj", inner)], bias=bias
        )
        self.down_proj = Linear(inner, [Part("down_proj", hidden)], bias=bias)

    def bind(self, name: str, env: Bindings) -> None:
        super().bind(name, env)
        self._run = env.ops.gated_mlp or gated_mlp(env.ops)

    def __call__(self, x: Tensor) -> Tensor:
        """x[T, hidden] -> [T, hidden]"""
        up, down = self.gate_up_proj.method.operands, self.down_proj.method.operands
        return self._run(x, up, down, self.activation)


def concat(pieces: list[Tensor]) -> Tensor:
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


class Embedding(Module):
    """ids[T] -> [T, hidden], times `scale` (Gemma scales by sqrt(hidden))."""

    weight: PackedWeight
    _ops: Ops

    def __init__(self, vocabulary: int, hidden: int, *, scale: float | None = None) -> None:
        self.vocabulary = vocabulary
        self.hidden = hidden
        self._scale = scale

    def bind(self, name: str, env: Bindings) -> None:
        super().bind(name, env)
        self._ops = env.ops
        self._place = env.device, env.matrix_dtype
        self._read = env.read
        if self._scale is not None:
            # The reference rounds the scale to the model's dtype before it multiplies.
            self._scale = float(torch.tensor(self._scale, dtype=env.matrix_dtype))

    def load(self, weights: Weights) -> None:
        shape = (self.vocabulary, self.hidden)
        read = self._read(weights, f"{self.name}.weight", shape)
        if isinstance(read, Int8Rows):
            read = read.dequantize()
        self.weight = self._ops.pack_embedding(
            read.to(*self._place) if isinstance(read, Tensor) else read
        )

    def __call__(self, ids: Tensor) -> Tensor:
        embedded = self._ops.embedding(ids, self.weight)
        return embedded if self._scale is None else self._ops.scale(embedded, self._scale)


class LogitsHead(Module):
    """hidden[n, hidden] -> logits[n, vocabulary] in float32, soft-capped where the family does."""

    method: LinearMethod
    _ops: Ops

    def __init__(self, embedding: Embedding, *, tied: bool, soft_cap: float | None = None) -> None:
        self._embedding = embedding
        self.tied = tied
        self.soft_cap = soft_cap

    def bind(self, name: str, env: Bindings) -> None:
        super().bind(name, env)
        self._ops = env.ops
        self.method = env.linear_method(name)
        self._read = env.read

    def load(self, weights: Weights) -> None:
        """The embedding's weight when tied; loaded after it."""
        shape = (self._embedding.vocabulary, self._embedding.hidden)
        own = None if self.tied else self._read(weights, f"{self.name}.weight", shape)
        self.method.load([self._embedding.weight if own is None else own], None)

    def __call__(self, hidden: Tensor) -> Tensor:
        operands = self.method.operands
        logits = self._ops.linear(hidden, operands.weight, operands.bias).float()
        return logits if self.soft_cap is None else self._ops.soft_cap(logits, self.soft_cap)


class RMSNorm(Module):
    """Root mean square normalization; `offset` is added to the learned scale (Gemma: 1)."""

    weight: Tensor
    _ops: Ops

    def __init__(self, size: int, eps: float, *, offset: float = 0.0) -> None:
        self.size = size
        self.eps = eps
        self.offset = offset

    def bind(self, name: str, env: Bindings) -> None:
        super().bind(name, env)
        self._ops = env.ops
        self._place = env.device, env.dtype

    def load(self, weights: Weights) -> None:
        self.weight = weights.take(f"{self.name}.weight", (self.size,)).to(*self._place)

    def __call__(self, x: Tensor) -> Tensor:
        """x[..., size] -> normed, like x."""
        return self._ops.rms_norm(x, self.weight, self.eps, offset=self.offset)

    def add(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        """(norm(residual + x), residual + x); the residual is updated in place. None: it is x."""
        if residual is None:
            return self(x), x
        return self._ops.add_rms_norm(x, residual, self.weight, self.eps, offset=self.offset)
