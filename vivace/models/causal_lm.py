"""A decoder-only language model, put together from layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from vivace.layers.decoder import DecoderLayer
from vivace.layers.embedding import Embedding, LogitsHead
from vivace.layers.module import Bindings, Module, Weights
from vivace.layers.norm import RMSNorm
from vivace.layers.rotary import RotaryTable
from vivace.layers.step import ModelStep
from vivace.models.facts import DecoderFacts, ModelFacts
from vivace.models.rope import Rope
from vivace.platforms.attention import AttentionLayer


class Model(Protocol):
    """What the worker runs."""

    attention_layers: list[AttentionLayer]

    def bind(self, name: str, env: Bindings) -> None: ...

    def load(self, weights: Weights) -> None: ...

    def forward(self, step: ModelStep) -> Tensor:
        """ids and positions of T tokens -> hidden[T, hidden], after the final norm"""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden[n, hidden] -> [n, vocabulary] float32"""
        ...


class Decoder(Module):
    """Embedding, layers and final norm under the checkpoint's name `model`."""

    def __init__(self, embedding: Embedding, layers: Sequence[DecoderLayer], norm: RMSNorm) -> None:
        self.embed_tokens = embedding
        self.layers = list(layers)
        self.norm = norm

    def __call__(self, step: ModelStep) -> Tensor:
        x, residual = self.embed_tokens(step.ids), None
        for layer in self.layers:
            x, residual = layer(x, residual, step)
        if residual is None:
            return self.norm(x)
        return self.norm.add(x, residual)[0]


class CausalLM(Module):
    """A `Model` made of a decoder and a head; `tables` are the rotary tables layers share."""

    def __init__(self, decoder: Decoder, head: LogitsHead, tables: Sequence[RotaryTable]) -> None:
        self.model = decoder
        self.lm_head = head
        self.tables = list(tables)
        self.attention_layers = [layer.self_attn.shape for layer in decoder.layers]

    def forward(self, step: ModelStep) -> Tensor:
        return self.model(step)

    def logits(self, hidden: Tensor) -> Tensor:
        return self.lm_head(hidden)


def rotary_table(rope: Rope, positions: int) -> RotaryTable:
    """The table a configuration asks for; `positions` is how many are served."""
    return RotaryTable(rope.rotated, rope.theta, positions, rope.kind, rope.scaling)


def attention_shape(facts: ModelFacts, decoder: DecoderFacts, index: int) -> AttentionLayer:
    return AttentionLayer(
        index=index,
        heads=facts.heads,
        kv_heads=facts.kv_heads,
        head_dim=facts.head_dim,
        scale=decoder.query_scale,
        window=facts.layer_windows[index],
        soft_cap=decoder.score_cap,
    )
