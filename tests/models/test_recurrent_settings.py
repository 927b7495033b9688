"""Settings of Qwen3-Next's configurations, as transformers and others write them: computed as
transformers does, and the same with drafts of the checkpoint's own layer."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from draft_head_toys import RECURRENT_MODEL, ReferenceNextn
from fp8_toys import CONFIG, by_blocks, widen
from paged_model import PagedModel, load
from quantized_toys import change_config
from safetensors.torch import load_file, save_file
from served_toy import write_byte_tokenizer
from toy_models import make, reference

import vivace
from vivace.config.parsing import from_arguments
from vivace.deploy.own_checks import why_model_refused
from vivace.errors import CannotStart
from vivace.launch.configure import configure

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
IDS = [5, 9, 33, 7, 200, 17, 41, 3, 250, 11, 12, 13]
OLDER = {"rope_theta": 1e6, "partial_rotary_factor": 0.5, "rope_scaling": None}
"""as before transformers 5"""
SETTINGS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"tie_word_embeddings": True}, {}),
    ({"norm_topk_prob": False, "attention_bias": True}, {}),
    ({"mlp_only_layers": [1]}, {}),
    ({"num_experts": 0}, {}),
    ({"linear_conv_kernel_dim": 2, "linear_num_value_heads": 2}, {}),
    ({"full_attention_interval": 2}, {"layer_types": None, "full_attention_interval": 2}),
    ({}, {"layer_types": None}),
    ({"rope_parameters": {"rope_theta": 1e6, "partial_rotary_factor": 0.5}}, {}),
    (
        {"rope_parameters": {"rope_theta": 1e6, "partial_rotary_factor": 0.5}},
        {"rope_parameters": None, **OLDER},
    ),
    ({"rope_parameters": {**YARN, "rope_theta": 1e4, "partial_rotary_factor": 0.25}}, {}),
]
"""(settings of transformers' class, what its file says instead)"""


def written(folder: Path, settings: dict[str, Any], instead: dict[str, Any]) -> Any:
    """The model of transformers, with a layer for drafts in its files."""
    model = make("Qwen3Next", folder, **{**RECURRENT_MODEL, **settings})
    ReferenceNextn(model, folder)
    write_byte_tokenizer(folder)
    config = {**json.loads((folder / "config.json").read_text()), **instead}
    kept = {key: one for key, one in config.items() if one is not None}
    (folder / "config.json").write_text(json.dumps(kept))
    return model


@pytest.mark.parametrize(("settings", "instead"), SETTINGS)
def test_each_is_computed_as_transformers_does(
    settings: dict[str, Any], instead: dict[str, Any], tmp_path: Path
) -> None:
    model = written(tmp_path, settings, instead)
    found = PagedModel(load(tmp_path)).feed("a", IDS, [len(IDS)])
    torch.testing.assert_close(found.float(), reference(model, IDS), atol=1e-3, rtol=1e-3)
    for algorithm in (None, "NEXTN", "EAGLE"):
        options = from_arguments(model_path=str(tmp_path), speculative_algorithm=algorithm)
        assert (configure(options).draft is None) is (algorithm is None)
        assert not why_model_refused(options, layout_known=True, steps_known=True)


@pytest.mark.parametrize("settings", [{"decoder_sparse_step": 2}, {"mlp_only_layers": [0]}])
def test_a_layer_for_drafts_is_as_the_first_one(settings: dict[str, Any], tmp_path: Path) -> None:
    """One with experts behind a model whose first layer has none is refused before it is loaded;
    without drafts the model is served."""
    model = written(tmp_path, settings, {})
    found = PagedModel(load(tmp_path)).feed("a", IDS, [len(IDS)])
    torch.testing.assert_close(found.float(), reference(model, IDS), atol=1e-3, rtol=1e-3)
    options = from_arguments(model_path=str(tmp_path), speculative_algorithm="NEXTN")
    with pytest.raises(CannotStart, match="gate_proj") as raised:
        configure(options)
    (said,) = why_model_refused(options, layout_known=True, steps_known=True)
    assert str(raised.value).endswith(said) and "mtp.layers.0.mlp" in said


@pytest.mark.parametrize("saved", [True, False])
def test_a_shared_expert_may_be_empty(saved: bool, tmp_path: Path) -> None:
    """transformers saves what has no numbers, and its gate; others leave it out."""
    written(tmp_path, {}, {"shared_expert_intermediate_size": 0})
    file, kept = tmp_path / "model.safetensors", dict[str, torch.Tensor]()
    for name, one in load_file(file).items():
        if "shared_expert." in name:
            one = (one[:, :0] if "down" in name else one[:0]).contiguous()
        if saved or "shared_expert" not in name:
            kept[name] = one
    save_file(kept, file)
    assert PagedModel(load(tmp_path)).feed("a", IDS, [len(IDS)]).isfinite().all()
    options = from_arguments(model_path=str(tmp_path), speculative_algorithm="NEXTN")
    assert configure(options).draft is not None


@pytest.mark.parametrize(
    ("algorithm", "word"),
    [("NEXTN", ""), ("EAGLE", ""), ("EAGLE3", "NEXTN"), ("STANDALONE", "state")],
)
def test_the_served_folder_may_be_named_as_the_draft(
    algorithm: str, word: str, tmp_path: Path
) -> None:
    """As SGLang's own rewrites do it."""
    written(tmp_path, {}, {})
    options = from_arguments(
        model_path=str(tmp_path),
        speculative_algorithm=algorithm,
        speculative_draft_model_path=str(tmp_path),
    )
    refused = why_model_refused(options, layout_known=True, steps_known=True)
    assert [word in one for one in refused] == [True] * bool(word)
    if not word:
        draft = configure(options).draft
        assert draft is not None and draft.head is not None and draft.head.behind == 1
        return
    with pytest.raises(CannotStart, match=word):
        configure(options)


KEPT = ("mlp.gate", "mlp.shared_expert_gate", "linear_attn.in_proj_ba", "linear_attn.conv1d")
"""what Qwen's own FP8 checkpoints of the family leave as it is, of each layer"""


@pytest.mark.parametrize("kept", ["mtp.fc", "mtp"])
def test_fp8_is_read_in_the_model_and_its_layer_for_drafts(kept: str, tmp_path: Path) -> None:
    """By their lists of what is not converted, and as the same numbers without blocks are."""
    plain, stored = tmp_path / "plain", tmp_path / "fp8"
    written(plain, {}, {})
    layers = [*(f"model.layers.{index}" for index in range(4)), "mtp.layers.0"]
    whole = [f"{layer}.{name}" for layer in layers for name in KEPT]
    shutil.copytree(plain, stored)
    change_config(
        stored, quantization_config={**CONFIG, "modules_to_not_convert": ["lm_head", kept, *whole]}
    )
    numbers, quantized = load_file(plain / "model.safetensors"), dict[str, torch.Tensor]()
    for name, weight in numbers.items():
        quantized[name] = weight
        matrix = name.endswith(("proj.weight", "in_proj_qkvz.weight"))
        if matrix and not (kept == "mtp" and name.startswith(kept)):
            scales = by_blocks(weight)
            quantized[name] = (weight / widen(scales, weight)).to(torch.float8_e4m3fn)
            quantized[f"{name}_scale_inv"] = scales
            numbers[name] = quantized[name].float() * widen(scales, weight)
    save_file(numbers, plain / "model.safetensors")
    save_file(quantized, stored / "model.safetensors")
    assert drafted(stored) == drafted(plain)


def drafted(folder: Path) -> tuple[list[int], int]:
    """(tokens, steps that it took to find them with drafts)"""
    flags: dict[str, Any] = {"speculative_algorithm": "NEXTN", "speculative_fixed_width": True}
    sampling: dict[str, Any] = {"temperature": 0, "max_new_tokens": 24, "ignore_eos": True}
    sizes = {"max_total_tokens": 512, "max_running_requests": 2, "page_size": 16}
    with vivace.Engine(str(folder), **sizes, **flags) as engine:
        answer: Any = engine.generate(input_ids=IDS, sampling_params=sampling)
    return answer["output_ids"], answer["meta_info"]["spec_verify_ct"]
