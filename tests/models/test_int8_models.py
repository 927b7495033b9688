"""--quantization w8a8_int8 and w8a16: made while loading, or as the checkpoint has it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from paged_model import PagedModel, load
from safetensors.torch import load_file, save_file
from torch import Tensor
from toy_models import make, tokens

from vivace.checkpoint.source import SourceError
from vivace.checkpoint.weights import CheckpointError
from vivace.platforms.ops.stored import int8_rows

IDS = tokens(21)
CONFIG = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "config_groups": {
        "group_0": {
            "weights": {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"},
            "input_activations": {
                "num_bits": 8,
                "type": "int",
                "symmetric": True,
                "strategy": "token",
                "dynamic": True,
            },
        }
    },
}


def logits(folder: Path, quantization: str | None = None) -> Tensor:
    return PagedModel(load(folder, quantization=quantization)).feed("a", IDS, [9, 1, 11])


def is_layer(name: str) -> bool:
    return name.endswith("_proj.weight")


def rewritten(source: Path, target: Path, *, int8: bool, config: dict[str, Any] | None) -> Path:
    """The checkpoint with its layers as int8 and scales, or as the floats these stand for."""
    target.mkdir()
    stored = load_file(source / "model.safetensors")
    found = json.loads((source / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**found, **(config or {})}))
    for name in [name for name in stored if is_layer(name)]:
        rows = int8_rows(stored[name])
        stored[name] = rows.numbers if int8 else rows.dequantize()
        if int8:
            stored[f"{name}_scale"] = rows.scales[:, None].contiguous()
    save_file(stored, target / "model.safetensors")
    return target


KINDS: dict[str, dict[str, Any]] = {
    "Qwen2": {},
    "Qwen3Moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64},
}


@pytest.fixture(params=KINDS)
def floats(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    make(request.param, tmp_path / "floats", head_dim=16, **KINDS[request.param])
    return tmp_path / "floats"


def test_w8a16_is_the_model_of_the_rounded_layers_and_nothing_else(
    floats: Path, tmp_path: Path
) -> None:
    rounded = rewritten(floats, tmp_path / "rounded", int8=False, config=None)
    found = logits(floats, "w8a16")
    torch.testing.assert_close(found, logits(rounded), rtol=1e-4, atol=2e-4)
    assert (found - logits(floats)).abs().max() > 1e-3


def test_w8a8_is_near_the_floats_but_not_them(floats: Path) -> None:
    wanted, found = logits(floats), logits(floats, "w8a8_int8")
    error = (found - wanted).pow(2).mean().sqrt() / wanted.std()
    assert 1e-4 < error < 0.06


def test_w8a8_does_not_depend_on_how_the_prompt_is_cut(floats: Path) -> None:
    model = load(floats, quantization="w8a8_int8")
    whole = PagedModel(model).feed("a", IDS, [21])
    parts = PagedModel(model).feed("a", IDS, [1, 2, 15, 3])
    torch.testing.assert_close(whole, parts, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("config", [None, {"quantization_config": CONFIG}])
def test_an_int8_checkpoint_is_what_loading_would_have_made(
    floats: Path, tmp_path: Path, config: dict[str, Any] | None
) -> None:
    stored = rewritten(floats, tmp_path / "int8", int8=True, config=config)
    made = logits(floats, "w8a8_int8")
    assert torch.equal(logits(stored, "w8a8_int8"), made)
    assert torch.equal(logits(stored), made), "what it was made for, without a flag"
    assert torch.equal(logits(stored, "w8a16"), logits(floats, "w8a16"))


def test_unquant_decodes_an_int8_checkpoint(floats: Path, tmp_path: Path) -> None:
    stored = rewritten(floats, tmp_path / "int8", int8=True, config=None)
    rounded = rewritten(floats, tmp_path / "rounded", int8=False, config=None)
    torch.testing.assert_close(logits(stored, "unquant"), logits(rounded), rtol=1e-5, atol=1e-5)


def test_layers_the_checkpoint_left_alone_stay_floats(floats: Path, tmp_path: Path) -> None:
    stored = rewritten(floats, tmp_path / "int8", int8=True, config=None)
    tensors, originals = (
        load_file(stored / "model.safetensors"),
        load_file(floats / "model.safetensors"),
    )
    for name in [name for name in originals if is_layer(name) and "layers.0" not in name]:
        tensors[name] = originals[name]
        del tensors[f"{name}_scale"]
    save_file(tensors, stored / "model.safetensors")
    mixed = logits(stored, "w8a16")
    wanted = logits(floats)
    assert 0 < (mixed - wanted).abs().mean() < (logits(floats, "w8a16") - wanted).abs().mean()


@pytest.mark.parametrize("shape", [None, (1,), (16, 6)])
def test_int8_without_a_scale_for_each_row_is_refused(
    floats: Path, tmp_path: Path, shape: tuple[int, ...] | None
) -> None:
    stored = rewritten(floats, tmp_path / "int8", int8=True, config=None)
    tensors = load_file(stored / "model.safetensors")
    name = "model.layers.1.self_attn.o_proj.weight"
    del tensors[f"{name}_scale"]
    if shape:
        tensors[f"{name}_scale"] = torch.ones(shape)
    save_file(tensors, stored / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"o_proj\.weight_scale"):
        load(stored)


@pytest.mark.parametrize(
    "weights", [{"num_bits": 4}, {"strategy": "group"}, {"symmetric": False}], ids=str
)
def test_other_kinds_of_int8_are_refused(floats: Path, weights: dict[str, Any]) -> None:
    group = CONFIG["config_groups"]["group_0"]
    other = {**group, "weights": {**group["weights"], **weights}}
    config = {**CONFIG, "config_groups": {"group_0": other}}
    with pytest.raises(SourceError, match="compressed-tensors"):
        load(floats, overrides={"quantization_config": config})
