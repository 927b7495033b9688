"""What a GGUF file's metadata says, in the keys of a Hugging Face config.json."""

from __future__ import annotations

from math import log
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
MOST_LAYERS = 4096
GEMMA_SLIDING = {"gemma2": 2, "gemma3": 6}
"""every n-th layer attends fully"""
GEMMA_27B_LAYERS = {"gemma2": 46, "gemma3": 62}
"""the sizes that scale queries by hidden / heads instead of the head; no key of the file says so"""


def config_of(file: GGUFFile) -> tuple[dict[str, Any], dict[str, Any]]:
    """(config, generation_config) of a GGUF file. Raises GGUFError on what is not supported."""
    name = file.metadata.get("general.architecture")
    if name not in ARCHITECTURES:
        raise GGUFError(
            f"{file.path}: GGUF architecture {str(name)[:80]!r} is not supported; "
            f"supported: {', '.join(ARCHITECTURES)}"
        )
    facts = _Metadata(file, name)
    if file.metadata.get("split.count", 1) not in (0, 1):
        raise GGUFError(
            f"{file.path}: this model is split over {file.metadata['split.count']} GGUF files; "
            "merge them into one first (llama-gguf-split --merge)"
        )
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
            shown = "missing" if value is None else f"{str(value)[:80]}, not a positive number"
            raise GGUFError(f"{self.file.path}: {self.architecture}.{key} is {shown}")
        return value

    def layers(self) -> int:
        count = self.whole("block_count")
        if count > MOST_LAYERS:
            raise GGUFError(f"{self.file.path}: {count} layers; at most {MOST_LAYERS} can be")
        return count

    def number(self, key: str, default: float | None = None) -> float | None:
        """A positive, finite number, or the default when the key is absent."""
        value = self.get(key, default)
        if value is None:
            return None
        if not isinstance(value, int | float) or not 0 < value < float("inf"):
            raise GGUFError(
                f"{self.file.path}: {self.architecture}.{key} is {str(value)[:80]}, "
                "not a positive number"
            )
        return float(value)

    def token(self, key: str) -> int | None:
        value = self.file.metadata.get(f"tokenizer.ggml.{key}")
        return value if isinstance(value, int) else None

    def has_tensor(self, name: str) -> bool:
        return name in self.file.tensors


def shape_of(facts: _Metadata) -> dict[str, Any]:
    hidden, heads = facts.whole("embedding_length"), facts.whole("attention.head_count")
    embedding = facts.file.tensors.get("token_embd.weight")
    if embedding is None:
        raise GGUFError(f"{facts.file.path}: the tensor token_embd.weight is missing")
    architecture, model_type = ARCHITECTURES[facts.architecture]
    head_dim = facts.whole("attention.key_length", max(hidden // heads, 1))
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "hidden_size": hidden,
        "intermediate_size": facts.whole("feed_forward_length"),
        "num_hidden_layers": facts.layers(),
        "num_attention_heads": heads,
        "num_key_value_heads": facts.whole("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "partial_rotary_factor": facts.whole("rope.dimension_count", head_dim) / head_dim,
        "vocab_size": embedding.shape[0],
        "max_position_embeddings": facts.whole("context_length"),
        "rms_norm_eps": facts.number("attention.layer_norm_rms_epsilon", 1e-6),
        "tie_word_embeddings": not facts.has_tensor("output.weight"),
        "torch_dtype": stored_dtype(facts.file),
        "attention_bias": facts.has_tensor("blk.0.attn_output.bias"),
        "mlp_bias": facts.has_tensor("blk.0.ffn_down.bias"),
        "bos_token_id": facts.token("bos_token_id"),
        "eos_token_id": facts.token("eos_token_id"),
    }


def stored_dtype(file: GGUFFile) -> str:
    """What to compute in: the matrices' own dtype, bfloat16 when they are quantised."""
    kinds = {entry.type.name for entry in file.tensors.values() if len(entry.shape) > 1}
    if kinds == {"F32"}:
        return "float32"
    return "float16" if kinds == {"F16"} else "bfloat16"


def rope_of(facts: _Metadata) -> dict[str, Any]:
    config: dict[str, Any] = {"rope_theta": facts.number("rope.freq_base", 10000.0)}
    old_factor = facts.number("rope.scale_linear")
    kind = facts.get("rope.scaling.type", "linear" if old_factor else "none")
    factor = facts.number("rope.scaling.factor", old_factor)
    if facts.has_tensor("rope_freqs.weight"):
        config["rope_scaling"] = {"rope_type": "factors", "factors": frequency_factors(facts.file)}
    elif kind == "linear" and factor:
        config["rope_scaling"] = {"rope_type": "linear", "factor": factor}
    elif kind == "yarn" and factor:
        config["rope_scaling"] = yarn_of(facts, factor)
    elif kind not in ("none", "linear", "yarn"):
        raise GGUFError(f"{facts.file.path}: rope scaling {str(kind)[:80]!r} is not supported")
    return config


def yarn_of(facts: _Metadata, factor: float) -> dict[str, Any]:
    context = facts.whole("context_length")
    temperature = facts.number("rope.scaling.attn_factor", 1.0) or 1.0
    return {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": facts.whole(
            "rope.scaling.original_context_length", context
        ),
        "beta_fast": facts.number("rope.scaling.yarn_beta_fast", 32.0),
        "beta_slow": facts.number("rope.scaling.yarn_beta_slow", 1.0),
        "attention_factor": temperature * (0.1 * log(factor) + 1.0 if factor > 1 else 1.0),
    }


def frequency_factors(file: GGUFFile) -> list[float]:
    """Divisors of the rotary frequencies (llama.cpp writes Llama 3's scaling like this)."""
    entry = file.tensors["rope_freqs.weight"]
    if entry.type.name != "F32" or len(entry.shape) != 1:
        raise GGUFError(f"{file.path}: rope_freqs.weight is no F32 vector")
    return [float(value) for value in file.data("rope_freqs.weight").view(np.float32)]


def family_of(facts: _Metadata) -> dict[str, Any]:
    window = facts.get("attention.sliding_window") and facts.whole("attention.sliding_window")
    if facts.architecture in ("gemma2", "gemma3"):
        return gemma_of(facts, window)
    if window and facts.architecture == "llama":
        # A Llama never slides; Mistral does, and GGUF files call both "llama".
        mistral = {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}
        return {"hidden_act": "silu", "sliding_window": window, **mistral}
    return {"hidden_act": "silu"}


def gemma_of(facts: _Metadata, window: int | None) -> dict[str, Any]:
    layers, every = facts.layers(), GEMMA_SLIDING[facts.architecture]
    kinds = ["sliding_attention" if (i + 1) % every else "full_attention" for i in range(layers)]
    head = facts.whole("attention.key_length", 256)
    if layers == GEMMA_27B_LAYERS[facts.architecture]:
        head = facts.whole("embedding_length") // facts.whole("attention.head_count")
    common = {
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": window or (4096 if facts.architecture == "gemma2" else 512),
        "layer_types": kinds,
        "query_pre_attn_scalar": head,
    }
    if facts.architecture == "gemma3":
        return {**common, "rope_local_base_freq": facts.number("rope.freq_base_swa", 10000.0)}
    return {
        **common,
        "attn_logit_softcapping": facts.number("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": facts.number("final_logit_softcapping", 30.0),
    }


def generation_of(facts: _Metadata) -> dict[str, Any]:
    """eos ids: the declared one, and end-of-turn when the file names it."""
    ends = [facts.token(key) for key in ("eos_token_id", "eot_token_id")]
    return {"eos_token_id": sorted({end for end in ends if end is not None})}
