"""What a GGUF file's metadata says, in the keys of a Hugging Face config.json.

A translation only: values are checked where those of a config.json are (`models.facts`), which
names the file's own keys by what `read_gguf_config` tells it.
"""

from __future__ import annotations

import re
from math import prod
from typing import Any

from vivace.checkpoint.fields import abbreviate
from vivace.checkpoint.gguf_encoders import ENCODER, NOMIC, read_encoder_config
from vivace.checkpoint.gguf_file import GGUFError, GGUFFile
from vivace.checkpoint.gguf_metadata import NO_TOKEN, Config, Metadata, as_written
from vivace.checkpoint.gguf_mixtures import MIXTURES, SCALINGS
from vivace.checkpoint.gguf_types import GGML_QUANT_SIZES
from vivace.checkpoint.layouts import InputGroups, StoredKind
from vivace.platforms.blocks import KEPT

ARCHITECTURES = {
    "llama": ("LlamaForCausalLM", "llama"),
    "qwen2": ("Qwen2ForCausalLM", "qwen2"),
    "qwen3": ("Qwen3ForCausalLM", "qwen3"),
    "qwen2moe": ("Qwen2MoeForCausalLM", "qwen2_moe"),
    "qwen3moe": ("Qwen3MoeForCausalLM", "qwen3_moe"),
    "deepseek2": ("DeepseekV2ForCausalLM", "deepseek_v2"),
    "glm4moe": ("Glm4MoeForCausalLM", "glm4_moe"),
    "gpt-oss": ("GptOssForCausalLM", "gpt_oss"),
    "llama4": ("Llama4ForCausalLM", "llama4_text"),
    "gemma2": ("Gemma2ForCausalLM", "gemma2"),
    "gemma3": ("Gemma3ForCausalLM", "gemma3_text"),
}
SLIDING_LLAMA = "MistralForCausalLM", "mistral"
"""A Llama never slides; Mistral does, and GGUF files call both "llama"."""
KEYS = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "rope_dimension_count": "rope.dimension_count",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
    "sliding_window": "attention.sliding_window",
    "pooling_type": "pooling_type",
}
GEMMA2_KEYS = {
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
GEMMA3_KEYS = {"rope_local_base_freq": "rope.freq_base_swa"}
SCALING_KEYS = {
    "factor": "rope.scaling.factor",
    "original_max_position_embeddings": "rope.scaling.original_context_length",
    "beta_fast": "rope.scaling.yarn_beta_fast",
    "beta_slow": "rope.scaling.yarn_beta_slow",
    "attn_factor": "rope.scaling.attn_factor",
}
SAMPLING_KEYS = {
    "temperature": "general.sampling.temp",
    "top_p": "general.sampling.top_p",
    "top_k": "general.sampling.top_k",
    "min_p": "general.sampling.min_p",
    "repetition_penalty": "general.sampling.penalty_repeat",
}
"""as llama.cpp's converter writes what it finds in a generation_config.json"""
TOKENS = ("bos_token_id",)
MOST_FACTORS = 4096
GEMMA_27B_LAYERS = {"gemma2": 46, "gemma3": 62}
"""the sizes that scale queries by hidden / heads instead of the head; no key of the file says so"""


def read_gguf_config(file: GGUFFile) -> tuple[Config, Config, dict[str, str]]:
    """(config, generation_config, a key of config -> the file's own) of a GGUF file.

    Raises GGUFError on what is not supported.
    """
    refuse_no_model(file)
    name = file.metadata.get("general.architecture")
    if not isinstance(name, str) or name not in (*ARCHITECTURES, ENCODER, NOMIC):
        raise GGUFError(
            f"{file.path}: GGUF architecture {abbreviate(name)} is not supported; supported: "
            f"{', '.join(ARCHITECTURES)}, {ENCODER}, {NOMIC}. Others may run from their "
            "safetensors files with --model-impl transformers (docs/models.md)"
        )
    refuse_unread(file, name)
    facts = Metadata(file, name)
    if name in (ENCODER, NOMIC):
        config = {**read_encoder_config(facts), "torch_dtype": stored_dtype(file)}
        return config, read_generation_config(facts), facts.spelling
    config = {**read_shape(facts), **read_family_config(facts)}
    if scaling := read_rope_scaling(facts):
        config["rope_scaling"] = scaling
    return config, read_generation_config(facts), facts.spelling


NO_MODELS = {
    "adapter": "a LoRA adapter, which is not supported yet; merge it into its model",
    "imatrix": "an importance matrix for quantizing; give the model",
    "mmproj": "the projector of images beside a model; give the model",
    "clip": "the projector of images beside a model; give the model",
    "controlvector": "a control vector, which is not supported yet; give the model",
}
"""what `general.type` or `general.architecture` may say of files beside models"""
NOT_READ = frozenset(("Q8_1", "Q8_K", "Q1_0", "F64", "I8", "I16", "I32", "I64"))
"""types of tensors that nobody decodes"""


def refuse_no_model(file: GGUFFile) -> None:
    """Raises GGUFError for a part of a model, and for files that other tools need beside one."""
    if file.metadata.get("split.count", 1) not in (0, 1):
        raise GGUFError(
            f"{file.path}: this model is split over {abbreviate(file.metadata['split.count'])} "
            "GGUF files; merge them into one first (llama-gguf-split --merge)"
        )
    for key in ("general.type", "general.architecture"):
        kind = file.metadata.get(key)
        if isinstance(kind, str) and kind in NO_MODELS:
            raise GGUFError(f"{file.path}: {NO_MODELS[kind]}")
    if not file.tensors:
        raise GGUFError(f"{file.path}: no tensors: a vocabulary without its model; give the model")


def refuse_unread(file: GGUFFile, architecture: str) -> None:
    """Raises GGUFError for layers and types of numbers that are not read."""
    if file.metadata.get(f"{architecture}.expert_count") and architecture not in MIXTURES:
        raise GGUFError(
            f"{file.path}: {architecture}.expert_count: mixtures of experts are not read from GGUF "
            "files; their safetensors files may run with --model-impl transformers (docs/models.md)"
        )
    for name, entry in file.tensors.items():
        if entry.type.name in NOT_READ:
            raise GGUFError(
                f"{file.path}: tensor {name!r} is {entry.type.name}, which cannot be read; give a "
                "file of another type (docs/models.md lists them)"
            )


def stored_kinds(file: GGUFFile) -> tuple[StoredKind, ...]:
    """What types the matrices of a file have, in the order of the file."""
    found: dict[str, StoredKind] = {}
    for name, entry in file.tensors.items():
        if len(entry.shape) < 2:
            continue
        kind = entry.type.name.lower()
        before = found.get(kind, StoredKind(kind=kind, nbytes=0, numbers=0, in_layers=False))
        found[kind] = StoredKind(
            kind=kind,
            nbytes=before.nbytes + entry.nbytes,
            numbers=before.numbers + prod(entry.shape),
            in_layers=before.in_layers or name.startswith("blk."),
        )
    return tuple(found.values())


DIVIDED = {
    "heads": re.compile(r"blk\.\d+\.attn_output\.weight"),
    "mlp": re.compile(r"blk\.\d+\.ffn_down\.weight"),
    "experts": re.compile(r"blk\.\d+\.ffn_down(?:_exps|\.\d+)\.weight"),
    "shared": re.compile(r"blk\.\d+\.ffn_down_shexp\.weight"),
}
"""matrices whose inputs ranks divide"""


def stored_groups(file: GGUFFile) -> InputGroups:
    """Of blocks that stay as they are stored."""
    found = dict.fromkeys(DIVIDED, 1)
    for name, entry in file.tensors.items():
        if entry.type.name.lower() in KEPT and name.startswith("blk."):
            for kind, pattern in DIVIDED.items():
                if pattern.fullmatch(name):
                    found[kind] = max(found[kind], GGML_QUANT_SIZES[entry.type][0])
    return InputGroups(**found)


def read_shape(facts: Metadata) -> Config:
    architecture, model_type = ARCHITECTURES[facts.architecture]
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "vocab_size": facts.count_words(),
        "tie_word_embeddings": not facts.has_tensor("output.weight"),
        "torch_dtype": stored_dtype(facts.file),
        "attention_bias": facts.has_tensor("blk.0.attn_output.bias"),
        "mlp_bias": facts.has_tensor("blk.0.ffn_down.bias"),
        "head_dim": facts.quotient("embedding_length", "attention.head_count"),
        **facts.translate(KEYS),
        **{key: facts.token(key) for key in TOKENS},
    }


def stored_dtype(file: GGUFFile) -> str:
    """What to compute in: the matrices' own dtype, bfloat16 when they are quantized."""
    kinds = {entry.type.name for entry in file.tensors.values() if len(entry.shape) > 1}
    if kinds == {"F32"}:
        return "float32"
    return "float16" if kinds == {"F16"} else "bfloat16"


def read_rope_scaling(facts: Metadata) -> Config | None:
    kind, given = facts.get("rope.scaling.type"), facts.translate(SCALING_KEYS, "rope_scaling.")
    if "factor" not in given:  # as older files have it
        given |= facts.translate({"factor": "rope.scale_linear"}, "rope_scaling.")
    if facts.has_tensor("rope_freqs.weight"):
        if kind != "none" and given.get("factor", 1) not in (0, 1):
            raise GGUFError(
                f"{facts.file.path}: {facts.spelling['rope_scaling.factor']} is "
                f"{abbreviate(given['factor'])} beside rope_freqs.weight: two scalings of rotary "
                "embedding, which are not supported together; give another file of the model"
            )
        facts.spelling["rope_scaling.factors"] = "rope_freqs.weight"
        return {"rope_type": "factors", "factors": frequency_factors(facts.file)}
    if kind is None:
        kind = "linear" if "factor" in given else "none"
    if kind not in ("none", "linear", "yarn"):
        raise GGUFError(
            f"{facts.file.path}: {facts.architecture}.rope.scaling.type is {abbreviate(kind)}; "
            "supported: none, linear, yarn"
        )
    if kind == "none" or "factor" not in given:
        return None
    more = SCALINGS.get(facts.architecture) if kind == "yarn" else None
    return {"rope_type": kind, **given, **(more(facts) if more else {})}


def frequency_factors(file: GGUFFile) -> list[float]:
    """Divisors of the rotary frequencies (llama.cpp writes Llama 3's scaling like this)."""
    entry = file.tensors["rope_freqs.weight"]
    if entry.type.name != "F32" or len(entry.shape) != 1 or entry.shape[0] > MOST_FACTORS:
        raise GGUFError(f"{file.path}: rope_freqs.weight is no F32 vector of a head's length")
    return [float(factor) for factor in file.data("rope_freqs.weight").cast("f")]


def read_family_config(facts: Metadata) -> Config:
    window = facts.get("attention.sliding_window") or None
    if facts.architecture in ("gemma2", "gemma3"):
        return read_gemma_config(facts, window)
    mixture = MIXTURES.get(facts.architecture)
    if mixture is not None and (facts.architecture != "llama" or facts.get("expert_count")):
        return mixture(facts)
    if window and facts.architecture == "llama":
        name, model_type = SLIDING_LLAMA
        return {"sliding_window": window, "architectures": [name], "model_type": model_type}
    return {"sliding_window": window}


def read_gemma_config(facts: Metadata, window: Any) -> Config:
    gemma2 = facts.architecture == "gemma2"
    common = {
        "sliding_window": window or (4096 if gemma2 else 512),
        "query_pre_attn_scalar": query_scalar(facts),
    }
    if not gemma2:
        return {**common, **facts.translate(GEMMA3_KEYS)}
    caps = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
    return {**common, **caps, **facts.translate(GEMMA2_KEYS)}


def query_scalar(facts: Metadata) -> Any:
    """None, for the head's length, in most sizes."""
    if facts.get("block_count") != GEMMA_27B_LAYERS[facts.architecture]:
        return None
    return facts.quotient("embedding_length", "attention.head_count")


def read_generation_config(facts: Metadata) -> Config:
    """Ends: of text, turn and message, those that the file names. And settings of sampling."""
    ends = [facts.token(key) for key in ("eos_token_id", "eot_token_id", "eom_token_id")]
    if facts.file.metadata.get("tokenizer.ggml.eos_token_id") == NO_TOKEN:
        ends[0] = -1  # the file says so: whoever waits for an end should know
    return {
        "eos_token_id": [end for end in ends if end is not None],
        **read_sampling_defaults(facts),
    }


def read_sampling_defaults(facts: Metadata) -> Config:
    """The settings the file recommends, under the names of a generation_config.json."""
    facts.spelling.update(SAMPLING_KEYS)
    metadata = facts.file.metadata
    found = {ours: metadata[name] for ours, name in SAMPLING_KEYS.items() if name in metadata}
    return {key: as_written(value) for key, value in found.items()}


def unnamed_split_rule(file: GGUFFile) -> tuple[str, ...]:
    """A notice for a vocabulary that does not say how texts are split into words."""
    metadata = file.metadata
    if metadata.get("tokenizer.ggml.model") != "gpt2" or "tokenizer.ggml.pre" in metadata:
        return ()
    return (
        f"{file.path}: tokenizer.ggml.pre is missing, so texts may be split into other tokens than "
        "in training; a newer file names it, or --tokenizer-path takes a folder with the model's "
        "tokenizer.json",
    )


def unused_scaling(file: GGUFFile) -> tuple[str, ...]:
    """A notice where the older key of a scaling's factor says something else than the newer."""
    name = file.metadata.get("general.architecture")
    new, old = f"{name}.rope.scaling.factor", f"{name}.rope.scale_linear"
    used, idle = file.metadata.get(new), file.metadata.get(old)
    if used is None or idle is None or used == idle:
        return ()
    return (
        f"{file.path}: {old} is {abbreviate(idle)}: it has no effect, because {new} says "
        f"{abbreviate(used)}",
    )
