"""FP8 checkpoints: the logits of the plain models that they stand for, bit by bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import paged_model
import pytest
import torch
from fp8_toys import CONFIG, change_tensors, describe, make_fp8
from paged_model import PagedModel, load
from quantized_toys import change_config
from toy_models import make, tokens

from vivace.checkpoint.errors import SourceError
from vivace.checkpoint.source import locate
from vivace.checkpoint.weights import CheckpointError
from vivace.models.facts import checkpoint_quantization, same_groups, undivided_inputs

IDS = tokens(21)
DENSE = {"head_dim": 32, "hidden_size": 288, "intermediate_size": 208}
"""two blocks and a part; one and a part"""
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "dense": ("Qwen3", DENSE),
    "experts": (
        "Qwen3Moe",
        {
            **DENSE,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 144,
            "norm_topk_prob": True,
        },
    ),
    "latent": (
        "DeepseekV3",
        {
            "hidden_size": 160,
            "intermediate_size": 144,
            "moe_intermediate_size": 48,
            "num_key_value_heads": 6,
            "q_lora_rank": 144,
            "kv_lora_rank": 32,
            "qk_nope_head_dim": 16,
            "qk_rope_head_dim": 8,
            "v_head_dim": 16,
            "n_routed_experts": 6,
            "num_experts_per_tok": 3,
            "n_group": 3,
            "topk_group": 2,
            "first_k_dense_replace": 2,
            "num_hidden_layers": 4,
        },
    ),
}


def logits(folder: Path, quantization: str | None = None) -> torch.Tensor:
    return PagedModel(load(folder, quantization=quantization)).feed("a", IDS, [9, 1, 11])


@pytest.mark.parametrize("form", ["blocks", "compressed", "tensor", "channel"])
@pytest.mark.parametrize("name", MODELS)
def test_logits_have_the_bits_of_the_plain_model(name: str, form: str, tmp_path: Path) -> None:
    kind, settings = MODELS[name]
    stored, plain = make_fp8(tmp_path, kind, form=form, **settings)
    found = logits(stored)
    assert torch.equal(found, logits(plain))
    method = "compressed-tensors" if form == "compressed" else "fp8"
    assert torch.equal(found, logits(stored, method)) and torch.equal(
        found, logits(stored, "unquant")
    )


def test_weights_stay_one_byte_where_kernels_read_them(tmp_path: Path) -> None:
    stored, _ = make_fp8(tmp_path, "Llama", **DENSE)
    for quantization, kept in ((None, ["fp8"]), ("unquant", ["f32"])):
        model: Any = load(stored, quantization=quantization)
        weights = [model.model.layers[i].mlp.down_proj.method.operands.weight for i in (0, 1)]
        if paged_model.PLATFORM is not None:
            assert [part.kind for part in weights[0].parts] == kept
            assert [part.kind for part in weights[1].parts] == ["f32"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"fmt": "e5m2"}, "e4m3"),
        ({"activation_scheme": "weird"}, "static"),
        ({"weight_block_size": [128]}, "weight_block_size"),
        ({"weight_block_size": [128, 64]}, "multiple"),
        ({"modules_to_not_convert": "lm_head"}, "modules_to_not_convert"),
        ({"ignored_layers": [3]}, "ignored_layers"),
    ],
)
def test_descriptions_that_are_not_read(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    make("Llama", tmp_path)
    change_config(tmp_path, quantization_config={**CONFIG, **change})
    with pytest.raises(SourceError, match=said):
        checkpoint_quantization(locate(str(tmp_path)))


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ({"block_structure": None}, "block_structure"),
        ({"block_structure": [128, 64]}, "multiple"),
        ({"block_structure": "128x128"}, "block_structure"),
        ({"strategy": "group"}, "compressed-tensors"),
        ({"num_bits": 4}, "compressed-tensors"),
    ],
)
def test_compressed_blocks_that_are_not_read(
    weights: dict[str, Any], said: str, tmp_path: Path
) -> None:
    make("Llama", tmp_path)
    found = describe("compressed")
    found["config_groups"]["group_0"]["weights"] |= weights
    change_config(tmp_path, quantization_config=found)
    with pytest.raises(SourceError, match=said):
        checkpoint_quantization(locate(str(tmp_path)))


def test_compressed_blocks_of_one_size_and_without_quantized_kv(tmp_path: Path) -> None:
    make("Llama", tmp_path)
    found = describe("compressed")
    change_config(tmp_path, quantization_config=found)
    assert undivided_inputs(locate(str(tmp_path)), decoded=False) == same_groups(128)
    group = found["config_groups"]["group_0"]
    other = {**group, "weights": {**group["weights"], "block_structure": [64, 256]}}
    found["config_groups"]["group_1"] = other
    change_config(tmp_path, quantization_config=found)
    with pytest.raises(SourceError, match="several"):
        checkpoint_quantization(locate(str(tmp_path)))
    del found["config_groups"]["group_1"]
    change_config(tmp_path, quantization_config={**found, "kv_cache_scheme": {"num_bits": 8}})
    with pytest.raises(SourceError, match="compressed-tensors"):
        checkpoint_quantization(locate(str(tmp_path)))


def test_what_is_asked_for_is_what_the_checkpoint_is(tmp_path: Path) -> None:
    make("Llama", tmp_path)
    with pytest.raises(SourceError, match="floats"):
        checkpoint_quantization(locate(str(tmp_path)), "fp8")
    change_config(tmp_path, quantization_config=CONFIG)
    source = locate(str(tmp_path))
    assert undivided_inputs(source, decoded=False) == same_groups(128)
    for other in ("awq", "w8a8_int8"):
        with pytest.raises(SourceError, match="fp8"):
            checkpoint_quantization(source, other)


@pytest.mark.parametrize("damage", ["scale", "number", "missing", "shape"])
def test_damaged_tensors_are_named(damage: str, tmp_path: Path) -> None:
    stored, _ = make_fp8(tmp_path, "Llama", **DENSE)
    name, scale = "model__layers__0__mlp__down_proj__weight", torch.full((3, 2), 0.1)
    if damage == "number":
        change_tensors(stored, **{name: torch.full((288, 208), torch.nan).to(torch.float8_e4m3fn)})
    elif damage == "scale":
        change_tensors(stored, **{name + "_scale_inv": scale * torch.inf})
    else:
        change_tensors(stored, **{name + "_scale_inv": None if damage == "missing" else scale[1:]})
    with pytest.raises(CheckpointError, match=r"down_proj\.weight"):
        load(stored)


def test_rotated_rows_stay_in_their_blocks(tmp_path: Path) -> None:
    """Neighbors that turn together become halves; scales do not follow them elsewhere."""
    kind, settings = MODELS["latent"]
    stored, _ = make_fp8(tmp_path, kind, **{**settings, "qk_rope_head_dim": 32})
    with pytest.raises(CheckpointError, match="order"):
        load(stored)
