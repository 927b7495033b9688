"""BERT and its kin: encoders whose tokens see all of their text, and which keep nothing of it.

Sources: Devlin et al. 2019; Liu et al. 2019 (RoBERTa); Conneau et al. 2020 (XLM-R); Nussbaum et
al. 2024 (Nomic).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from vivace.checkpoint.classifier import EncoderFacts
from vivace.checkpoint.weights import Weights
from vivace.layers.linear import Embedding, Linear, Part, Shard
from vivace.layers.module import Bindings, Module, cast
from vivace.layers.rotary import RotaryTable
from vivace.models.causal_lm import ModelStep
from vivace.models.facts import ModelFacts
from vivace.platforms.attention import HostStep
from vivace.platforms.cache import CacheLayer
from vivace.platforms.ops.elementwise import rotary

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "relu": functional.relu,
    "silu": functional.silu,
}


class LayerNorm(Module):
    """Normalization to mean 0 and variance 1, then a learned scale and shift."""

    weight: Tensor
    bias: Tensor

    def __init__(self, size: int, eps: float) -> None:
        self.size = size
        self.eps = eps

    def bind(self, name: str, env: Bindings) -> None:
        super().bind(name, env)
        self._place = env.device, env.dtype

    def load(self, weights: Weights) -> None:
        self.weight, self.bias = (self._take(weights, suffix) for suffix in ("weight", "bias"))

    def update(self, weights: Weights) -> None:
        self.weight.copy_(self._take(weights, "weight"))
        self.bias.copy_(self._take(weights, "bias"))

    def _take(self, weights: Weights, suffix: str) -> Tensor:
        return weights.take(f"{self.name}.{suffix}", (self.size,)).to(*self._place)

    def claims(self) -> Iterator[str]:
        yield f"{self.name}.weight"
        yield f"{self.name}.bias"

    def __call__(self, x: Tensor) -> Tensor:
        return functional.layer_norm(x, (self.size,), self.weight, self.bias, self.eps)


class Table(Module):
    """numbers[T] -> [T, hidden]: a learned vector of each position or type."""

    weight: Tensor

    def __init__(self, rows: int, hidden: int) -> None:
        self.shape = (rows, hidden)

    def bind(self, name: str, env: Bindings) -> None:
        super().bind(name, env)
        self._place = env.device, env.dtype

    def load(self, weights: Weights) -> None:
        self.weight = self._take(weights)

    def update(self, weights: Weights) -> None:
        self.weight.copy_(self._take(weights))

    def _take(self, weights: Weights) -> Tensor:
        return weights.take(f"{self.name}.weight", self.shape).to(*self._place)

    def claims(self) -> Iterator[str]:
        yield f"{self.name}.weight"

    def __call__(self, numbers: Tensor) -> Tensor:
        return self.weight.index_select(0, numbers)


class EncoderEmbeddings(Module):
    """Word, position and type of each token, added and normed."""

    def __init__(self, hidden: int, facts: EncoderFacts) -> None:
        self._facts = facts
        self.word_embeddings = Embedding(facts.words, hidden)
        if facts.theta is None:
            self.position_embeddings = Table(facts.positions, hidden)
        self.token_type_embeddings = Table(facts.types, hidden)
        self.LayerNorm = LayerNorm(hidden, facts.norm_eps)

    def claims(self) -> Iterator[str]:
        """With what old files have beside the tables."""
        yield from super().claims()
        yield f"{self.name}.position_ids"
        yield f"{self.name}.token_type_ids"

    def __call__(self, step: ModelStep) -> Tensor:
        ids, words = step.input_ids, self._facts.words
        types = self.token_type_embeddings(ids // words)
        x = cast(self.word_embeddings(ids % words), types.dtype) + types
        if self._facts.theta is None:
            x = x + self.position_embeddings(step.positions + self._facts.first_position)
        return self.LayerNorm(x)


class SelfAttention(Module):
    """Every token of a text sees all of it."""

    def __init__(
        self, facts: ModelFacts, encoder: EncoderFacts, rotary_emb: RotaryTable | None
    ) -> None:
        hidden = facts.hidden_size
        self._head_dim, self._table = facts.head_dim, rotary_emb
        parts = [Part(name, hidden, facts.head_dim) for name in ("query", "key", "value")]
        self.qkv = Linear(hidden, parts, bias=encoder.plain, shard=Shard.OUTPUTS, group="attention")

    def __call__(self, x: Tensor, step: ModelStep) -> Tensor:
        parts = self.qkv(x, step).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (-1, self._head_dim)) for part in parts)
        if self._table is not None:
            q, k = rotary(q, k, step.positions, self._table.cos_sin)
        return attend_texts(q, k, v, step.host)


def attend_texts(q: Tensor, k: Tensor, v: Tensor, host: HostStep) -> Tensor:
    """q, k, v[T, H, D] of texts side by side -> [T, H * D]; one text does not see another."""
    result = torch.empty_like(q, memory_format=torch.contiguous_format)
    for first, end in pairwise(host.starts.tolist()):
        query, key, value = (part[first:end].transpose(0, 1).unsqueeze(0) for part in (q, k, v))
        seen = functional.scaled_dot_product_attention(query, key, value)
        result[first:end] = seen.squeeze(0).transpose(0, 1)
    return result.flatten(1)


class ResidualOutput(Module):
    """A linear layer, added to what was before and normed. `unit`: inputs that stay together."""

    def __init__(
        self, inputs: int, hidden: int, encoder: EncoderFacts, group: str, unit: int = 1
    ) -> None:
        self.dense = Linear(
            inputs,
            [Part("dense", hidden)],
            bias=encoder.plain,
            shard=Shard.INPUTS,
            group=group,
            input_unit=unit,
        )
        self.LayerNorm = LayerNorm(hidden, encoder.norm_eps)

    def __call__(self, x: Tensor, before: Tensor, step: ModelStep) -> Tensor:
        return self.LayerNorm(self.dense(x, step) + before)


class EncoderAttention(Module):
    def __init__(
        self, facts: ModelFacts, encoder: EncoderFacts, rotary_emb: RotaryTable | None
    ) -> None:
        hidden = facts.hidden_size
        self.self = SelfAttention(facts, encoder, rotary_emb)
        self.output = ResidualOutput(hidden, hidden, encoder, "attention", facts.head_dim)

    def __call__(self, x: Tensor, step: ModelStep) -> Tensor:
        return self.output(self.self(x, step), x, step)


class Intermediate(Module):
    def __init__(self, facts: ModelFacts, activation: str) -> None:
        self._activate = ACTIVATIONS[activation]
        parts = [Part("dense", facts.intermediate_size)]
        self.dense = Linear(facts.hidden_size, parts, bias=True, shard=Shard.OUTPUTS, group="dense")

    def __call__(self, x: Tensor, step: ModelStep) -> Tensor:
        return self._activate(self.dense(x, step))


class GatedIntermediate(Module):
    def __init__(self, facts: ModelFacts, activation: str) -> None:
        self._activate = ACTIVATIONS[activation]
        parts = [Part(name, facts.intermediate_size) for name in ("gate", "up")]
        self.gate_up = Linear(facts.hidden_size, parts, shard=Shard.OUTPUTS, group="dense")

    def __call__(self, x: Tensor, step: ModelStep) -> Tensor:
        gate, up = self.gate_up(x, step).chunk(2, -1)
        return self._activate(gate) * up


class EncoderLayer(Module):
    """Attention and an MLP, each added to its input and normed behind it."""

    def __init__(
        self, facts: ModelFacts, encoder: EncoderFacts, rotary_emb: RotaryTable | None
    ) -> None:
        hidden, inner = facts.hidden_size, facts.intermediate_size
        self.attention = EncoderAttention(facts, encoder, rotary_emb)
        between = Intermediate if encoder.plain else GatedIntermediate
        self.intermediate = between(facts, encoder.activation)
        self.output = ResidualOutput(inner, hidden, encoder, "dense")

    def __call__(self, x: Tensor, step: ModelStep) -> Tensor:
        x = self.attention(x, step)
        return self.output(self.intermediate(x, step), x, step)


class EncoderStack(Module):
    def __init__(self, layers: Sequence[EncoderLayer]) -> None:
        self.layer = list(layers)


class BidirectionalEncoder(Module):
    """Embeddings and layers; a step has whole texts only. Of the layers a stage of a pipeline
    computes its own; what goes from one to the next is [T, hidden]."""

    attention_layers: Sequence[CacheLayer] = ()
    """none that keeps anything"""

    def __init__(self, facts: ModelFacts, encoder: EncoderFacts) -> None:
        self._prefix, self._hidden = encoder.prefix, facts.hidden_size
        self._embeddings = EncoderEmbeddings(facts.hidden_size, encoder)
        self._rotary_emb = None
        if encoder.theta is not None:
            self._rotary_emb = RotaryTable(facts.head_dim, encoder.theta, encoder.positions)
        layers = [EncoderLayer(facts, encoder, self._rotary_emb) for _ in range(facts.layers)]
        self._stack = EncoderStack(layers)

    def children(self) -> Iterator[tuple[str, Module]]:
        dot = f"{self._prefix}." if self._prefix else ""
        yield f"{dot}embeddings", self._embeddings
        yield f"{dot}encoder", self._stack
        if self._rotary_emb is not None:
            yield "rotary_emb", self._rotary_emb

    def bind(self, name: str, env: Bindings) -> None:
        super().bind(name, env)
        stage, layers = env.layout.stage, self._stack.layer
        self._stage, self._dtype = stage, env.dtype
        self._held = [layers[index] for index in stage.layers or range(len(layers))]
        for layer in layers:
            layer.elsewhere = layer not in self._held
        self._embeddings.elsewhere = stage.source is not None

    def claims(self) -> Iterator[str]:
        """With the layer behind the first token, which vectors of texts do not use."""
        yield from super().claims()
        dot = f"{self._prefix}." if self._prefix else ""
        yield f"{dot}pooler.dense.weight"
        yield f"{dot}pooler.dense.bias"

    def forward(self, step: ModelStep) -> Tensor:
        """-> hidden[T, hidden]; in a stage before the last what it hands on. Raises ValueError for
        a part of a text."""
        if not np.array_equal(step.host.context_lens, np.diff(step.host.starts)):
            raise ValueError("an encoder computes whole texts: a step has a part of one")
        source, target = self._stage.source, self._stage.target
        if source is None:
            x = self._embeddings(step)
        else:
            x = source.receive(step.input_ids.shape[0], self._hidden, self._dtype)
        for layer in self._held:
            x = layer(x, step)
        if target is not None:
            target.send(x)
        return x

    def lm_head(self, hidden: Tensor) -> Tensor:
        raise TypeError("an encoder draws no tokens")
