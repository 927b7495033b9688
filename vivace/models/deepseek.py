"""DeepSeek V2, V3 and R1, and Kimi-K2: pre-norm decoder with latent attention and mixtures of
experts. DeepSeek-AI 2024 (V2, arXiv 2405.04434; V3, arXiv 2412.19437)."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from vivace.layers.attention import Attention
from vivace.layers.latent_attention import MultiHeadLatentAttention
from vivace.layers.linear import Embedding, LogitsHead, RMSNorm
from vivace.layers.module import Module
from vivace.layers.rotary import RotaryTable
from vivace.models.causal_lm import ModelStep, feed_forward, rotary_table
from vivace.models.draft_layers import DraftLayers
from vivace.models.facts import DecoderFacts, ModelFacts
from vivace.platforms.attention import AttentionLayer, LatentLayer

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


class DeepseekModel(Module):
    def __init__(
        self, facts: ModelFacts, decoder: DecoderFacts, positions: int, attention: BuildAttention
    ) -> None:
        self.rotary_emb = rotary_table(decoder.rope, positions)
        self.embed_tokens = Embedding(facts.vocabulary, facts.hidden_size)
        self.layers = [
            DeepseekDecoderLayer(
                facts, decoder, index, attention(facts, decoder, index, self.rotary_emb)
            )
            for index in range(facts.layers)
        ]
        self.norm = RMSNorm(facts.hidden_size, decoder.norm_eps)

    def __call__(self, step: ModelStep) -> Tensor:
        x, residual = self.embed_tokens(step.input_ids), None
        for layer in self.layers:
            x, residual = layer(x, residual, step)
        return self.norm.add(x, residual)[0]


class DeepseekForCausalLM(Module):
    """`positions`: the served context in tokens."""

    def __init__(
        self,
        facts: ModelFacts,
        decoder: DecoderFacts,
        positions: int,
        attention: BuildAttention = latent_attention,
    ) -> None:
        self.model = DeepseekModel(facts, decoder, positions, attention)
        self.lm_head = LogitsHead(self.model.embed_tokens, tied=facts.tied)
        self.draft_layers = DraftLayers(facts.layers, facts.draft_layers)

    @property
    def attention_layers(self) -> list[AttentionLayer | LatentLayer]:
        """This rank's heads; after `bind`."""
        return [layer.self_attn.shape for layer in self.model.layers]

    def forward(self, step: ModelStep) -> Tensor:
        return self.model(step)
