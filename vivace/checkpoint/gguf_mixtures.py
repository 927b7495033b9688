"""What GGUF files say of mixtures of experts and of latent attention, in the keys of a Hugging Face
config.json; by architecture."""

from __future__ import annotations

from collections.abc import Callable

from vivace.checkpoint.gguf_metadata import Config, Metadata, as_written

MIXED_LLAMA = "MixtralForCausalLM", "mixtral"
"""a Llama has no experts; Mixtral does, and GGUF files call both "llama" """
CORRECTED_DEEPSEEK = "DeepseekV3ForCausalLM", "deepseek_v3"
"""whose experts are chosen by sigmoids and a correction; GGUF files call V2 "deepseek2", too"""
MIXTRAL_KEYS = {"num_local_experts": "expert_count", "num_experts_per_tok": "expert_used_count"}
QWEN_KEYS = {
    "num_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
}
GROUPED_KEYS = {
    "n_routed_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "n_shared_experts": "expert_shared_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "first_k_dense_replace": "leading_dense_block_count",
    "n_group": "expert_group_count",
    "topk_group": "expert_group_used_count",
    "num_nextn_predict_layers": "nextn_predict_layers",
}
"""of DeepSeek and GLM-4.5"""
LATENT_KEYS = {
    "q_lora_rank": "attention.q_lora_rank",
    "kv_lora_rank": "attention.kv_lora_rank",
    "qk_rope_head_dim": "rope.dimension_count",
}
GPT_OSS_KEYS = {
    **MIXTRAL_KEYS,
    "intermediate_size": "expert_feed_forward_length",
}
LLAMA4_KEYS = {
    **MIXTRAL_KEYS,
    "intermediate_size": "expert_feed_forward_length",
    "intermediate_size_mlp": "feed_forward_length",
    "interleave_moe_layer_step": "interleave_moe_layer_step",
}
SOFTMAX, SIGMOID = 1, 2
GATING = {SOFTMAX: "softmax", SIGMOID: "sigmoid"}
"""`expert_gating_func`"""
LOG_MULTIPLIER = "rope.scaling.yarn_log_multiplier"
UNNORMED = 128
"""experts of the one Llama 4 (Maverick) whose heads are not normed; no key of the file says so"""


def read_mixtral(facts: Metadata) -> Config:
    name, model_type = MIXED_LLAMA
    return {
        "architectures": [name],
        "model_type": model_type,
        "sliding_window": facts.get("attention.sliding_window") or None,
        **facts.translate(MIXTRAL_KEYS),
    }


def read_qwen(facts: Metadata) -> Config:
    """Widths of experts that no key states are those of their tensors."""
    config: Config = {"norm_topk_prob": facts.architecture == "qwen3moe"}
    for key, tensor in (
        ("moe_intermediate_size", "blk.0.ffn_gate_exps.weight"),
        ("shared_expert_intermediate_size", "blk.0.ffn_gate_shexp.weight"),
    ):
        if facts.has_tensor(tensor) and len(shape := facts.file.tensors[tensor].shape) > 1:
            config[key] = shape[-2]
    return {**config, **facts.translate(QWEN_KEYS)}


def read_grouped(facts: Metadata, usual: int) -> Config:
    """What DeepSeek's and GLM-4.5's files have in common. `usual`: the gating function where none
    is named. Layers for drafts are counted as blocks; a scale of 0 is none."""
    config = facts.translate(GROUPED_KEYS)
    if config.get("num_nextn_predict_layers"):
        layers = facts.difference("num_hidden_layers", "block_count", "nextn_predict_layers")
        config["num_hidden_layers"] = layers
    weights = facts.translate(
        {
            "routed_scaling_factor": "expert_weights_scale",
            "norm_topk_prob": "expert_weights_norm",
            "scoring_func": "expert_gating_func",
        }
    )
    scale, gating = weights.get("routed_scaling_factor", 0), weights.get("scoring_func", usual)
    return {
        **config,
        "routed_scaling_factor": 1.0 if scale == 0 else as_written(scale),
        "norm_topk_prob": weights.get("norm_topk_prob", False),
        "scoring_func": GATING.get(gating, gating) if isinstance(gating, int) else gating,
    }


def read_deepseek(facts: Metadata) -> Config:
    """Newer files describe heads that have absorbed what makes keys of latents, and keep those of
    the checkpoint in keys that end with _mla."""
    config = read_grouped(facts, SOFTMAX) | facts.translate(LATENT_KEYS)
    suffix = "_mla" if facts.get("attention.key_length_mla") is not None else ""
    nope = facts.difference(
        "qk_nope_head_dim", f"attention.key_length{suffix}", "rope.dimension_count"
    )
    config |= facts.translate({"v_head_dim": f"attention.value_length{suffix}"})
    config |= {"qk_nope_head_dim": nope, "head_dim": None, "q_lora_rank": config.get("q_lora_rank")}
    if facts.get("attention.head_count_kv") == 1:  # of latents
        config["num_key_value_heads"] = None
    if config["scoring_func"] == "sigmoid":
        name, model_type = CORRECTED_DEEPSEEK
        return {**config, "architectures": [name], "model_type": model_type}
    grouped = config.get("n_group") not in (None, 1)
    return {**config, "topk_method": "group_limited_greedy" if grouped else "greedy"}


def read_glm4(facts: Metadata) -> Config:
    config = read_grouped(facts, SIGMOID)
    turned, head = facts.get("rope.dimension_count"), facts.get("attention.key_length")
    if type(turned) is int and type(head) is int and 0 < turned <= head:
        facts.spelling["partial_rotary_factor"] = f"{facts.architecture}.rope.dimension_count"
        config["partial_rotary_factor"] = turned / head
    return {
        **config,
        "attention_bias": facts.has_tensor("blk.0.attn_q.bias"),
        "use_qk_norm": facts.has_tensor("blk.0.attn_q_norm.weight"),
    }


def read_gpt_oss(facts: Metadata) -> Config:
    window = facts.translate({"sliding_window": "attention.sliding_window"})
    return {**window, **facts.translate(GPT_OSS_KEYS)}


def read_llama4(facts: Metadata) -> Config:
    """Chunks and the temperature are the same in all files, and no key has them."""
    return {
        "attention_chunk_size": 8192,
        "attn_temperature_tuning": True,
        "use_qk_norm": facts.get("expert_count") != UNNORMED,
        **facts.translate(LLAMA4_KEYS),
    }


MIXTURES: dict[str, Callable[[Metadata], Config]] = {
    "llama": read_mixtral,
    "qwen2moe": read_qwen,
    "qwen3moe": read_qwen,
    "deepseek2": read_deepseek,
    "glm4moe": read_glm4,
    "gpt-oss": read_gpt_oss,
    "llama4": read_llama4,
}
"""architectures that are read with their experts"""


def read_latent_scaling(facts: Metadata) -> Config:
    """The file has a tenth of `mscale_all_dim`, and takes `mscale` for the same."""
    found = facts.translate({"mscale_all_dim": LOG_MULTIPLIER}, "rope_scaling.")
    facts.spelling["rope_scaling.mscale"] = facts.spelling["rope_scaling.mscale_all_dim"]
    value = found.get("mscale_all_dim")
    if type(value) in (int, float):
        value = round(as_written(value) * 10, 6)
    return {} if value is None else {"mscale": value, "mscale_all_dim": value}


def read_gpt_oss_scaling(facts: Metadata) -> Config:
    return {"truncate": False}


SCALINGS: dict[str, Callable[[Metadata], Config]] = {
    "deepseek2": read_latent_scaling,
    "gpt-oss": read_gpt_oss_scaling,
}
"""what their YaRN has beside the usual keys"""
