"""What pre-norm decoders have around their layers: embedding, last norm and head."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from vivace.layers.linear import Embedding, LogitsHead, RMSNorm
from vivace.layers.module import Module
from vivace.layers.rotary import RotaryTable
from vivace.models.causal_lm import ModelStep, rotary_table
from vivace.models.facts import DecoderFacts, ModelFacts
from vivace.platforms.attention import AttentionLayer, LatentLayer

BuildLayer = Callable[[ModelFacts, DecoderFacts, int, RotaryTable], Any]
"""The layer with this index: (x[T, hidden], residual or None, step) -> the same for the next layer;
x is what the residual has not yet been given"""


class DecoderModel(Module):
    def __init__(
        self, facts: ModelFacts, decoder: DecoderFacts, positions: int, build: BuildLayer
    ) -> None:
        self.rotary_emb = rotary_table(decoder.rope, positions)
        self.embed_tokens = Embedding(facts.vocabulary, facts.hidden_size)
        self.layers = [
            build(facts, decoder, index, self.rotary_emb) for index in range(facts.layers)
        ]
        self.norm = RMSNorm(facts.hidden_size, decoder.norm_eps)

    def __call__(self, step: ModelStep) -> Tensor:
        x, residual = self.embed_tokens(step.input_ids), None
        for layer in self.layers:
            x, residual = layer(x, residual, step)
        return self.norm.add(x, residual)[0]


class DecoderForCausalLM(Module):
    """`positions`: the served context in tokens."""

    def __init__(
        self, facts: ModelFacts, decoder: DecoderFacts, positions: int, build: BuildLayer
    ) -> None:
        self.model = DecoderModel(facts, decoder, positions, build)
        self.lm_head = LogitsHead(self.model.embed_tokens, tied=facts.tied)

    @property
    def attention_layers(self) -> list[AttentionLayer | LatentLayer]:
        """This rank's heads; after `bind`."""
        return [layer.self_attn.shape for layer in self.model.layers]

    def forward(self, step: ModelStep) -> Tensor:
        return self.model(step)
