"""Architectures Vivace has written. Torch-free: a model's module loads when it is built."""

from __future__ import annotations

from collections.abc import Callable

from vivace.checkpoint.source import ModelSource, SourceError
from vivace.models.class_name import read_class_name
from vivace.models.facts import DecoderFacts, ModelFacts
from vivace.models.transformers_support import advice
from vivace.registry import Registry

ARCHITECTURES: Registry[Callable[[ModelFacts, DecoderFacts, int], object]] = Registry(
    "architecture",
    {
        "LlamaForCausalLM": "vivace.models.llama:LlamaForCausalLM",
        "MistralForCausalLM": "vivace.models.llama:MistralForCausalLM",
        "Qwen2ForCausalLM": "vivace.models.qwen2:Qwen2ForCausalLM",
        "InternLM2ForCausalLM": "vivace.models.llama:LlamaForCausalLM",
        "Qwen3ForCausalLM": "vivace.models.qwen3:Qwen3ForCausalLM",
        "MixtralForCausalLM": "vivace.models.llama:MixtralForCausalLM",
        "Qwen2MoeForCausalLM": "vivace.models.qwen2:Qwen2MoeForCausalLM",
        "Qwen3MoeForCausalLM": "vivace.models.qwen3:Qwen3MoeForCausalLM",
        "Qwen3NextForCausalLM": "vivace.models.recurrent.qwen3_next:Qwen3NextForCausalLM",
        "DeepseekV2ForCausalLM": "vivace.models.deepseek:DeepseekForCausalLM",
        "DeepseekV3ForCausalLM": "vivace.models.deepseek:DeepseekForCausalLM",
        "Glm4MoeForCausalLM": "vivace.models.glm4_moe:Glm4MoeForCausalLM",
        "Llama4ForCausalLM": "vivace.models.llama4:Llama4ForCausalLM",
        "GptOssForCausalLM": "vivace.models.gpt_oss:GptOssForCausalLM",
        "Gemma2ForCausalLM": "vivace.models.gemma:Gemma2ForCausalLM",
        "Gemma3ForCausalLM": "vivace.models.gemma:Gemma3ForCausalLM",
    },
)


def check_architecture(source: ModelSource) -> None:
    """Raises SourceError when Vivace has not written the architecture.

    Cheap, so that it can be asked before any process is started.
    """
    name = read_class_name(source)
    if kind := next((one for one in ("Eagle3", "Eagle", "NextN") if one in name), None):
        raise SourceError(
            f"{source.path}: {name} only drafts for a model: give that with --model-path, and this "
            f"with --speculative-draft-model-path and --speculative-algorithm {kind.upper()}"
        )
    if name not in ARCHITECTURES:
        raise SourceError(
            f"{source.path}: the architecture {name} is not supported; supported: "
            f"{', '.join(ARCHITECTURES)}; {advice(name, source.config.get('model_type'))}"
        )
