"""Mixtures whose experts are one tensor, as their authors publish them: gpt-oss and Llama 4."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from published_facts import check_parameters, facts

from vivace.checkpoint.errors import SourceError
from vivace.checkpoint.source import locate
from vivace.config.errors import ConfigError
from vivace.config.parsing import parse
from vivace.config.resolution import resolve
from vivace.platforms.platform import detect


@pytest.fixture(autouse=True)
def operations() -> None:
    """Once: nothing is computed."""


GPT_OSS: dict[str, Any] = {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "attention_bias": True,
    "eos_token_id": 200002,
    "experts_per_token": 4,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2880,
    "initial_context_length": 4096,
    "intermediate_size": 2880,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
    "max_position_embeddings": 131072,
    "num_attention_heads": 64,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 24,
    "num_key_value_heads": 8,
    "num_local_experts": 32,
    "output_router_logits": False,
    "quantization_config": {
        "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"],
        "quant_method": "mxfp4",
    },
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "rope_type": "yarn",
        "truncate": False,
    },
    "rope_theta": 150000,
    "sliding_window": 128,
    "swiglu_limit": 7.0,
    "tie_word_embeddings": False,
    "vocab_size": 201088,
}
GPT_OSS_LARGE = {
    **GPT_OSS,
    "layer_types": ["sliding_attention", "full_attention"] * 18,
    "num_hidden_layers": 36,
    "num_local_experts": 128,
}


SCOUT: dict[str, Any] = {
    "architectures": ["Llama4ForCausalLM"],
    "model_type": "llama4_text",
    "attention_bias": False,
    "attention_chunk_size": 8192,
    "attn_scale": 0.1,
    "attn_temperature_tuning": True,
    "bos_token_id": 200000,
    "eos_token_id": [200001, 200007, 200008],
    "floor_scale": 8192,
    "for_llm_compressor": False,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 5120,
    "interleave_moe_layer_step": 1,
    "intermediate_size": 8192,
    "intermediate_size_mlp": 16384,
    "max_position_embeddings": 10485760,
    "no_rope_layers": [1, 1, 1, 0] * 12,
    "num_attention_heads": 40,
    "num_experts_per_tok": 1,
    "num_hidden_layers": 48,
    "num_key_value_heads": 8,
    "num_local_experts": 16,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 16.0,
        "high_freq_factor": 1.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_qk_norm": True,
    "vocab_size": 202048,
}
MAVERICK = {
    **SCOUT,
    "interleave_moe_layer_step": 2,
    "max_position_embeddings": 1048576,
    "num_local_experts": 128,
    "rope_scaling": None,
    "use_qk_norm": False,
}


@pytest.mark.parametrize(
    ("config", "billions", "active"),
    [
        (GPT_OSS, 20.9, 3.6),
        (GPT_OSS_LARGE, 116.8, 5.1),
        (SCOUT, 107.8, 16.1),  # of 109B a part is for pictures; of 17B, the embedding
        (MAVERICK, 400, 16.1),
    ],
)
def test_parameters_are_the_published_ones(
    config: dict[str, Any], billions: float, active: float, tmp_path: Path
) -> None:
    check_parameters(facts(tmp_path, config), billions, active)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_local_experts", 3),
        ("swiglu_limit", 0),
        ("swiglu_limit", "none"),
        ("swiglu_alpha", -1),
        ("layer_types", ["chunked_attention"] * 24),
        ("layer_types", ["sliding_attention"] * 23),
        ("quantization_config", {"quant_method": "mxfp4", "modules_to_not_convert": "all"}),
    ],
)
def test_nonsense_of_gpt_oss_is_named(key: str, value: Any, tmp_path: Path) -> None:
    named = "num_experts_per_tok" if key == "num_local_experts" else key
    with pytest.raises(SourceError, match=rf"config\.json: {named}"):
        facts(tmp_path, {**GPT_OSS, key: value})


def test_blocks_of_mxfp4_stay_whole(tmp_path: Path) -> None:
    """2,880 numbers are 90 blocks; ranks may have another number of them."""
    found = facts(tmp_path, GPT_OSS)
    source, platform = locate(str(tmp_path), load_format="dummy"), detect("cpu")
    words = ["--model-path", str(tmp_path), "--load-format", "dummy", "--tp-size"]
    for ranks in ("2", "4", "8", "16"):
        resolve(parse([*words, ranks], {}), source, found, platform)
    with pytest.raises(ConfigError, match="64 heads"):
        resolve(parse([*words, "6"], {}), source, found, platform)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attention_chunk_size", 0),
        ("attention_chunk_size", "none"),
        ("floor_scale", 0),
        ("attn_scale", -1),
        ("attn_temperature_tuning", 4),
        ("no_rope_layers", [1, 1, 0]),
        ("no_rope_layers", [2] * 48),
        ("interleave_moe_layer_step", 0),
        ("intermediate_size_mlp", 0),
        ("num_experts_per_tok", 17),
        ("layer_types", ["sliding_attention"] * 48),
        ("layer_types", ["chunked_attention"] * 47),
        ("use_qk_norm", "yes"),
    ],
)
def test_nonsense_of_llama_4_is_named(key: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=rf"config\.json: {key}"):
        facts(tmp_path, {**SCOUT, key: value})


def test_layers_of_llama_4(tmp_path: Path) -> None:
    found = facts(tmp_path, {**MAVERICK, "num_hidden_layers": 8, "no_rope_layers": []})
    decoder = found.decoder
    assert decoder is not None and decoder.llama4 is not None and decoder.experts is not None
    assert decoder.llama4.rotated == (True, True, True, False) * 2
    assert decoder.llama4.chunks == (8192, 8192, 8192, None) * 2
    assert decoder.experts.layers == (False, True) * 4
    assert found.mlp_widths == (16384, 8192)
    assert found.full_kv_elements == found.kv_elements == 8 * 2 * 1024
