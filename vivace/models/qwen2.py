"""Qwen2 and Qwen2.5: pre-norm decoder with biases on q, k and v (Yang et al. 2024)."""

from __future__ import annotations

from torch import Tensor

from vivace.layers.attention import Attention
from vivace.layers.linear import RMSNorm
from vivace.layers.module import Module
from vivace.layers.rotary import RotaryTable
from vivace.models.causal_lm import ModelStep, attention_shape, feed_forward
from vivace.models.decoder import PlainDecoderForCausalLM
from vivace.models.facts import DecoderFacts, ModelFacts


class Qwen2DecoderLayer(Module):
    def __init__(
        self, facts: ModelFacts, decoder: DecoderFacts, index: int, rotary: RotaryTable
    ) -> None:
        hidden, eps = facts.hidden_size, decoder.norm_eps
        self.input_layernorm = RMSNorm(hidden, eps)
        self.self_attn = Attention(
            attention_shape(facts, decoder, index),
            hidden,
            rotary,
            qkv_bias=decoder.qkv_bias is not False,
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


class Qwen2ForCausalLM(PlainDecoderForCausalLM):
    def __init__(self, facts: ModelFacts, decoder: DecoderFacts, positions: int) -> None:
        super().__init__(facts, decoder, positions, Qwen2DecoderLayer)


class Qwen2MoeForCausalLM(Qwen2ForCausalLM):
    """The same network; some layers have experts and a shared expert in the place of the MLP."""
