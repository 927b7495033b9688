"""Llama 2 and 3, and Mistral: pre-norm decoder with grouped-query attention.

Sources: Touvron et al. 2023; Dubey et al. 2024; Jiang et al. 2023.
"""

from __future__ import annotations

from vivace.layers.attention import Attention
from vivace.layers.decoder import PreNormLayer
from vivace.layers.embedding import Embedding, LogitsHead
from vivace.layers.mlp import GatedMLP
from vivace.layers.norm import RMSNorm
from vivace.layers.rotary import RotaryTable, rotary_table
from vivace.models.causal_lm import CausalLM, Decoder, norm_eps
from vivace.models.facts import ModelFacts
from vivace.platforms.attention import AttentionLayer


def declare(
    facts: ModelFacts, positions: int, *, qkv_bias: bool | None = None, head_norm: bool = False
) -> CausalLM:
    """The model's layers. `positions` = served context; Qwen2 has `qkv_bias`, Qwen3 `head_norm`."""
    table = rotary_table(facts.config, facts.head_dim, positions)
    bias = bool(facts.config.get("attention_bias", False))
    layers = [
        layer(facts, index, table, bias if qkv_bias is None else qkv_bias, bias, head_norm)
        for index in range(facts.layers)
    ]
    embedding = Embedding(facts.vocabulary, facts.hidden_size)
    norm = RMSNorm(facts.hidden_size, norm_eps(facts.config))
    return CausalLM(
        Decoder(embedding, layers, norm), LogitsHead(embedding, tied=facts.tied), [table]
    )


def layer(
    facts: ModelFacts,
    index: int,
    table: RotaryTable,
    qkv_bias: bool,
    output_bias: bool,
    head_norm: bool,
) -> PreNormLayer:
    config, eps, hidden = facts.config, norm_eps(facts.config), facts.hidden_size
    attention = Attention(
        attention_shape(facts, index),
        hidden,
        table,
        qkv_bias=qkv_bias,
        output_bias=output_bias,
        q_norm=RMSNorm(facts.head_dim, eps) if head_norm else None,
        k_norm=RMSNorm(facts.head_dim, eps) if head_norm else None,
    )
    mlp = GatedMLP(
        hidden,
        facts.intermediate_size,
        str(config.get("hidden_act", "silu")),
        bias=bool(config.get("mlp_bias", False)),
    )
    return PreNormLayer(RMSNorm(hidden, eps), attention, RMSNorm(hidden, eps), mlp)


def attention_shape(facts: ModelFacts, index: int) -> AttentionLayer:
    return AttentionLayer(
        index=index,
        heads=facts.heads,
        kv_heads=facts.kv_heads,
        head_dim=facts.head_dim,
        scale=facts.head_dim**-0.5,
        window=facts.layer_windows[index],
    )
