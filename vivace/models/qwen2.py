"""Qwen2 and Qwen2.5: Llama's decoder with biases on q, k and v."""

from __future__ import annotations

from vivace.models import llama
from vivace.models.causal_lm import CausalLM
from vivace.models.facts import DecoderFacts, ModelFacts


def declare(facts: ModelFacts, decoder: DecoderFacts, positions: int) -> CausalLM:
    return llama.declare(facts, decoder, positions, qkv_bias=True)
