"""What a GGUF file's metadata says, in the keys of a Hugging Face config.json."""

from __future__ import annotations

from typing import Any

import numpy as np

from vivace.checkpoint.gguf_file import GGUFError, GGUFFile

ARCHITECTURES = {
    "llama": ("LlamaForCausalLM", "llama"),
    "qwen2": ("Qwen2ForCausalLM", "qwen2"),
    "qwen3": ("Qwen3ForCausalLM", "qwen3"),
    "gemma2": ("Gemma2ForCausalLM", "gemma2"),
    "gemma3": ("Gemma3ForCausalLM", "gemma3_text"),
}
GEMMA_SLIDING = {"gemma2": 2, "gemma3": 6}
"""every n-th layer attends fully"""


def config_of(file: GGUFFile) -> tuple[dict[str, Any], dict[str, Any]]:
    """(config, generation_config) of a GGUF file. Raises GGUFError on what is not supported."""
    name = file.metadata.get("general.architecture")
    if name not in ARCHITECTURES:
        raise GGUFError(
            f"{file.path}: GGUF architecture {name!r} is not supported; "
            f"supported: {', '.join(ARCHITECTURES)}"
        )
    facts = _Metadata(file, name)
    config = {
        **shape_of(facts),
        **rope_of(facts),
        **family_of(facts),
    }
    return config, generation_of(facts)


class _Metadata:
    """Typed access to `<architecture>.<key>`."""

    def __init__(self, file: GGUFFile, architecture: str) -> None:
        self.file = file
        self.architecture = architecture

    def get(self, key: str, default: Any = None) -> Any:
        return self.file.metadata.get(f"{self.architecture}.{key}", default)

    def whole(self, key: str, default: int | None = None) -> int:
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 1 << 31:
            raise GGUFError(f"{self.file.path}: {self.architecture}.{key} is {value!r}")
        return value

    def token(self, key: str) -> int | None:
        value = self.file.metadata.get(f"tokenizer.ggml.{key}")
        return value if isinstance(value, int) else None


def shape_of(facts: _Metadata) -> dict[str, Any]:
    hidden, heads = facts.whole("embedding_length"), facts.whole("attention.head_count")
    embedding = facts.file.tensors.get("token_embd.weight")
    if embedding is None:
        raise GGUFError(f"{facts.file.path}: the tensor token_embd.weight is missing")
    architecture, model_type = ARCHITECTURES[facts.architecture]
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "hidden_size": hidden,
        "intermediate_size": facts.whole("feed_forward_length"),
        "num_hidden_layers": facts.whole("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": facts.whole("attention.head_count_kv", heads),
        "head_dim": facts.whole("attention.key_length", max(hidden // heads, 1)),
        "vocab_size": embedding.shape[0],
        "max_position_embeddings": facts.whole("context_length"),
        "rms_norm_eps": facts.get("attention.layer_norm_rms_epsilon", 1e-6),
        "tie_word_embeddings": "output.weight" not in facts.file.tensors,
        "torch_dtype": "bfloat16",
        "attention_bias": False,
        "bos_token_id": facts.token("bos_token_id"),
        "eos_token_id": facts.token("eos_token_id"),
    }


def rope_of(facts: _Metadata) -> dict[str, Any]:
    config: dict[str, Any] = {"rope_theta": facts.get("rope.freq_base", 10000.0)}
    kind = facts.get("rope.scaling.type", "none")
    factor = facts.get("rope.scaling.factor")
    if "rope_freqs.weight" in facts.file.tensors:
        config["rope_scaling"] = {"rope_type": "factors", "factors": frequency_factors(facts.file)}
    elif kind == "linear" and factor:
        config["rope_scaling"] = {"rope_type": "linear", "factor": factor}
    elif kind == "yarn" and factor:
        original = facts.get("rope.scaling.original_context_length")
        config["rope_scaling"] = {
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": original or facts.whole("context_length"),
        }
    elif kind not in ("none", "linear", "yarn"):
        raise GGUFError(f"{facts.file.path}: rope scaling {kind!r} is not supported")
    return config


def frequency_factors(file: GGUFFile) -> list[float]:
    """Divisors of the rotary frequencies (llama.cpp writes Llama 3's scaling like this)."""
    entry = file.tensors["rope_freqs.weight"]
    if entry.type.name != "F32" or len(entry.shape) != 1:
        raise GGUFError(f"{file.path}: rope_freqs.weight is no F32 vector")
    return [float(value) for value in file.data("rope_freqs.weight").view(np.float32)]


def family_of(facts: _Metadata) -> dict[str, Any]:
    window = facts.get("attention.sliding_window")
    if facts.architecture in ("gemma2", "gemma3"):
        return gemma_of(facts, window)
    return {"hidden_act": "silu", **({"sliding_window": window} if window else {})}


def gemma_of(facts: _Metadata, window: int | None) -> dict[str, Any]:
    layers, every = facts.whole("block_count"), GEMMA_SLIDING[facts.architecture]
    kinds = ["sliding_attention" if (i + 1) % every else "full_attention" for i in range(layers)]
    head = facts.whole("attention.key_length", 256)
    common = {
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": window or (4096 if facts.architecture == "gemma2" else 512),
        "layer_types": kinds,
        "query_pre_attn_scalar": head,
    }
    if facts.architecture == "gemma3":
        return {**common, "rope_local_base_freq": 10000.0}
    return {
        **common,
        "attn_logit_softcapping": facts.get("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": facts.get("final_logit_softcapping", 30.0),
    }


def generation_of(facts: _Metadata) -> dict[str, Any]:
    """eos ids: the declared one, and end-of-turn when the file names it."""
    ends = [facts.token(key) for key in ("eos_token_id", "eot_token_id")]
    return {"eos_token_id": sorted({end for end in ends if end is not None})}
