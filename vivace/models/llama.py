"""Llama 2 and 3, Mistral and Mixtral: pre-norm decoder with grouped-query attention.

Sources: Touvron et al. 2023; Dubey et al. 2024; Jiang et al. 2023 and 2024.
"""

from __future__ import annotations

from torch import Tensor

from vivace.layers.attention import Attention
from vivace.layers.linear import Embedding, LogitsHead, RMSNorm
from vivace.layers.module import Module
from vivace.layers.rotary import RotaryTable
from vivace.models.causal_lm import ModelStep, attention_shape, feed_forward, rotary_table
from vivace.models.facts import DecoderFacts, ModelFacts
from vivace.platforms.attention import AttentionLayer


class LlamaDecoderLayer(Module):
    def __init__(
        self, facts: ModelFacts, decoder: DecoderFacts, index: int, rotary: RotaryTable
    ) -> None:
        hidden, eps = facts.hidden_size, decoder.norm_eps
        self.input_layernorm = RMSNorm(hidden, eps)
        self.self_attn = Attention(
            attention_shape(facts, decoder, index),
            hidden,
            rotary,
            qkv_bias=decoder.attention_bias,
            output_bias=decoder.attention_bias,
        )
        self.post_attention_layernorm = RMSNorm(hidden, eps)
        self.mlp = feed_forward(facts, decoder, index)

    def __call__(
        self, x: Tensor, residual: Tensor | None, step: ModelStep
    ) -> tuple[Tensor, Tensor]:
        """x[T, hidden] is what `residual` has not yet been given -> the same for the next layer"""
        x, residual = self.input_layernorm.add(x, residual)
        x = self.self_attn(x, step)
        x, residual = self.post_attention_layernorm.add(x, residual)
        return self.mlp(x, step), residual


class LlamaModel(Module):
    def __init__(self, facts: ModelFacts, decoder: DecoderFacts, positions: int) -> None:
        self.rotary_emb = rotary_table(decoder.rope, positions)
        self.embed_tokens = Embedding(facts.vocabulary, facts.hidden_size)
        self.layers = [
            LlamaDecoderLayer(facts, decoder, index, self.rotary_emb)
            for index in range(facts.layers)
        ]
        self.norm = RMSNorm(facts.hidden_size, decoder.norm_eps)

    def __call__(self, step: ModelStep) -> Tensor:
        x, residual = self.embed_tokens(step.input_ids), None
        for layer in self.layers:
            x, residual = layer(x, residual, step)
        return self.norm.add(x, residual)[0]


class LlamaForCausalLM(Module):
    """`positions`: the served context in tokens."""

    def __init__(self, facts: ModelFacts, decoder: DecoderFacts, positions: int) -> None:
        self.model = LlamaModel(facts, decoder, positions)
        self.lm_head = LogitsHead(self.model.embed_tokens, tied=facts.tied)

    @property
    def attention_layers(self) -> list[AttentionLayer]:
        """This rank's heads; after `bind`."""
        return [layer.self_attn.shape for layer in self.model.layers]

    def forward(self, step: ModelStep) -> Tensor:
        return self.model(step)


class MistralForCausalLM(LlamaForCausalLM):
    """The same network; its layers may have a window (`ModelFacts.layer_windows`)."""


class MixtralForCausalLM(MistralForCausalLM):
    """The same network with experts in the place of the MLP."""
