"""Qwen2 and Qwen2.5: Llama's layers with biases on q, k and v (Yang et al. 2024)."""

from __future__ import annotations

from functools import partial

from vivace.models.decoder import PlainDecoderForCausalLM
from vivace.models.facts import DecoderFacts, ModelFacts
from vivace.models.llama import LlamaDecoderLayer


class Qwen2ForCausalLM(PlainDecoderForCausalLM):
    def __init__(self, facts: ModelFacts, decoder: DecoderFacts, positions: int) -> None:
        build = partial(LlamaDecoderLayer, qkv_bias=decoder.qkv_bias is not False)
        super().__init__(facts, decoder, positions, build)


class Qwen2MoeForCausalLM(Qwen2ForCausalLM):
    """The same network; some layers have experts and a shared expert in the place of the MLP."""
