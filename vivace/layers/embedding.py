"""Token embeddings and the head that shares, or does not share, their weight."""

from __future__ import annotations

import torch
from torch import Tensor

from vivace.layers.module import Bindings, Module, Weights
from vivace.platforms.ops.stored import Int8Rows
from vivace.platforms.ops.table import Ops, PackedWeight
from vivace.quantization.method import LinearMethod


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
            read = read.decoded()
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
