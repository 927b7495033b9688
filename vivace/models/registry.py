"""Architectures Vivace has written. Torch-free: a model's module loads when it is built."""

from __future__ import annotations

from collections.abc import Callable

from vivace.checkpoint.source import ModelSource, SourceError
from vivace.models.facts import DecoderFacts, ModelFacts, architecture_of
from vivace.models.tried import advice
from vivace.registry import Registry

ARCHITECTURES: Registry[Callable[[ModelFacts, DecoderFacts, int], object]] = Registry(
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


def check_architecture(source: ModelSource) -> None:
    """Raises SourceError when Vivace has not written the architecture.

    Cheap, so that it can be asked before any process is started.
    """
    if (name := architecture_of(source)) not in ARCHITECTURES:
        raise SourceError(
            f"{source.path}: the architecture {name} is not supported; supported: "
            f"{', '.join(ARCHITECTURES)}; {advice(name)}"
        )
