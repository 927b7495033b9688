"""GLM-4.5 and its successors of the same class: grouped-query attention that turns a part of each
head, and the mixture of DeepSeek V3 (GLM-4.5 Team 2025, arXiv 2508.06471)."""

from __future__ import annotations

from vivace.layers.attention import Attention
from vivace.layers.linear import RMSNorm
from vivace.layers.rotary import RotaryTable
from vivace.models.causal_lm import attention_shape
from vivace.models.deepseek import DeepseekForCausalLM
from vivace.models.facts import DecoderFacts, ModelFacts


def grouped_attention(
    facts: ModelFacts, decoder: DecoderFacts, index: int, rotary: RotaryTable
) -> Attention:
    def norm() -> RMSNorm | None:
        return RMSNorm(facts.head_dim, decoder.norm_eps) if decoder.qk_norm else None

    return Attention(
        attention_shape(facts, decoder, index),
        facts.hidden_size,
        rotary,
        qkv_bias=decoder.attention_bias,
        q_norm=norm(),
        k_norm=norm(),
    )


class Glm4MoeForCausalLM(DeepseekForCausalLM):
    def __init__(self, facts: ModelFacts, decoder: DecoderFacts, positions: int) -> None:
        super().__init__(facts, decoder, positions, grouped_attention)
