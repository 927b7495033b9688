"""How the families of models differ in what their configurations leave unsaid."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

NULL_SAYS_NONE = frozenset(
    "num_key_value_heads sliding_window attn_logit_softcapping final_logit_softcapping "
    "eos_token_id q_lora_rank n_group topk_group attention_chunk_size".split()
)
"""Keys whose null turns something off. Null in others is as good as missing."""
MISSING_IN_GGUF: dict[str, Any] = {
    **dict.fromkeys((*NULL_SAYS_NONE, "query_pre_attn_scalar")),
    "max_position_embeddings": 2048,
}
"""what those keys mean in a GGUF file, which names what it wants otherwise"""


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """`model_types`: those of one architecture, the first where none is given.

    `defaults`: the optional keys that transformers reads for this family, and what each means in a
    config.json without it (a test compares them with transformers' classes). `num_key_value_heads`
    None = all heads, `head_dim` None = hidden size / heads, `query_pre_attn_scalar` None = head.
    `full_every`: every n-th layer attends fully (0: none); `first_slide`: where
    `use_sliding_window` is set every other one of the first `max_window_layers` has a window, not
    all behind them. `rotated_share`: how much of a head is turned where `partial_rotary_factor` is
    missing; None: the family turns whole heads and does not read it.
    `local`: the kind of layer that misses keys; `shared_experts`: where no key says how many.
    `draft_stem`: of names of a layer for drafts that stands beside the model's. `rope`: the rotary
    embedding of a config.json without a word about it; None: the plain one.
    """

    model_types: tuple[str, ...] = ()
    defaults: dict[str, Any] = {}
    full_every: int = 0
    first_slide: bool = False
    rotated_share: float | None = None
    rope: dict[str, Any] | None = None
    local: str = "sliding_attention"
    shared_experts: int = 0
    draft_stem: str = ""

    def reads(self, key: str) -> bool:
        return key in self.defaults

    def known(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Without what only other families read, where this one is known."""
        unread = OPTIONAL - self.defaults.keys() if self.defaults else ()
        return {key: value for key, value in values.items() if key not in unread}

    def missing(self, values: Mapping[str, Any], key: str) -> Any:
        """What is meant where `values` have nothing for a key."""
        return None if key in NULL_SAYS_NONE and key in values else self.defaults.get(key)

    @property
    def activation(self) -> str:
        """the key of the MLP's"""
        return "hidden_activation" if self.reads("hidden_activation") else "hidden_act"

    def of_gguf(self) -> Family:
        """The same where the configuration is a GGUF file's."""
        meant = {key: MISSING_IN_GGUF.get(key, value) for key, value in self.defaults.items()}
        return replace(self, defaults=meant, rope=None)


_DECODER: dict[str, Any] = {
    "num_key_value_heads": None,
    "head_dim": None,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "rope_theta": 10000.0,
}
_LLAMA: dict[str, Any] = {
    **_DECODER,
    "hidden_act": "silu",
    "eos_token_id": 2,
    "original_max_position_embeddings": None,
}
_QWEN2: dict[str, Any] = {
    **_LLAMA,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "eos_token_id": None,
    "sliding_window": 4096,
    "use_sliding_window": False,
    "max_window_layers": 28,
    "layer_types": None,
}
_EXPERTS: dict[str, Any] = {
    "decoder_sparse_step": 1,
    "norm_topk_prob": False,
    "mlp_only_layers": None,
}
_DEEPSEEK: dict[str, Any] = {
    "original_max_position_embeddings": None,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "rope_theta": 10000.0,
    "attention_bias": False,
    "q_lora_rank": 1536,
    "num_key_value_heads": None,
    "moe_layer_freq": 1,
}
_GROUPED_EXPERTS: dict[str, Any] = {
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "moe_layer_freq": 1,
    "norm_topk_prob": True,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "num_nextn_predict_layers": 1,
}
"""what DeepSeek V3 and GLM-4.5 have in common"""
_GEMMA: dict[str, Any] = {
    **_DECODER,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "tie_word_embeddings": True,
    "hidden_activation": "gelu_pytorch_tanh",
    "eos_token_id": 1,
    "attention_bias": False,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "layer_types": None,
}

FAMILIES: dict[str, Family] = {
    "LlamaForCausalLM": Family(
        model_types=("llama",),
        defaults={**_LLAMA, "attention_bias": False, "mlp_bias": False},
    ),
    "MistralForCausalLM": Family(
        model_types=("mistral",),
        defaults={
            **_LLAMA,
            "num_key_value_heads": 8,
            "max_position_embeddings": 131072,
            "sliding_window": 4096,
            "layer_types": None,
        },
    ),
    "Qwen2ForCausalLM": Family(model_types=("qwen2",), defaults=_QWEN2),
    "InternLM2ForCausalLM": Family(
        model_types=("internlm2",),
        defaults={
            "num_key_value_heads": None,
            "max_position_embeddings": 2048,
            "rms_norm_eps": 1e-6,
            "tie_word_embeddings": False,
            "rope_theta": 10000.0,
            "hidden_act": "silu",
            "eos_token_id": 2,
            "bias": True,
        },
    ),
    "Qwen3ForCausalLM": Family(
        model_types=("qwen3",), defaults={**_QWEN2, "head_dim": 128, "attention_bias": False}
    ),
    "MixtralForCausalLM": Family(
        model_types=("mixtral",),
        defaults={
            **_LLAMA,
            "num_key_value_heads": 8,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5,
            "rope_theta": 1e6,
            "sliding_window": None,
            "num_local_experts": 8,
            "num_experts": None,
            "num_experts_per_tok": 2,
        },
    ),
    "Qwen2MoeForCausalLM": Family(
        model_types=("qwen2_moe",),
        first_slide=True,
        defaults={
            **_QWEN2,
            **_EXPERTS,
            "num_key_value_heads": 16,
            "qkv_bias": True,
            "num_experts": 60,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 1408,
            "shared_expert_intermediate_size": 5632,
        },
    ),
    "Qwen3MoeForCausalLM": Family(
        model_types=("qwen3_moe",),
        defaults={
            **_LLAMA,
            **_EXPERTS,
            "num_key_value_heads": 4,
            "max_position_embeddings": 32768,
            "eos_token_id": None,
            "attention_bias": False,
            "sliding_window": 4096,
            "use_sliding_window": False,
            "num_experts": 128,
            "num_local_experts": None,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 768,
        },
    ),
    "Qwen3NextForCausalLM": Family(
        model_types=("qwen3_next",),
        rotated_share=0.25,
        local="linear_attention",
        draft_stem="mtp.",
        defaults={
            **_LLAMA,
            **_EXPERTS,
            **dict.fromkeys(("eos_token_id", "layer_types")),
            "num_key_value_heads": 2,
            "head_dim": 256,
            "max_position_embeddings": 32768,
            "attention_bias": False,
            "num_experts": 512,
            "num_experts_per_tok": 10,
            "norm_topk_prob": True,
            **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 512),
            **dict.fromkeys(("full_attention_interval", "linear_conv_kernel_dim"), 4),
            **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), 128),
            "linear_num_key_heads": 16,
            "linear_num_value_heads": 32,
            "num_nextn_predict_layers": 1,
        },
    ),
    "DeepseekV2ForCausalLM": Family(
        model_types=("deepseek_v2",),
        defaults={
            **_DEEPSEEK,
            "max_position_embeddings": 2048,
            "eos_token_id": 2,
            "mlp_bias": False,
            "topk_method": "greedy",
            "scoring_func": "softmax",
            "num_experts_per_tok": None,
            "moe_intermediate_size": 1407,
            "n_routed_experts": 64,
            "n_shared_experts": 2,
            "routed_scaling_factor": 1.0,
            "n_group": None,
            "topk_group": None,
            "first_k_dense_replace": 0,
        },
    ),
    "DeepseekV3ForCausalLM": Family(
        model_types=("deepseek_v3", "kimi_k2"),
        defaults={
            **_DEEPSEEK,
            **_GROUPED_EXPERTS,
            "max_position_embeddings": 4096,
            "eos_token_id": 1,
            "rope_interleave": True,
            "moe_intermediate_size": 2048,
            "n_routed_experts": 256,
            "routed_scaling_factor": 2.5,
            "n_group": 8,
            "topk_group": 4,
            "first_k_dense_replace": 3,
        },
    ),
    "Glm4MoeForCausalLM": Family(
        model_types=("glm4_moe",),
        rotated_share=0.5,
        defaults={
            **_LLAMA,
            **_GROUPED_EXPERTS,
            "num_key_value_heads": 8,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5,
            "eos_token_id": None,
            "attention_bias": False,
            "use_qk_norm": False,
            "moe_intermediate_size": 1408,
            "n_routed_experts": 128,
            "routed_scaling_factor": 1.0,
            "n_group": 1,
            "topk_group": 1,
            "first_k_dense_replace": 1,
        },
    ),
    "GptOssForCausalLM": Family(
        model_types=("gpt_oss",),
        full_every=2,
        rope={
            "rope_type": "yarn",
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 4096,
        },
        defaults={
            **_DECODER,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5,
            "rope_theta": 150000.0,
            "original_max_position_embeddings": None,
            "hidden_act": "silu",
            "eos_token_id": None,
            "attention_bias": True,
            "sliding_window": 128,
            "layer_types": None,
            "num_local_experts": 128,
            "num_experts": None,
            "num_experts_per_tok": 4,
            "swiglu_alpha": 1.702,
            "swiglu_limit": 7.0,
        },
    ),
    "Llama4ForCausalLM": Family(
        model_types=("llama4_text", "llama4"),
        local="chunked_attention",
        shared_experts=1,
        defaults={
            **_LLAMA,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5,
            "rope_theta": 500000.0,
            "attention_bias": False,
            "use_qk_norm": True,
            "layer_types": None,
            "num_local_experts": 16,
            "num_experts_per_tok": 1,
            "intermediate_size_mlp": 16384,
            "moe_layers": None,
            "interleave_moe_layer_step": 1,
            "no_rope_layers": None,
            "no_rope_layer_interval": 4,
            "attention_chunk_size": 8192,
            "attn_temperature_tuning": True,
            "floor_scale": 8192,
            "attn_scale": 0.1,
        },
    ),
    "Gemma2ForCausalLM": Family(
        model_types=("gemma2",),
        full_every=2,
        defaults={
            **_GEMMA,
            "max_position_embeddings": 8192,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
            "original_max_position_embeddings": None,
        },
    ),
    "Gemma3ForCausalLM": Family(
        model_types=("gemma3_text", "gemma3"),
        full_every=6,
        defaults={
            **_GEMMA,
            "max_position_embeddings": 131072,
            "final_logit_softcapping": None,
            "sliding_window_pattern": 6,
            "rope_theta": 1e6,
            "rope_local_base_freq": 10000.0,
        },
    ),
}
"""architectures that Vivace has written"""
OPTIONAL = frozenset(key for family in FAMILIES.values() for key in family.defaults)
"""keys that some family reads"""
ANY_FAMILY = Family(defaults=dict.fromkeys(OPTIONAL))
"""where transformers' code reads the configuration"""
