"""Architectures Vivace has written, and how a model is built from a located checkpoint."""

from __future__ import annotations

from collections.abc import Callable

from vivace.models.facts import ModelFacts
from vivace.registry import Registry

ARCHITECTURES: Registry[Callable[[ModelFacts, int], object]] = Registry(
    "architecture",
    {
        "LlamaForCausalLM": "vivace.models.llama:declare",
        "MistralForCausalLM": "vivace.models.llama:declare",
        "Qwen2ForCausalLM": "vivace.models.qwen2:declare",
        "Qwen3ForCausalLM": "vivace.models.qwen3:declare",
        "Gemma2ForCausalLM": "vivace.models.gemma:declare_gemma2",
        "Gemma3ForCausalLM": "vivace.models.gemma:declare_gemma3",
    },
)
