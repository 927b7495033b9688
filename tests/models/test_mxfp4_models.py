"""gpt-oss with experts in MXFP4: the numbers that transformers decodes, and what blocks take."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import paged_model
import pytest
import torch
import transformers
from mxfp4_toys import make_mxfp4
from paged_model import PagedModel, load
from safetensors.torch import load_file, save_file
from toy_models import reference, tokens

from vivace.checkpoint.source import SourceError, locate
from vivace.checkpoint.weights import CheckpointError
from vivace.models.gpt_oss import GptOssForCausalLM
from vivace.platforms.ops.linear import packed_parts
from vivace.quantization.grouped import GroupedExperts

SETTINGS: dict[str, Any] = {
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "sliding_window": 7,
    "swiglu_limit": 1.5,
}


def test_logits_equal_transformers_with_the_same_numbers(tmp_path: Path) -> None:
    theirs = make_mxfp4(tmp_path, **SETTINGS)
    ids = tokens(33)
    found = PagedModel(load(tmp_path)).feed("a", ids, [20, 1, 12])
    torch.testing.assert_close(found, reference(theirs, ids), rtol=1e-4, atol=2e-4)


def test_transformers_reads_the_same_numbers_from_the_files(tmp_path: Path) -> None:
    """By its own decoder, which knows the order of gpt-oss's blocks."""
    make_mxfp4(tmp_path, **SETTINGS)
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    config.quantization_config = {**config.quantization_config, "dequantize": True}
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, config=config, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    ids = tokens(21)
    found = PagedModel(load(tmp_path)).feed("a", ids, [21])
    # Their decoder rounds to bfloat16, which has all numbers of four bits.
    torch.testing.assert_close(found, reference(theirs, ids), rtol=1e-3, atol=1e-3)


def experts(model: Any) -> GroupedExperts:
    assert isinstance(model, GptOssForCausalLM)
    method = model.model.layers[0].mlp.experts.method  # type: ignore[union-attr]
    assert isinstance(method, GroupedExperts)
    return method


def test_blocks_stay_blocks_where_kernels_read_them(tmp_path: Path) -> None:
    make_mxfp4(tmp_path, **SETTINGS)
    kept = experts(load(tmp_path)).gate_up.weight
    if paged_model.PLATFORM is None:
        assert [part.dtype for part in packed_parts(kept)] == [torch.float32] * 4
        return
    assert [part.kind for part in kept.parts] == ["mxfp4"]
    assert kept.nbytes == 4 * 128 * 96 // 32 * 17
    floats = experts(load(tmp_path, quantization="unquant")).gate_up.weight
    assert [part.kind for part in floats.parts] == ["f32"]


def test_decoded_experts_give_the_same_tokens(tmp_path: Path) -> None:
    make_mxfp4(tmp_path, **SETTINGS)
    ids = tokens(24)
    found = PagedModel(load(tmp_path)).feed("a", ids, [24])
    decoded = PagedModel(load(tmp_path, quantization="unquant")).feed("a", ids, [24])
    torch.testing.assert_close(decoded, found, rtol=1e-4, atol=1e-4)


def test_dummy_experts_are_blocks_of_ordinary_numbers(tmp_path: Path) -> None:
    make_mxfp4(tmp_path, **SETTINGS)
    (tmp_path / "model.safetensors").unlink()
    model = load(None, source=locate(str(tmp_path), load_format="dummy"))
    logits = PagedModel(model).feed("a", tokens(12), [5, 7])
    assert logits.isfinite().all() and logits.std() > 0
    if paged_model.PLATFORM is not None:
        assert [part.kind for part in experts(model).down.weight.parts] == ["mxfp4"]


@pytest.mark.parametrize("damage", ["scales", "blocks", "shape"])
def test_damaged_blocks_are_named(damage: str, tmp_path: Path) -> None:
    make_mxfp4(tmp_path, **SETTINGS)
    file, name = tmp_path / "model.safetensors", "model.layers.1.mlp.experts.down_proj_"
    tensors = load_file(file)
    if damage == "scales":
        tensors[f"{name}scales"][2, 5, 1] = 255
    elif damage == "blocks":
        del tensors[f"{name}blocks"]
    else:
        tensors[f"{name}blocks"] = tensors[f"{name}blocks"][:, :, :1].contiguous()
    save_file(tensors, file)
    with pytest.raises(CheckpointError, match="down_proj_"):
        load(tmp_path)


def test_names_of_modules_are_a_list(tmp_path: Path) -> None:
    make_mxfp4(tmp_path, **SETTINGS)
    file = tmp_path / "config.json"
    config = json.loads(file.read_text())
    config["quantization_config"]["modules_to_not_convert"] = "lm_head"
    file.write_text(json.dumps(config))
    with pytest.raises(SourceError, match="modules_to_not_convert"):
        load(tmp_path)


def test_other_methods_are_refused(tmp_path: Path) -> None:
    make_mxfp4(tmp_path, **SETTINGS)
    for asked in ("w8a8_int8", "awq"):
        with pytest.raises(SourceError, match="mxfp4"):
            load(tmp_path, quantization=asked)
