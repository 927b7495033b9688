"""Toys of every family in sizes that two and four ranks divide."""

from __future__ import annotations

from typing import Any

SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_hidden_layers": 2,
}
PARTLY_MIXED: dict[str, Any] = {
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 64,
    "mlp_only_layers": [1],
}
"""Of Qwen3-MoE, whose second layer has no experts"""
EXPERTS = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 128}
GROUPED = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_group": 4,
    "topk_group": 2,
    "moe_intermediate_size": 128,
    "first_k_dense_replace": 1,
}
LATENT = {
    "num_key_value_heads": 8,
    "head_dim": 16,
    "q_lora_rank": None,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": {},
    "Mistral": {},
    "Mixtral": {"num_local_experts": 4},
    "Qwen2": {},
    "Qwen2Moe": {**EXPERTS, "shared_expert_intermediate_size": 128},
    "InternLM2": {},
    "Qwen3": {},
    "Qwen3Moe": {**EXPERTS, "mlp_only_layers": [0]},
    "Qwen3Next": {
        **EXPERTS,
        "full_attention_interval": 2,
        "shared_expert_intermediate_size": 128,
        "linear_num_key_heads": 24,
        "linear_num_value_heads": 48,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 8,
    },
    "DeepseekV2": {**GROUPED, **LATENT, "topk_method": "group_limited_greedy"},
    "DeepseekV3": {**GROUPED, **LATENT, "q_lora_rank": 64, "n_shared_experts": 2},
    "Glm4Moe": GROUPED,
    "Llama4": {
        "num_local_experts": 4,
        "intermediate_size_mlp": 128,
        "interleave_moe_layer_step": 2,
        "attention_chunk_size": 8,
        "floor_scale": 5,
    },
    "GptOss": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 7},
    "Gemma2": {},
    "Gemma3": {},
}
"""what each has besides SIZES"""
CLASSES = {"Llama4": "Llama4Text", "Gemma3": "Gemma3Text"}
"""what transformers calls them, where it is another name"""
