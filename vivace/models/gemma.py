"""Gemma 2 and Gemma 3 (text): sandwich norms, alternating sliding and full attention.

Sources: Gemma Team 2024 (Gemma 2, arXiv 2408.00118), 2025 (Gemma 3, arXiv 2503.19786).
"""

from __future__ import annotations

from typing import Any

from vivace.layers.attention import Attention
from vivace.layers.decoder import SandwichLayer
from vivace.layers.embedding import Embedding, LogitsHead
from vivace.layers.mlp import GatedMLP
from vivace.layers.norm import RMSNorm
from vivace.layers.rotary import RotaryTable, rotary_table
from vivace.models.causal_lm import CausalLM, Decoder, norm_eps
from vivace.models.facts import ModelFacts
from vivace.platforms.attention import AttentionLayer

UNIT = 1.0
"""Gemma's norms learn the distance from one."""


def declare_gemma2(facts: ModelFacts, positions: int) -> CausalLM:
    """One rotary table, capped scores and logits, no norms on heads."""
    table = rotary_table(facts.config, facts.head_dim, positions)
    return declared(facts, [table] * facts.layers, head_norm=False)


def declare_gemma3(facts: ModelFacts, positions: int) -> CausalLM:
    """Sliding layers rotate with their own base frequency; norms on query and key heads."""
    full, local = gemma3_tables(facts, positions)
    tables = [full if window is None else local for window in facts.layer_windows]
    return declared(facts, tables, head_norm=True)


def gemma3_tables(facts: ModelFacts, positions: int) -> tuple[RotaryTable, RotaryTable]:
    """(full attention's, sliding attention's), from either spelling of the configuration."""
    config, head = facts.config, facts.head_dim
    nested = config.get("rope_parameters")
    if isinstance(nested, dict) and "full_attention" in nested:
        full, local = (
            {**config, "rope_parameters": nested[kind]}
            for kind in ("full_attention", "sliding_attention")
        )
    else:
        local_base = config.get("rope_local_base_freq", 10000.0)
        full, local = config, {"rope_theta": local_base}
    return rotary_table(full, head, positions), rotary_table(local, head, positions)


def declared(facts: ModelFacts, tables: list[RotaryTable], *, head_norm: bool) -> CausalLM:
    config = facts.config
    layers = [layer(facts, index, table, head_norm) for index, table in enumerate(tables)]
    embedding = Embedding(facts.vocabulary, facts.hidden_size, scale=facts.hidden_size**0.5)
    head = LogitsHead(
        embedding, tied=facts.tied, soft_cap=cap_of(config, "final_logit_softcapping")
    )
    return CausalLM(Decoder(embedding, layers, norm(facts)), head, list(dict.fromkeys(tables)))


def layer(facts: ModelFacts, index: int, table: RotaryTable, head_norm: bool) -> SandwichLayer:
    bias = bool(facts.config.get("attention_bias", False))
    attention = Attention(
        attention_shape(facts, index),
        facts.hidden_size,
        table,
        qkv_bias=bias,
        output_bias=bias,
        q_norm=norm(facts, facts.head_dim) if head_norm else None,
        k_norm=norm(facts, facts.head_dim) if head_norm else None,
    )
    activation = facts.config.get("hidden_activation") or "gelu_pytorch_tanh"
    mlp = GatedMLP(facts.hidden_size, facts.intermediate_size, str(activation))
    return SandwichLayer(attention, mlp, [norm(facts) for _ in range(4)])


def attention_shape(facts: ModelFacts, index: int) -> AttentionLayer:
    scalar = float(facts.config.get("query_pre_attn_scalar") or facts.head_dim)
    return AttentionLayer(
        index=index,
        heads=facts.heads,
        kv_heads=facts.kv_heads,
        head_dim=facts.head_dim,
        scale=scalar**-0.5,
        window=facts.layer_windows[index],
        soft_cap=cap_of(facts.config, "attn_logit_softcapping"),
    )


def norm(facts: ModelFacts, size: int | None = None) -> RMSNorm:
    return RMSNorm(size or facts.hidden_size, norm_eps(facts.config), offset=UNIT)


def cap_of(config: dict[str, Any], key: str) -> float | None:
    value = config.get(key)
    return float(value) if value else None
