"""Gemma 2 and Gemma 3 (text): sandwich norms, alternating sliding and full attention.

Sources: Gemma Team 2024 (Gemma 2, arXiv 2408.00118), 2025 (Gemma 3, arXiv 2503.19786).
"""

from __future__ import annotations

from functools import partial

from torch import Tensor

from vivace.layers.attention import Attention
from vivace.layers.linear import Embedding, GatedMLP, RMSNorm
from vivace.layers.module import Module
from vivace.layers.rotary import RotaryTable
from vivace.models.causal_lm import ModelStep, attention_shape, rotary_table
from vivace.models.decoder import DecoderForCausalLM, DecoderModel
from vivace.models.facts import DecoderFacts, ModelFacts

GemmaRMSNorm = partial(RMSNorm, offset=1.0)
"""its weight is the distance from one"""


class GemmaDecoderLayer(Module):
    def __init__(
        self,
        facts: ModelFacts,
        decoder: DecoderFacts,
        index: int,
        rotary: RotaryTable,
        qk_norm: bool,
    ) -> None:
        hidden, eps = facts.hidden_size, decoder.norm_eps
        self.input_layernorm = GemmaRMSNorm(hidden, eps)
        self.self_attn = Attention(
            attention_shape(facts, decoder, index),
            hidden,
            rotary,
            qkv_bias=decoder.attention_bias,
            output_bias=decoder.attention_bias,
            q_norm=GemmaRMSNorm(facts.head_dim, eps) if qk_norm else None,
            k_norm=GemmaRMSNorm(facts.head_dim, eps) if qk_norm else None,
        )
        self.post_attention_layernorm = GemmaRMSNorm(hidden, eps)
        self.pre_feedforward_layernorm = GemmaRMSNorm(hidden, eps)
        self.mlp = GatedMLP(hidden, facts.intermediate_size, decoder.activation)
        self.post_feedforward_layernorm = GemmaRMSNorm(hidden, eps)

    def __call__(
        self, x: Tensor, residual: Tensor | None, step: ModelStep
    ) -> tuple[Tensor, Tensor]:
        """x[T, hidden] is what `residual` has not yet been given -> the same for the next layer"""
        x, residual = self.input_layernorm.add(x, residual)
        x = self.post_attention_layernorm(self.self_attn(x, step))
        x, residual = self.pre_feedforward_layernorm.add(x, residual)
        return self.post_feedforward_layernorm(self.mlp(x, step)), residual


class GemmaForCausalLM(DecoderForCausalLM):
    """`tables`: the rotary embedding of each layer."""

    def __init__(
        self, facts: ModelFacts, decoder: DecoderFacts, tables: list[RotaryTable], *, qk_norm: bool
    ) -> None:
        hidden = facts.hidden_size
        model = DecoderModel(
            Embedding(facts.vocabulary, hidden, scale=hidden**0.5),
            [
                GemmaDecoderLayer(facts, decoder, index, rotary, qk_norm)
                for index, rotary in enumerate(tables)
            ],
            GemmaRMSNorm(hidden, decoder.norm_eps),
            list(dict.fromkeys(tables)),
        )
        super().__init__(model, tied=facts.tied, soft_cap=decoder.logit_cap)


class Gemma2ForCausalLM(GemmaForCausalLM):
    """Capped scores and logits."""

    def __init__(self, facts: ModelFacts, decoder: DecoderFacts, positions: int) -> None:
        rotary = rotary_table(decoder.rope, positions)
        super().__init__(facts, decoder, [rotary] * facts.layers, qk_norm=False)


class Gemma3ForCausalLM(GemmaForCausalLM):
    """Sliding layers rotate with their own base frequency; norms on query and key heads."""

    def __init__(self, facts: ModelFacts, decoder: DecoderFacts, positions: int) -> None:
        full = rotary_table(decoder.rope, positions)
        local = rotary_table(decoder.local_rope, positions)
        tables = [full if window is None else local for window in facts.layer_windows]
        super().__init__(facts, decoder, tables, qk_norm=True)
