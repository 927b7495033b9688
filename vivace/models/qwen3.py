"""Qwen3 (dense): Llama's decoder with a norm on every query and key head."""

from __future__ import annotations

from vivace.models import llama
from vivace.models.causal_lm import CausalLM
from vivace.models.facts import DecoderFacts, ModelFacts


def declare(facts: ModelFacts, decoder: DecoderFacts, positions: int) -> CausalLM:
    return llama.declare(facts, decoder, positions, head_norm=True)
