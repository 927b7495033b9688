"""DeepSeek V2, V3 and R1, and Kimi-K2: pre-norm decoder with latent attention and mixtures of
experts. DeepSeek-AI 2024 (V2, arXiv 2405.04434; V3, arXiv 2412.19437)."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from vivace.layers.attention import Attention
from vivace.layers.latent_attention import MultiHeadLatentAttention
from vivace.layers.linear import RMSNorm
from vivace.layers.module import Module
from vivace.layers.rotary import RotaryTable
from vivace.models.causal_lm import ModelStep, feed_forward
from vivace.models.decoder import PlainDecoderForCausalLM
from vivace.models.draft_layers import DraftLayers
from vivace.models.facts import DecoderFacts, ModelFacts
from vivace.platforms.attention import LatentLayer

BuildAttention = Callable[
    [ModelFacts, DecoderFacts, int, RotaryTable], MultiHeadLatentAttention | Attention
]
"""of the layer with this index"""


def latent_attention(
    facts: ModelFacts, decoder: DecoderFacts, index: int, rotary: RotaryTable
) -> MultiHeadLatentAttention:
    latent = decoder.latent
    assert latent is not None
    return MultiHeadLatentAttention(
        LatentLayer(
            index=index,
            heads=facts.heads,
            latent_dim=latent.kv_rank,
            rope_dim=latent.rope,
            scale=decoder.query_scale,
        ),
        facts.hidden_size,
        rotary,
        q_rank=latent.q_rank,
        nope_dim=latent.nope,
        value_dim=latent.value,
        bias=decoder.attention_bias,
        interleaved=latent.interleaved,
    )


class DeepseekDecoderLayer(Module):
    def __init__(
        self,
        facts: ModelFacts,
        decoder: DecoderFacts,
        index: int,
        attention: MultiHeadLatentAttention | Attention,
    ) -> None:
        self.input_layernorm = RMSNorm(facts.hidden_size, decoder.norm_eps)
        self.self_attn = attention
        self.post_attention_layernorm = RMSNorm(facts.hidden_size, decoder.norm_eps)
        self.mlp = feed_forward(facts, decoder, index)

    def __call__(
        self, x: Tensor, residual: Tensor | None, step: ModelStep
    ) -> tuple[Tensor, Tensor]:
        """x[T, hidden] is what `residual` has not yet been given -> the same for the next layer"""
        x, residual = self.input_layernorm.add(x, residual)
        x = self.self_attn(x, step)
        x, residual = self.post_attention_layernorm.add(x, residual)
        return self.mlp(x, step), residual


class DeepseekForCausalLM(PlainDecoderForCausalLM):
    def __init__(
        self,
        facts: ModelFacts,
        decoder: DecoderFacts,
        positions: int,
        attention: BuildAttention = latent_attention,
    ) -> None:
        def layer(
            facts: ModelFacts, decoder: DecoderFacts, index: int, rotary: RotaryTable
        ) -> DeepseekDecoderLayer:
            return DeepseekDecoderLayer(
                facts, decoder, index, attention(facts, decoder, index, rotary)
            )

        super().__init__(facts, decoder, positions, layer)
        behind = range(facts.layers, facts.layers + facts.draft_layers)
        self.draft_layers = DraftLayers(*(f"model.layers.{index}." for index in behind))
