"""Llama 2 and 3, Mistral, Mixtral and InternLM2: pre-norm decoder with grouped-query attention.

Sources: Touvron et al. 2023; Dubey et al. 2024; Jiang et al. 2023 and 2024; Cai et al. 2024.
"""

from __future__ import annotations

from torch import Tensor

from vivace.layers.attention import Attention
from vivace.layers.linear import RMSNorm
from vivace.layers.module import Module
from vivace.layers.rotary import RotaryTable
from vivace.models.causal_lm import ModelStep, attention_shape, feed_forward
from vivace.models.decoder import PlainDecoderForCausalLM
from vivace.models.facts import DecoderFacts, ModelFacts


class LlamaDecoderLayer(Module):
    def __init__(
        self,
        facts: ModelFacts,
        decoder: DecoderFacts,
        index: int,
        rotary: RotaryTable,
        *,
        qkv_bias: bool | None = None,
    ) -> None:
        """`qkv_bias`: None: as that of the attention's output"""
        hidden, eps = facts.hidden_size, decoder.norm_eps
        self.input_layernorm = RMSNorm(hidden, eps)
        self.self_attn = Attention(
            attention_shape(facts, decoder, index),
            hidden,
            rotary,
            qkv_bias=decoder.attention_bias if qkv_bias is None else qkv_bias,
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


class LlamaForCausalLM(PlainDecoderForCausalLM):
    def __init__(self, facts: ModelFacts, decoder: DecoderFacts, positions: int) -> None:
        super().__init__(facts, decoder, positions, LlamaDecoderLayer)


class MistralForCausalLM(LlamaForCausalLM):
    """The same network; its layers may have a window (`ModelFacts.layer_windows`)."""


class MixtralForCausalLM(MistralForCausalLM):
    """The same network with experts in the place of the MLP."""
