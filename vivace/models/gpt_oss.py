"""gpt-oss: alternating sliding and full attention with sinks, and a mixture of experts with biases
and a clamped activation in every layer (OpenAI 2025, arXiv 2508.10925)."""

from __future__ import annotations

from torch import Tensor

from vivace.layers.attention import Attention, AttentionSinks
from vivace.layers.linear import Embedding, LogitsHead, RMSNorm
from vivace.layers.module import Module
from vivace.layers.rotary import RotaryTable
from vivace.models.causal_lm import ModelStep, attention_shape, feed_forward, rotary_table
from vivace.models.facts import DecoderFacts, ModelFacts
from vivace.platforms.attention import AttentionLayer


class GptOssDecoderLayer(Module):
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
            sinks=AttentionSinks(facts.heads),
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


class GptOssModel(Module):
    def __init__(self, facts: ModelFacts, decoder: DecoderFacts, positions: int) -> None:
        self.rotary_emb = rotary_table(decoder.rope, positions)
        self.embed_tokens = Embedding(facts.vocabulary, facts.hidden_size)
        self.layers = [
            GptOssDecoderLayer(facts, decoder, index, self.rotary_emb)
            for index in range(facts.layers)
        ]
        self.norm = RMSNorm(facts.hidden_size, decoder.norm_eps)

    def __call__(self, step: ModelStep) -> Tensor:
        x, residual = self.embed_tokens(step.input_ids), None
        for layer in self.layers:
            x, residual = layer(x, residual, step)
        return self.norm.add(x, residual)[0]


class GptOssForCausalLM(Module):
    """`positions`: the served context in tokens."""

    def __init__(self, facts: ModelFacts, decoder: DecoderFacts, positions: int) -> None:
        self.model = GptOssModel(facts, decoder, positions)
        self.lm_head = LogitsHead(self.model.embed_tokens, tied=facts.tied)

    @property
    def attention_layers(self) -> list[AttentionLayer]:
        """This rank's heads; after `bind`."""
        return [layer.self_attn.shape for layer in self.model.layers]

    def forward(self, step: ModelStep) -> Tensor:
        return self.model(step)
