"""Qwen3 (dense): pre-norm decoder with a norm on every query and key head (Yang et al. 2025)."""

from __future__ import annotations

from torch import Tensor

from vivace.layers.attention import Attention
from vivace.layers.linear import RMSNorm
from vivace.layers.module import Module
from vivace.layers.rotary import RotaryTable
from vivace.models.causal_lm import ModelStep, attention_shape, feed_forward
from vivace.models.decoder import PlainDecoderForCausalLM
from vivace.models.facts import DecoderFacts, ModelFacts


class Qwen3DecoderLayer(Module):
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
            q_norm=RMSNorm(facts.head_dim, eps),
            k_norm=RMSNorm(facts.head_dim, eps),
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


class Qwen3ForCausalLM(PlainDecoderForCausalLM):
    def __init__(self, facts: ModelFacts, decoder: DecoderFacts, positions: int) -> None:
        super().__init__(facts, decoder, positions, Qwen3DecoderLayer)


class Qwen3MoeForCausalLM(Qwen3ForCausalLM):
    """The same network; some layers have experts in the place of the MLP."""
