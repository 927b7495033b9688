"""gpt-oss: alternating sliding and full attention with sinks, and a mixture of experts with biases
and a clamped activation in every layer (OpenAI 2025, arXiv 2508.10925)."""

from __future__ import annotations

from torch import Tensor

from vivace.layers.attention import Attention, AttentionSinks
from vivace.layers.linear import RMSNorm
from vivace.layers.module import Module
from vivace.layers.rotary import RotaryTable
from vivace.models.causal_lm import ModelStep, attention_shape, feed_forward
from vivace.models.decoder import PlainDecoderForCausalLM
from vivace.models.facts import DecoderFacts, ModelFacts


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


class GptOssForCausalLM(PlainDecoderForCausalLM):
    def __init__(self, facts: ModelFacts, decoder: DecoderFacts, positions: int) -> None:
        super().__init__(facts, decoder, positions, GptOssDecoderLayer)
