"""Gemma 2 and Gemma 3 (text): sandwich norms, alternating sliding and full attention.

Sources: Gemma Team 2024 (Gemma 2, arXiv 2408.00118), 2025 (Gemma 3, arXiv 2503.19786).
"""

from __future__ import annotations

from vivace.layers.attention import Attention
from vivace.layers.decoder import SandwichLayer
from vivace.layers.embedding import Embedding, LogitsHead
from vivace.layers.mlp import GatedMLP
from vivace.layers.norm import RMSNorm
from vivace.layers.rotary import RotaryTable
from vivace.models.causal_lm import CausalLM, Decoder, attention_shape, rotary_table
from vivace.models.facts import DecoderFacts, ModelFacts

UNIT = 1.0
"""Gemma's norms learn the distance from one."""


def declare_gemma2(facts: ModelFacts, decoder: DecoderFacts, positions: int) -> CausalLM:
    """One rotary table, capped scores and logits, no norms on heads."""
    table = rotary_table(decoder.rope, positions)
    return declared(facts, decoder, [table] * facts.layers, head_norm=False)


def declare_gemma3(facts: ModelFacts, decoder: DecoderFacts, positions: int) -> CausalLM:
    """Sliding layers rotate with their own base frequency; norms on query and key heads."""
    full = rotary_table(decoder.rope, positions)
    local = rotary_table(decoder.local_rope, positions)
    tables = [full if window is None else local for window in facts.layer_windows]
    return declared(facts, decoder, tables, head_norm=True)


def declared(
    facts: ModelFacts, decoder: DecoderFacts, tables: list[RotaryTable], *, head_norm: bool
) -> CausalLM:
    layers = [layer(facts, decoder, index, table, head_norm) for index, table in enumerate(tables)]
    embedding = Embedding(facts.vocabulary, facts.hidden_size, scale=facts.hidden_size**0.5)
    head = LogitsHead(embedding, tied=facts.tied, soft_cap=decoder.logit_cap)
    norm = RMSNorm(facts.hidden_size, decoder.norm_eps, offset=UNIT)
    return CausalLM(Decoder(embedding, layers, norm), head, list(dict.fromkeys(tables)))


def layer(
    facts: ModelFacts, decoder: DecoderFacts, index: int, table: RotaryTable, head_norm: bool
) -> SandwichLayer:
    def norm(size: int) -> RMSNorm:
        return RMSNorm(size, decoder.norm_eps, offset=UNIT)

    attention = Attention(
        attention_shape(facts, decoder, index),
        facts.hidden_size,
        table,
        qkv_bias=decoder.attention_bias,
        output_bias=decoder.attention_bias,
        q_norm=norm(facts.head_dim) if head_norm else None,
        k_norm=norm(facts.head_dim) if head_norm else None,
    )
    mlp = GatedMLP(facts.hidden_size, facts.intermediate_size, decoder.activation)
    return SandwichLayer(attention, mlp, [norm(facts.hidden_size) for _ in range(4)])
