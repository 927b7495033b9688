"""What GGUF files have of mixtures of experts and of latent attention: names, shapes and keys, as
llama.cpp's converter writes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gguf
import numpy as np

LATENT = ("deepseek_v2", "deepseek_v3")
TRANSPOSED = {"gpt_oss": 2, "llama4_text": 1}
"""model types whose experts are [experts, inputs, outputs] -> how far apart rows of a gate are"""
MIXTURES = {
    "mlp.gate": "ffn_gate_inp",
    "mlp.router": "ffn_gate_inp",
    "mlp.gate.e_score_correction": "exp_probs_b",
    "mlp.experts.gate": "ffn_gate_exps",
    "mlp.experts.up": "ffn_up_exps",
    "mlp.experts.down": "ffn_down_exps",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    **{
        f"mlp.{shared}.{part}_proj": f"ffn_{part}_shexp"
        for shared in ("shared_expert", "shared_experts")
        for part in ("gate", "up", "down")
    },
    "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.kv_b_proj": "attn_kv_b",
    "self_attn.k_b_proj": "attn_k_b",
    "self_attn.v_b_proj": "attn_v_b",
    "self_attn.sinks": "attn_sinks",
}
MIXTURES |= {part.replace("mlp.", "feed_forward."): name for part, name in MIXTURES.items()}
"""names in a layer -> the file's"""


@dataclass(frozen=True)
class FileLayout:
    """How a file has what converters had in several ways."""

    joined_latents: bool = False
    """attn_kv_b, as before April 2025"""
    single_experts: bool = False
    """a tensor for each expert, as before April 2024"""


NEWEST = FileLayout()


def file_parts(
    name: str, value: np.ndarray, config: Any, layout: FileLayout = NEWEST
) -> list[tuple[str, np.ndarray]]:
    """What the file has of a parameter of transformers: views on it."""
    name = name.replace("e_score_correction_bias", "e_score_correction.bias")
    if name.endswith(".sinks"):
        name += ".weight"
    place, _, part = name.rpartition(".")
    if part.startswith(("gate_up_proj", "down_proj")):
        return expert_parts(place, part, value, config, layout)
    if name.endswith("shared_expert_gate.weight"):
        return [(name, value[0])]
    if name.endswith("kv_b_proj.weight") and not layout.joined_latents:
        heads = value.reshape(config.num_attention_heads, -1, config.kv_lora_rank)
        nope, stem = config.qk_nope_head_dim, name.removesuffix("kv_b_proj.weight")
        keys, values = heads[:, :nope].swapaxes(1, 2), heads[:, nope:]
        return [(f"{stem}k_b_proj.weight", keys), (f"{stem}v_b_proj.weight", values)]
    return [(name, value)]


def expert_parts(
    place: str, part: str, value: np.ndarray, config: Any, layout: FileLayout
) -> list[tuple[str, np.ndarray]]:
    """transformers has gate and up of all experts in one parameter."""
    kind, step = "bias" if part.endswith("_bias") else "weight", TRANSPOSED.get(config.model_type)
    rows = value.swapaxes(1, 2) if step and kind == "weight" else value
    if part.startswith("down"):
        parts = [("down", rows)]
    elif step == 2:
        parts = [("gate", rows[:, ::2]), ("up", rows[:, 1::2])]
    else:
        half = rows.shape[1] // 2
        parts = [("gate", rows[:, :half]), ("up", rows[:, half:])]
    if not layout.single_experts:
        return [(f"{place}.{one}.{kind}", matrices) for one, matrices in parts]
    return [
        (f"{place}.{one}.{expert}.{kind}", matrix)
        for one, matrices in parts
        for expert, matrix in enumerate(matrices)
    ]


def write_mixture(writer: gguf.GGUFWriter, config: Any) -> None:
    """The keys that mixtures and latents have beside those of all."""
    count = next(
        (found for key in COUNTS if (found := getattr(config, key, None)) is not None), None
    )
    if count:
        writer.add_expert_count(count)
        writer.add_expert_used_count(config.num_experts_per_tok)
    if config.model_type in TRANSPOSED:
        writer.add_expert_feed_forward_length(config.intermediate_size)
    elif hasattr(config, "moe_intermediate_size"):
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if hasattr(config, "shared_expert_intermediate_size"):
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
    if config.model_type == "llama4_text":
        writer.add_interleave_moe_layer_step(config.interleave_moe_layer_step)
    if config.model_type in (*LATENT, "glm4_moe"):
        write_grouped(writer, config)
    if config.model_type in LATENT:
        write_latent(writer, config)
    elif config.model_type == "glm4_moe":
        share = config.rope_parameters["partial_rotary_factor"]
        writer.add_rope_dimension_count(int(config.head_dim * share))
    write_yarn(writer, config)


COUNTS = ("num_local_experts", "num_experts", "n_routed_experts")


def write_grouped(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_leading_dense_block_count(config.first_k_dense_replace)
    writer.add_expert_shared_count(config.n_shared_experts)
    writer.add_expert_weights_scale(config.routed_scaling_factor)
    if config.n_group:
        writer.add_expert_group_count(config.n_group)
        writer.add_expert_group_used_count(config.topk_group)
    if config.model_type == "deepseek_v2":
        return
    writer.add_expert_weights_norm(config.norm_topk_prob)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)


def write_latent(writer: gguf.GGUFWriter, config: Any) -> None:
    if config.q_lora_rank:
        writer.add_q_lora_rank(config.q_lora_rank)
    writer.add_kv_lora_rank(config.kv_lora_rank)
    writer.add_key_length_mla(config.qk_nope_head_dim + config.qk_rope_head_dim)
    writer.add_value_length_mla(config.v_head_dim)
    writer.add_rope_dimension_count(config.qk_rope_head_dim)


def write_yarn(writer: gguf.GGUFWriter, config: Any) -> None:
    rope = config.rope_parameters
    if rope.get("rope_type") != "yarn":
        return
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(rope["factor"])
    writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if "mscale_all_dim" in rope:
        writer.add_rope_scaling_yarn_log_mul(0.1 * rope["mscale_all_dim"])
