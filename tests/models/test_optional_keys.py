"""Keys of config.json that may be missing, and keys that a family does not read: each means what
it means to transformers."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from draft_head_toys import RECURRENT
from paged_model import PagedModel, load
from toy_models import config_class, make, reference, tokens
from transformers import AutoConfig, AutoModelForCausalLM

from vivace.checkpoint.errors import SourceError
from vivace.checkpoint.source import locate
from vivace.models.config_fields import ACTIVATIONS, SLIDING, TABLE
from vivace.models.facts import ModelFacts, read_facts
from vivace.models.families import FAMILIES
from vivace.models.rope import PART

KINDS = {
    "LlamaForCausalLM": "Llama",
    "MistralForCausalLM": "Mistral",
    "Qwen2ForCausalLM": "Qwen2",
    "InternLM2ForCausalLM": "InternLM2",
    "Qwen3ForCausalLM": "Qwen3",
    "MixtralForCausalLM": "Mixtral",
    "Qwen2MoeForCausalLM": "Qwen2Moe",
    "Qwen3MoeForCausalLM": "Qwen3Moe",
    "Qwen3NextForCausalLM": "Qwen3Next",
    "DeepseekV2ForCausalLM": "DeepseekV2",
    "DeepseekV3ForCausalLM": "DeepseekV3",
    "Glm4MoeForCausalLM": "Glm4Moe",
    "Llama4ForCausalLM": "Llama4Text",
    "GptOssForCausalLM": "GptOss",
    "Gemma2ForCausalLM": "Gemma2",
    "Gemma3ForCausalLM": "Gemma3Text",
}
SIZES = {
    "hidden_size": 128,
    "intermediate_size": 80,
    "num_hidden_layers": 8,
    "num_attention_heads": 32,
    "vocab_size": 96,
}
"""what no family goes without"""
LATENT_SIZES = {
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
}
"""what no latent attention goes without: transformers' classes have sizes of one model for them"""
CODE_ONLY = {
    *("head_dim", "layer_types", "sliding_window_pattern"),
    *("rope_theta", "rope_local_base_freq", "original_max_position_embeddings"),
    *("num_experts", "num_local_experts"),  # one is the other's second name
    *("topk_method", "scoring_func", "moe_layer_freq", "num_nextn_predict_layers"),
    "full_attention_interval",
}
"""keys that transformers reads, and that are no fields of its classes"""
UNUSED = {
    ("Gemma3ForCausalLM", "attn_logit_softcapping"),
    ("DeepseekV2ForCausalLM", "head_dim"),
    ("DeepseekV2ForCausalLM", "norm_topk_prob"),
    ("DeepseekV3ForCausalLM", "num_key_value_heads"),  # it must be num_attention_heads
}
"""fields that transformers' code for the model does not use, or not as a choice"""


@pytest.fixture(autouse=True)
def operations() -> None:
    """Once: what is computed does not depend on the kernels."""


@pytest.mark.parametrize("architecture", FAMILIES)
def test_the_table_has_the_defaults_of_transformers_classes(architecture: str) -> None:
    theirs = config_class(KINDS[architecture])
    known = {one.name: one.default for one in fields(theirs)}
    wanted = {
        key: known[key]
        for key in (*TABLE, "eos_token_id")
        if key in known and key not in (*SIZES, *LATENT_SIZES, "model_type", "dtype")
        if (architecture, key) not in UNUSED
    }
    found = FAMILIES[architecture].defaults
    assert {key: found[key] for key in wanted} == wanted
    others = {key for where, key in UNUSED if where == architecture}
    assert found.keys() - wanted.keys() <= CODE_ONLY | others


def minimal(folder: Path, architecture: str, **more: Any) -> None:
    family = FAMILIES[architecture]
    sizes = SIZES | (LATENT_SIZES if family.reads("q_lora_rank") else {})
    if family.defaults.get("num_experts_per_tok", 1) is None:
        sizes = sizes | {"num_experts_per_tok": 2}
    kind = family.model_types[0]
    config = {"architectures": [architecture], "model_type": kind, **sizes, **more}
    (folder / "config.json").write_text(json.dumps(config))


def facts(folder: Path) -> ModelFacts:
    return read_facts(locate(str(folder), load_format="dummy"))


@pytest.mark.parametrize("architecture", FAMILIES)
def test_a_config_of_sizes_only_means_what_it_does_to_transformers(
    architecture: str, tmp_path: Path
) -> None:
    minimal(tmp_path, architecture)
    theirs = AutoConfig.from_pretrained(tmp_path)
    found = facts(tmp_path)
    decoder = found.decoder
    assert decoder is not None and not found.notices
    ends = [] if theirs.eos_token_id is None else [theirs.eos_token_id]
    window = getattr(theirs, "sliding_window", None)
    alike = ["sliding_attention" if architecture.startswith("Mistral") else "full_attention"]
    types = getattr(theirs, "layer_types", None) or alike * found.layers
    assert found.layer_windows == tuple(window if SLIDING[kind] else None for kind in types)
    assert found.context == theirs.max_position_embeddings
    assert (found.tied, list(found.eos_ids)) == (theirs.tie_word_embeddings, ends)
    latent = FAMILIES[architecture].reads("q_lora_rank")
    wanted_head = getattr(theirs, "qk_head_dim" if latent else "head_dim", None) or 128 // 32
    assert found.head_dim == wanted_head
    assert found.kv_heads == (1 if latent else theirs.num_key_value_heads)
    ropes = theirs.rope_parameters
    bases = [ropes.get(key, ropes)["rope_theta"] for key in ("full_attention", "sliding_attention")]
    assert [decoder.rope.theta, decoder.local_rope.theta] == bases
    activation = getattr(theirs, "hidden_activation", None) or theirs.hidden_act
    assert decoder.activation == ACTIVATIONS[activation]
    assert decoder.norm_eps == theirs.rms_norm_eps
    scalar = getattr(theirs, "query_pre_attn_scalar", wanted_head)
    assert decoder.query_scale == pytest.approx(scalar**-0.5)
    assert decoder.score_cap == getattr(theirs, "attn_logit_softcapping", None)
    assert decoder.logit_cap == getattr(theirs, "final_logit_softcapping", None)


@pytest.mark.parametrize("key", SIZES)
@pytest.mark.parametrize("architecture", FAMILIES)
def test_a_size_that_is_missing_is_named(architecture: str, key: str, tmp_path: Path) -> None:
    for none in ({}, {key: None}):
        minimal(tmp_path, architecture)
        file = tmp_path / "config.json"
        saved = json.loads(file.read_text())
        del saved[key]
        file.write_text(json.dumps({**saved, **none}))
        with pytest.raises(SourceError, match=rf"config\.json: {key} ") as caught:
            facts(tmp_path)
        assert str(tmp_path) in str(caught.value) and str(caught.value).isprintable()


CHANGES: dict[str, Any] = {
    "num_key_value_heads": 3,
    "head_dim": 32,
    "rms_norm_eps": 0.05,
    "rope_theta": 50.0,
    "rope_local_base_freq": 50.0,
    "partial_rotary_factor": 0.5,
    "hidden_act": "gelu",
    "hidden_activation": "gelu",
    "attention_bias": True,
    "mlp_bias": True,
    "bias": True,
    "query_pre_attn_scalar": 3,
    "attn_logit_softcapping": 0.5,
    "final_logit_softcapping": 0.5,
    "sliding_window": 5,
    "use_sliding_window": False,
    "max_window_layers": 2,
    "sliding_window_pattern": 3,
    "layer_types": ["full_attention", "sliding_attention", "full_attention"],
    "num_experts_per_tok": 3,
    "norm_topk_prob": True,
    "decoder_sparse_step": 2,
    "mlp_only_layers": [0],
    "intermediate_size_mlp": 48,
    "moe_layers": [1],
    "interleave_moe_layer_step": 2,
    "no_rope_layers": [0, 1, 1],
    "no_rope_layer_interval": 2,
    "attention_chunk_size": 5,
    "attn_temperature_tuning": False,
    "floor_scale": 3,
    "attn_scale": 0.5,
    "swiglu_alpha": 1.0,
    "swiglu_limit": 0.5,
    "n_routed_experts": 12,
    "n_shared_experts": 2,
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 0.4,
    "first_k_dense_replace": 2,
    "use_qk_norm": True,
    "q_lora_rank": 24,
    "rope_interleave": False,
}
"""a value of each key that changes the model where the key is read"""
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 40}
GROUPED = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 40,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "num_mtp_layers": 0,
}
LATENT = {
    **GROUPED,
    **LATENT_SIZES,
    "num_key_value_heads": 6,
    "q_lora_rank": None,
    "topk_method": "group_limited_greedy",
    "head_dim": LATENT_SIZES["qk_rope_head_dim"],  # as transformers saves it
}
BASES: dict[str, dict[str, Any]] = {
    "Qwen2": {"sliding_window": 7, "use_sliding_window": True, "max_window_layers": 1},
    "Qwen3": {"sliding_window": 7, "use_sliding_window": True, "max_window_layers": 1},
    "Qwen2Moe": {
        **EXPERTS,
        "sliding_window": 7,
        "use_sliding_window": True,
        "max_window_layers": 2,
        "shared_expert_intermediate_size": 24,
    },
    "Qwen3Moe": {**EXPERTS, "sliding_window": 7, "use_sliding_window": True},
    "Qwen3Next": RECURRENT,
    "Mixtral": {"sliding_window": 7, "num_local_experts": 4},
    "DeepseekV2": LATENT,
    "DeepseekV3": {**LATENT, "topk_method": "noaux_tc"},
    "Glm4Moe": GROUPED,
    "Llama4Text": {
        "num_local_experts": 4,
        "intermediate_size_mlp": 80,
        "attention_chunk_size": 7,
        "floor_scale": 6,
    },
    "GptOss": {"sliding_window": 7, "num_local_experts": 4},
    "Llama": {},
}


IMPOSSIBLE = {
    ("DeepseekV2ForCausalLM", "num_key_value_heads"),
    ("DeepseekV3ForCausalLM", "num_key_value_heads"),
    ("DeepseekV3ForCausalLM", "head_dim"),
    ("Qwen3NextForCausalLM", "layer_types"),
    ("Qwen3NextForCausalLM", "hidden_act"),
}
"""transformers' code fails over that change, or it is refused here"""
QUIET = ("use_sliding_window", "max_window_layers", "sliding_window_pattern")
"""keys that say nothing about a model without windows"""
YARN = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0}
ORIGINAL = "original_max_position_embeddings"


def compare(folder: Path, dropped: tuple[str, ...], changes: dict[str, Any]) -> tuple[str, ...]:
    """Both read the same config.json, and give the same logits; returns our notices."""
    file = folder / "config.json"
    saved = json.loads(file.read_text())
    kept = {key: saved[key] for key in saved if key not in dropped}
    file.write_text(json.dumps({**kept, **changes}))
    theirs = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    ids = tokens(24)
    found = PagedModel(load(folder)).feed("a", ids, [24])
    torch.testing.assert_close(found, reference(theirs, ids), rtol=1e-4, atol=2e-4)
    return facts(folder).notices


def changed_keys(architecture: str, *, read: bool) -> dict[str, Any]:
    """Of the keys that the family reads, or of those that it does not."""
    family, found = FAMILIES[architecture], dict[str, Any]()
    for key, value in CHANGES.items():
        if (architecture, key) in IMPOSSIBLE or (key == PART and family.rope is not None):
            continue  # the rotary embedding that the family has is not for parts of heads
        if key == "layer_types":
            value = [family.local if one == "sliding_attention" else one for one in value]
        if read == (family.reads(key) or (key == PART and family.rotated_share is not None)):
            found[key] = value
    return found


def compare_changed(architecture: str, changes: dict[str, Any], folder: Path) -> tuple[str, ...]:
    kind = KINDS[architecture]
    base = {"head_dim": 16, **BASES.get(kind, {"sliding_window": 7})}
    made = {key: value for key, value in changes.items() if key != "layer_types"}
    make(kind, folder, **{**base, **made})
    return compare(folder, ("layer_types", "rope_parameters"), changes)


@pytest.mark.parametrize(
    ("architecture", "key"),
    [(one, key) for one in FAMILIES for key in changed_keys(one, read=True)],
)
def test_each_key_means_what_it_does_to_transformers(
    architecture: str, key: str, tmp_path: Path
) -> None:
    change = {key: changed_keys(architecture, read=True)[key]}
    notices = compare_changed(architecture, change, tmp_path)
    assert not [line for line in notices if f" {key} is " in line]


@pytest.mark.parametrize("architecture", FAMILIES)
def test_keys_that_a_family_does_not_read_are_told(architecture: str, tmp_path: Path) -> None:
    """All at once: transformers does not read them either."""
    changes = changed_keys(architecture, read=False)
    notices = compare_changed(architecture, changes, tmp_path)
    told = {key for key in changes if any(f" {key} is " in line for line in notices)}
    slides = FAMILIES[architecture].reads("sliding_window")
    assert told == {key for key in changes if slides or key not in QUIET}


@pytest.mark.parametrize("place", ["outer", "inner", "both"])
@pytest.mark.parametrize("architecture", FAMILIES)
def test_the_length_before_stretching_counts_where_transformers_reads_it(
    architecture: str, place: str, tmp_path: Path
) -> None:
    kind = KINDS[architecture]
    sizes = {key: value for key, value in BASES.get(kind, {}).items() if "window" not in key}
    heads = {} if kind == "InternLM2" else {"head_dim": 16}
    make(kind, tmp_path, **{**heads, **sizes})
    scaling = {**YARN, **({ORIGINAL: 40} if place != "outer" else {})}
    notices = compare(
        tmp_path,
        ("rope_parameters",),
        {"rope_scaling": scaling, **({ORIGINAL: 20} if place != "inner" else {})},
    )
    told = [line for line in notices if f"{ORIGINAL} is " in line]
    unread = not FAMILIES[architecture].reads(ORIGINAL)
    assert len(told) == len(notices) == (place == "both" or (unread and place == "outer"))
