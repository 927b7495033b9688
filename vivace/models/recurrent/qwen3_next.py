"""Qwen3-Next: three of four layers keep a state (gated delta rule), every fourth attends fully and
gates what it found; norms whose weights are distances from one; a mixture of experts everywhere.
Qwen Team 2025; Yang et al. 2024 (Gated Delta Networks, arXiv 2412.06464)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from vivace.layers.attention import Attention
from vivace.layers.module import Module
from vivace.layers.rotary import RotaryTable
from vivace.models.causal_lm import ModelStep, attention_shape, feed_forward
from vivace.models.decoder import PlainDecoderForCausalLM
from vivace.models.draft_layers import DraftLayers
from vivace.models.facts import DecoderFacts, ModelFacts
from vivace.models.families import FAMILIES
from vivace.models.gemma import GemmaRMSNorm
from vivace.models.recurrent.gated_delta import GatedDeltaNet
from vivace.platforms.attention import RecurrentLayer
from vivace.platforms.cache import CacheLayer


def gated_attention(
    facts: ModelFacts, decoder: DecoderFacts, index: int, rotary: RotaryTable
) -> Attention:
    return Attention(
        attention_shape(facts, decoder, index),
        facts.hidden_size,
        rotary,
        qkv_bias=decoder.attention_bias,
        output_bias=decoder.attention_bias,
        q_norm=GemmaRMSNorm(facts.head_dim, decoder.norm_eps),
        k_norm=GemmaRMSNorm(facts.head_dim, decoder.norm_eps),
        gated=True,
    )


def gated_delta(facts: ModelFacts, decoder: DecoderFacts, index: int) -> GatedDeltaNet:
    assert decoder.recurrent is not None
    linear = decoder.recurrent.shape
    layer = RecurrentLayer(
        index=index,
        key_heads=linear.key_heads,
        value_heads=linear.value_heads,
        key_dim=linear.key_dim,
        value_dim=linear.value_dim,
        kernel=linear.window,
    )
    return GatedDeltaNet(layer, facts.hidden_size, decoder.norm_eps)


class Qwen3NextDecoderLayer(Module):
    """`linear_attn` or `self_attn`: whichever is given."""

    def __init__(
        self,
        facts: ModelFacts,
        decoder: DecoderFacts,
        index: int,
        mixer: Attention | GatedDeltaNet,
    ) -> None:
        self.input_layernorm = GemmaRMSNorm(facts.hidden_size, decoder.norm_eps)
        if isinstance(mixer, GatedDeltaNet):
            self.linear_attn = mixer
        else:
            self.self_attn = mixer
        self._mixer = mixer
        self.post_attention_layernorm = GemmaRMSNorm(facts.hidden_size, decoder.norm_eps)
        self.mlp = feed_forward(facts, decoder, index)

    @property
    def cache_layer(self) -> CacheLayer:
        """What it keeps; after `bind`, of this rank."""
        return self._mixer.shape

    def __call__(
        self, x: Tensor, residual: Tensor | None, step: ModelStep
    ) -> tuple[Tensor, Tensor]:
        """x[T, hidden] is what `residual` has not yet been given -> the same for the next layer"""
        x, residual = self.input_layernorm.add(x, residual)
        x = self._mixer(x, step)
        x, residual = self.post_attention_layernorm.add(x, residual)
        return self.mlp(x, step), residual


def decoder_layer(
    facts: ModelFacts, decoder: DecoderFacts, index: int, rotary: RotaryTable
) -> Qwen3NextDecoderLayer:
    recurrent = decoder.recurrent
    linear = recurrent is not None and recurrent.layers[index]
    mixer = (
        gated_delta(facts, decoder, index)
        if linear
        else gated_attention(facts, decoder, index, rotary)
    )
    return Qwen3NextDecoderLayer(facts, decoder, index, mixer)


class Qwen3NextForCausalLM(PlainDecoderForCausalLM):
    def __init__(self, facts: ModelFacts, decoder: DecoderFacts, positions: int) -> None:
        super().__init__(facts, decoder, positions, decoder_layer)
        self.model.norm = GemmaRMSNorm(facts.hidden_size, decoder.norm_eps)
        self.draft_layers = DraftLayers(
            FAMILIES[facts.architecture].draft_stem, *empty_experts(facts, decoder)
        )

    @property
    def attention_layers(self) -> Sequence[CacheLayer]:
        return [layer.cache_layer for layer in self.model.held_layers]


def empty_experts(facts: ModelFacts, decoder: DecoderFacts) -> Iterator[str]:
    """How names begin of shared experts that are 0 wide, and of their gates: transformers saves
    them nevertheless."""
    experts = decoder.experts
    if experts is not None and not experts.shared_width:
        yield from (f"model.layers.{index}.mlp.shared_expert" for index in range(facts.layers))
