"""Llama 2 and 3, and Mistral: pre-norm decoder with grouped-query attention.

Sources: Touvron et al. 2023; Dubey et al. 2024; Jiang et al. 2023.
"""

from __future__ import annotations

from vivace.layers.attention import Attention
from vivace.layers.decoder import PreNormLayer
from vivace.layers.embedding import Embedding, LogitsHead
from vivace.layers.mlp import GatedMLP
from vivace.layers.norm import RMSNorm
from vivace.layers.rotary import RotaryTable
from vivace.models.causal_lm import CausalLM, Decoder, attention_shape, rotary_table
from vivace.models.facts import DecoderFacts, ModelFacts


def declare(
    facts: ModelFacts,
    decoder: DecoderFacts,
    positions: int,
    *,
    qkv_bias: bool | None = None,
    head_norm: bool = False,
) -> CausalLM:
    """The model's layers. `positions` = served context; Qwen2 has `qkv_bias`, Qwen3 `head_norm`."""
    table = rotary_table(decoder.rope, positions)
    biased = decoder.attention_bias if qkv_bias is None else qkv_bias
    layers = [
        layer(facts, decoder, index, table, biased, head_norm) for index in range(facts.layers)
    ]
    embedding = Embedding(facts.vocabulary, facts.hidden_size)
    norm = RMSNorm(facts.hidden_size, decoder.norm_eps)
    return CausalLM(
        Decoder(embedding, layers, norm), LogitsHead(embedding, tied=facts.tied), [table]
    )


def layer(
    facts: ModelFacts,
    decoder: DecoderFacts,
    index: int,
    table: RotaryTable,
    qkv_bias: bool,
    head_norm: bool,
) -> PreNormLayer:
    eps, hidden = decoder.norm_eps, facts.hidden_size
    attention = Attention(
        attention_shape(facts, decoder, index),
        hidden,
        table,
        qkv_bias=qkv_bias,
        output_bias=decoder.attention_bias,
        q_norm=RMSNorm(facts.head_dim, eps) if head_norm else None,
        k_norm=RMSNorm(facts.head_dim, eps) if head_norm else None,
    )
    mlp = GatedMLP(hidden, facts.intermediate_size, decoder.activation, bias=decoder.mlp_bias)
    return PreNormLayer(RMSNorm(hidden, eps), attention, RMSNorm(hidden, eps), mlp)
