"""Mixtures of experts as their authors publish them: sizes, layers, keys that contradict."""

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
from vivace.deploy.catalogue.models import find_model
from vivace.models.architecture import parse_architecture
from vivace.models.facts import describe_architecture
from vivace.platforms.platform import detect


@pytest.fixture(autouse=True)
def operations() -> None:
    """Once: nothing is computed."""


QWEN3: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "attention_bias": False,
    "decoder_sparse_step": 1,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "max_position_embeddings": 40960,
    "max_window_layers": 48,
    "mlp_only_layers": [],
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "output_router_logits": False,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.001,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_sliding_window": False,
    "vocab_size": 151936,
}
QWEN3_LARGE = {
    **QWEN3,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "max_window_layers": 94,
    "moe_intermediate_size": 1536,
    "num_attention_heads": 64,
    "num_hidden_layers": 94,
}
QWEN2: dict[str, Any] = {
    "architectures": ["Qwen2MoeForCausalLM"],
    "model_type": "qwen2_moe",
    "decoder_sparse_step": 1,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "max_position_embeddings": 8192,
    "max_window_layers": 21,
    "moe_intermediate_size": 1408,
    "norm_topk_prob": False,
    "num_attention_heads": 16,
    "num_experts": 60,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 24,
    "num_key_value_heads": 16,
    "rope_theta": 1000000.0,
    "shared_expert_intermediate_size": 5632,
    "sliding_window": 32768,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
MIXTRAL: dict[str, Any] = {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "num_attention_heads": 32,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "rms_norm_eps": 1e-05,
    "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.02,
    "sliding_window": None,
    "vocab_size": 32000,
}


V2: dict[str, Any] = {
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "attention_bias": False,
    "aux_loss_alpha": 0.001,
    "eos_token_id": 100001,
    "first_k_dense_replace": 1,
    "hidden_act": "silu",
    "hidden_size": 5120,
    "intermediate_size": 12288,
    "kv_lora_rank": 512,
    "max_position_embeddings": 163840,
    "moe_intermediate_size": 1536,
    "moe_layer_freq": 1,
    "n_group": 8,
    "n_routed_experts": 160,
    "n_shared_experts": 2,
    "norm_topk_prob": False,
    "num_attention_heads": 128,
    "num_experts_per_tok": 6,
    "num_hidden_layers": 60,
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-06,
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 40,
        "mscale": 0.707,
        "mscale_all_dim": 0.707,
        "original_max_position_embeddings": 4096,
        "type": "yarn",
    },
    "rope_theta": 10000,
    "routed_scaling_factor": 16.0,
    "scoring_func": "softmax",
    "seq_aux": True,
    "tie_word_embeddings": False,
    "topk_group": 3,
    "topk_method": "group_limited_greedy",
    "torch_dtype": "bfloat16",
    "v_head_dim": 128,
    "vocab_size": 102400,
}
V2_LITE = {
    **V2,
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "n_group": 1,
    "n_routed_experts": 64,
    "num_attention_heads": 16,
    "num_hidden_layers": 27,
    "num_key_value_heads": 16,
    "q_lora_rank": None,
    "routed_scaling_factor": 1.0,
    "topk_group": 1,
    "topk_method": "greedy",
}


@pytest.mark.parametrize(
    ("config", "billions", "active"),
    [
        (QWEN3, 30.5, 3.04),  # with the embedding 3.3, as its authors count
        (QWEN3_LARGE, 235, 22),
        (QWEN2, 14.3, 2.38),  # 2.7
        (MIXTRAL, 46.7, 12.9),
        (V2, 236, 21.4),
        (V2_LITE, 15.7, 2.45),
    ],
)
def test_parameters_are_the_published_ones(
    config: dict[str, Any], billions: float, active: float, tmp_path: Path
) -> None:
    check_parameters(facts(tmp_path, config), billions, active)


def test_layers_without_experts(tmp_path: Path) -> None:
    found = facts(tmp_path, {**QWEN3, "decoder_sparse_step": 3, "mlp_only_layers": [2, 4]})
    assert found.decoder is not None and found.decoder.experts is not None
    mixed = [index for index, one in enumerate(found.decoder.experts.layers) if one]
    assert mixed == [5, 8, 11, *range(14, 48, 3)]
    assert found.mlp_widths == (6144, 768)
    alone = facts(tmp_path, {**QWEN3, "mlp_only_layers": [*range(48)]})
    assert alone.decoder is not None and alone.decoder.experts is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_experts_per_tok", 129),
        ("num_experts_per_tok", 0),
        ("num_local_experts", 64),
        ("num_experts", "many"),
        ("num_experts", 1 << 40),
        ("moe_intermediate_size", 0),
        ("decoder_sparse_step", 0),
        ("mlp_only_layers", [-1]),
        ("mlp_only_layers", "all"),
        ("norm_topk_prob", "yes"),
    ],
)
def test_nonsense_is_named(key: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=rf"config\.json: {key}"):
        facts(tmp_path, {**QWEN3, key: value})


def test_experts_are_divided_among_devices_that_divide_them(tmp_path: Path) -> None:
    found = facts(tmp_path, {**QWEN3, "moe_intermediate_size": 772})
    source, platform = locate(str(tmp_path), load_format="dummy"), detect("cpu")
    options = parse(["--model-path", str(tmp_path), "--load-format", "dummy", "--tp-size", "8"], {})
    with pytest.raises(ConfigError, match="772"):
        resolve(options, source, found, platform)


NOAUX: dict[str, Any] = {
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "norm_topk_prob": True,
    "moe_layer_freq": 1,
    "attention_bias": False,
    "rope_theta": 10000,
}
KIMI: dict[str, Any] = {
    **NOAUX,
    "n_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": 2.827,
    "num_nextn_predict_layers": 0,
    "rope_theta": 50000.0,
    "rope_scaling": {**V2["rope_scaling"], "factor": 32.0, "mscale": 1.0, "mscale_all_dim": 1.0}
    | {"beta_fast": 1.0, "beta_slow": 1.0},
}
GLM: dict[str, Any] = {"attention_bias": True, "partial_rotary_factor": 0.5, "rope_theta": 1e6}
PUBLISHED: dict[str, tuple[float, float, dict[str, Any]]] = {
    "deepseek-r1": (
        671,
        37,
        {**NOAUX, "rope_scaling": V2["rope_scaling"] | {"mscale_all_dim": 1.0}},
    ),
    "deepseek-v2": (236, 21, V2),
    "deepseek-v2-lite": (15.7, 2.4, V2_LITE),
    "kimi-k2": (1030, 32, KIMI),
    "glm-4.5": (355, 32, {**GLM, "use_qk_norm": True, "routed_scaling_factor": 2.5}),
    "glm-4.5-air": (106, 12, GLM),
}
"""billions of parameters, and of those that a token passes, as the authors say them (technical
reports and model cards; some count the embedding or draft layers, some do not), and keys of
config.json that the catalogue of `vivace deploy` leaves out"""


@pytest.mark.parametrize("name", PUBLISHED)
def test_models_of_the_catalogue_have_the_published_sizes(name: str, tmp_path: Path) -> None:
    billions, active, more = PUBLISHED[name]
    known = find_model(name)
    assert known is not None
    config = {key: value for key, value in known.config.items() if key != "quantization_config"}
    found = facts(tmp_path, {**config, **more})
    assert found.parameters / 1e9 == pytest.approx(billions, rel=0.01)
    shape = describe_architecture(found)
    assert shape.parameters(active=True) / 1e9 == pytest.approx(active, rel=0.12)
    deployed = parse_architecture(config, name)
    for active in (False, True):
        assert shape.parameters(active=active) == deployed.parameters(active=active)
    assert shape.kv_elements(8) == deployed.kv_elements(8)


GROUPED: dict[str, Any] = {
    "architectures": ["Glm4MoeForCausalLM"],
    "model_type": "glm4_moe",
    "hidden_size": 96,
    "intermediate_size": 80,
    "num_hidden_layers": 5,
    "num_attention_heads": 8,
    "head_dim": 16,
    "vocab_size": 96,
    "n_routed_experts": 12,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 40,
    "n_group": 4,
    "topk_group": 2,
}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("n_group", 5),
        ("n_group", 0),
        ("topk_group", 5),
        ("topk_group", 0),
        ("num_experts_per_tok", 7),
        ("first_k_dense_replace", -1),
        ("moe_layer_freq", 0),
        ("topk_method", "greedy"),
        ("topk_method", "best"),
        ("scoring_func", "softmax"),
        ("routed_scaling_factor", 0),
        ("n_shared_experts", -1),
        ("num_nextn_predict_layers", -1),
        ("use_qk_norm", "yes"),
        ("partial_rotary_factor", 2),
        ("partial_rotary_factor", 0),
        ("partial_rotary_factor", 0.3125),
    ],
)
def test_nonsense_about_groups_is_named(key: str, value: Any, tmp_path: Path) -> None:
    facts(tmp_path, GROUPED)
    with pytest.raises(SourceError, match=rf"config\.json: {key}"):
        facts(tmp_path, {**GROUPED, key: value})


@pytest.mark.parametrize(
    ("first", "every", "mixed"), [(0, 1, [0, 1, 2, 3, 4]), (2, 1, [2, 3, 4]), (1, 2, [2, 4])]
)
def test_the_first_layers_are_plain(
    first: int, every: int, mixed: list[int], tmp_path: Path
) -> None:
    more = {"first_k_dense_replace": first, "moe_layer_freq": every}
    found = facts(tmp_path, {**GROUPED, **more})
    assert found.decoder is not None and found.decoder.experts is not None
    assert [index for index, one in enumerate(found.decoder.experts.layers) if one] == mixed
    shape, deployed = describe_architecture(found), parse_architecture({**GROUPED, **more}, "toy")
    assert shape.dense_layers == deployed.dense_layers == 5 - len(mixed)


LATENT = {
    **GROUPED,
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("kv_lora_rank", None),
        ("kv_lora_rank", 0),
        ("qk_nope_head_dim", None),
        ("qk_rope_head_dim", None),
        ("qk_rope_head_dim", 7),
        ("v_head_dim", None),
        ("v_head_dim", 1 << 20),
        ("q_lora_rank", -1),
        ("q_lora_rank", "no"),
        ("num_key_value_heads", 2),
        ("rope_interleave", 1),
        ("topk_method", "group_limited_greedy"),
    ],
)
def test_nonsense_about_latents_is_named(key: str, value: Any, tmp_path: Path) -> None:
    facts(tmp_path, LATENT)
    with pytest.raises(SourceError, match=rf"config\.json: {key}"):
        facts(tmp_path, {**LATENT, key: value})


@pytest.mark.parametrize("key", ["topk_method", "scoring_func"])
def test_a_gate_of_another_family_is_named(key: str, tmp_path: Path) -> None:
    facts(tmp_path, V2)
    other = {"topk_method": "noaux_tc", "scoring_func": "sigmoid"}
    with pytest.raises(SourceError, match=rf"config\.json: {key}"):
        facts(tmp_path, {**V2, key: other[key]})


def test_a_token_keeps_one_latent_for_all_heads(tmp_path: Path) -> None:
    found = facts(tmp_path, V2_LITE)
    assert found.kv_elements == found.full_kv_elements == 27 * (512 + 64)
    assert describe_architecture(found).kv_elements(8) == found.kv_elements
