"""Checkpoints of ModelSlim, AWQ and GPTQ: the layout of their files, against transformers with the
layers that these stand for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from paged_model import PagedModel, load
from quantized_toys import (
    AWQ,
    GROUP,
    SIZES,
    GptqForm,
    StoredModel,
    Tensors,
    awq,
    awq_meant,
    change_config,
    decoded,
    dynamic,
    dynamic_meant,
    grouped,
    int4,
    keep_layer,
    pack,
    static,
    static_meant,
)
from torch import Tensor, nn
from toy_models import make, reference, tokens

from vivace.checkpoint.errors import SourceError
from vivace.checkpoint.source import locate
from vivace.checkpoint.weights import CheckpointError
from vivace.worker.tensor_memory import tensor_bytes

IDS = tokens(21)


def logits(folder: Path, quantization: str | None = None) -> Tensor:
    return PagedModel(load(folder, quantization=quantization)).feed("a", IDS, [9, 1, 11])


@pytest.mark.parametrize("halves", [False, True], ids=["float32", "bits in int64"])
def test_modelslim_static(halves: bool, tmp_path: Path) -> None:
    toy = StoredModel(tmp_path)
    toy.store(lambda name, layer: static(name, layer, halves), static_meant, kind="W8A8")
    toy.save()
    toy.describe()
    compare(toy, tolerance=2e-2)
    compare(toy, "modelslim", tolerance=2e-2)


@pytest.mark.parametrize("form", [dynamic, int4], ids=["W8A8", "W4A8"])
def test_modelslim_dynamic(form: Callable[[str, nn.Linear], Tensors], tmp_path: Path) -> None:
    toy = StoredModel(tmp_path)
    kind = "W8A8_DYNAMIC" if form is dynamic else "W4A8_DYNAMIC"
    toy.store(form, dynamic_meant, kind=kind)
    toy.save()
    toy.describe()
    compare(toy, tolerance=2e-2)


def test_modelslim_mixes_types_and_moves_activations_into_biases_of_norms(tmp_path: Path) -> None:
    """As DeepSeek's are: static attention, dynamic MLP, some layers floats."""
    toy = StoredModel(tmp_path, "Llama")
    toy.store(static, static_meant, only="layers.1.self_attn", kind="W8A8")
    toy.store(dynamic, dynamic_meant, only="layers.2.mlp", kind="W8A8_DYNAMIC")
    for name, module in list(toy.model.named_modules()):
        if name.endswith("layernorm"):
            bias = torch.randn(SIZES["hidden_size"], generator=torch.Generator().manual_seed(1))
            toy.tensors[f"{name}.bias"], toy.types[f"{name}.bias"] = bias, "FLOAT"
            toy.types["model.layers.0.norm.bias"] = "FLOAT"
            module.register_forward_hook(lambda _, __, y, bias=bias: y + bias)
    toy.save()
    toy.describe()
    compare(toy, tolerance=2e-2)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kv_cache_type": "C8"}, "kv_cache_type"),
        ({"model.layers.0.self_attn.q_proj.weight": "W8A8_MXFP8"}, "W8A8_MXFP8"),
        ({"model.layers.0.self_attn.q_proj.weight": "FLOAT"}, "W8A8"),
    ],
)
def test_modelslim_that_is_not_read(change: dict[str, str], said: str, tmp_path: Path) -> None:
    toy = StoredModel(tmp_path)
    toy.store(static, static_meant, kind="W8A8")
    toy.save()
    toy.describe(**change)
    with pytest.raises(SourceError, match=said):
        load(tmp_path)


@pytest.mark.parametrize("suffix", ["input_scale", "deq_scale", "quant_bias"])
def test_modelslim_without_one_of_its_tensors(suffix: str, tmp_path: Path) -> None:
    toy = StoredModel(tmp_path)
    toy.store(static, static_meant, kind="W8A8")
    del toy.tensors[f"model.layers.1.mlp.up_proj.{suffix}"]
    toy.save()
    toy.describe()
    with pytest.raises(CheckpointError, match=rf"up_proj\.{suffix}"):
        load(tmp_path)


def test_another_quantization_than_the_one_that_is_asked_for(tmp_path: Path) -> None:
    toy = StoredModel(tmp_path)
    toy.store(dynamic, dynamic_meant, kind="W8A8_DYNAMIC")
    toy.save()
    toy.describe()
    with pytest.raises(SourceError, match="--quantization w8a16"):
        load(tmp_path, quantization="w8a16")


@pytest.mark.parametrize("quantization", [None, "awq", "unquant"])
def test_awq(quantization: str | None, tmp_path: Path) -> None:
    toy = StoredModel(tmp_path)
    toy.store(awq, awq_meant, only="layers.0")
    toy.store(awq, awq_meant, only="layers.2")
    toy.save(quantization_config={**AWQ, "modules_to_not_convert": ["layers.1"]})
    compare(toy, quantization, tolerance=2e-3 if quantization != "unquant" else 2e-5)


@pytest.mark.parametrize("kind", ["awq", "gptq"])
def test_internlm2_has_queries_keys_and_values_in_one(kind: str, tmp_path: Path) -> None:
    form = GptqForm(4, 16, ordered=True, version=2)
    ways = {"awq": (awq, awq_meant, AWQ), "gptq": (form.stored, form.meant, form.config())}
    stored, meant, config = ways[kind]
    toy = StoredModel(tmp_path, "InternLM2")
    toy.store(stored, meant, only="layers.")
    toy.save(quantization_config=config)
    compare(toy, tolerance=2e-3)


@pytest.mark.parametrize(
    "form",
    [
        GptqForm(4, GROUP, ordered=False, version=1),
        GptqForm(4, -1, ordered=False, version=2),
        GptqForm(4, 16, ordered=True, version=2),
        GptqForm(8, GROUP, ordered=False, version=1),
        GptqForm(2, GROUP, ordered=False, version=2),
        GptqForm(4, 16, ordered=True, version=1),
    ],
    ids=["4 bits", "one group", "by activation", "8 bits", "2 bits", "zeros that borrow"],
)
def test_gptq(form: GptqForm, tmp_path: Path) -> None:
    toy = StoredModel(tmp_path)
    toy.store(form.stored, form.meant)
    toy.save(quantization_config=form.config())
    compare(toy, tolerance=1e-4)


@pytest.mark.parametrize(
    ("file", "config"),
    [
        ("quant_config.json", {"zero_point": True, "q_group_size": GROUP, "w_bit": 4}),
        ("quantize_config.json", AWQ),
        ("quantize_config.json", {"bits": 4, "group_size": GROUP, "desc_act": False}),
    ],
    ids=["awq", "awq by name", "gptq"],
)
def test_a_file_of_older_tools_says_it(file: str, config: dict[str, Any], tmp_path: Path) -> None:
    toy = StoredModel(tmp_path)
    form = GptqForm(4, GROUP, ordered=False, version=1)
    pair = (form.stored, form.meant) if "bits" in config and "version" not in config else None
    toy.store(*(pair or (awq, awq_meant)))
    toy.save()
    (tmp_path / file).write_text(json.dumps(config))
    compare(toy, tolerance=2e-3)


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_a_bias_that_the_model_does_not_have(value: float, tmp_path: Path) -> None:
    """AutoGPTQ's older files have one of zeros in every layer."""
    form = GptqForm(4, GROUP, ordered=False, version=1)
    toy = StoredModel(tmp_path, "Llama")
    toy.store(
        lambda name, layer: {
            **form.stored(name, layer),
            "bias": torch.full((layer.out_features,), value, dtype=torch.float16),
        },
        form.meant,
    )
    toy.save(quantization_config=form.config())
    if value:
        with pytest.raises(CheckpointError, match=r"q_proj\.bias"):
            load(tmp_path)
    else:
        compare(toy, tolerance=1e-4)


def test_an_order_of_inputs_that_the_configuration_denies(tmp_path: Path) -> None:
    form = GptqForm(4, 16, ordered=True, version=1)
    toy = StoredModel(tmp_path)
    toy.store(form.stored, form.meant)
    toy.save(quantization_config={**form.config(), "desc_act": False})
    with pytest.raises(CheckpointError, match=r"q_proj\.g_idx.*desc_act"):
        load(tmp_path)


@pytest.mark.parametrize("told", [True, False], ids=["in order", "zeros"])
def test_an_order_that_says_nothing(told: bool, tmp_path: Path) -> None:
    """GPTQ-for-LLaMA's files have zeros there."""
    form = GptqForm(4, GROUP, ordered=False, version=1)
    toy = StoredModel(tmp_path)
    toy.store(
        lambda name, layer: {
            **form.stored(name, layer),
            "g_idx": (torch.arange(layer.in_features) // GROUP * told).int(),
        },
        form.meant,
    )
    toy.save(quantization_config=form.config())
    compare(toy, tolerance=1e-4)


def test_zero_points_of_version_1_may_be_zero(tmp_path: Path) -> None:
    """Of groups without negative weights: 1 is taken from words, not from numbers."""
    form = GptqForm(4, 16, ordered=True, version=1)
    toy = StoredModel(tmp_path)
    for name, weight in toy.model.named_parameters():
        if name.endswith("up_proj.weight"):
            weight.data[:20] = weight.data[:20].abs()
    toy.store(form.stored, form.meant)
    toy.save(quantization_config=form.config())
    compare(toy, tolerance=1e-4)


def test_symmetric_zero_points_count_more_than_the_version(tmp_path: Path) -> None:
    """Files of some releases name the other one."""
    form = GptqForm(4, GROUP, ordered=False, version=2)
    toy = StoredModel(tmp_path)
    toy.store(form.stored, form.meant)
    toy.save(quantization_config={**form.config(), "checkpoint_format": "gptq"})
    compare(toy, tolerance=1e-4)
    toy.tensors["model.layers.1.mlp.up_proj.qzeros"][0, 0] = 5
    toy.save(quantization_config=form.config())
    with pytest.raises(CheckpointError, match=r"up_proj\.qzeros"):
        load(tmp_path)


def test_awq_without_zero_points(tmp_path: Path) -> None:
    def stored(name: str, layer: nn.Linear) -> Tensors:
        groups = torch.arange(layer.in_features) // GROUP
        numbers, _, scales = grouped(layer.weight.detach(), groups, 4, symmetric=True)
        return {"qweight": pack(numbers.T, 4, (0, 2, 4, 6, 1, 3, 5, 7)), "scales": scales.T}

    def meant(layer: nn.Linear, found: Tensors) -> nn.Module:
        groups = torch.arange(layer.in_features) // GROUP
        return keep_layer(
            layer, decoded(*grouped(layer.weight.detach(), groups, 4, symmetric=True), groups)
        )

    toy = StoredModel(tmp_path)
    toy.store(stored, meant)
    toy.save(quantization_config={**AWQ, "zero_point": False})
    compare(toy, tolerance=1e-4)


def test_scales_of_bfloat16_leave_weights_as_they_are(tmp_path: Path) -> None:
    form = GptqForm(4, GROUP, ordered=False, version=1)
    toy = StoredModel(tmp_path)
    toy.store(form.stored, form.meant)
    toy.save(quantization_config=form.config())
    sizes = []
    for dtype in (torch.float16, torch.bfloat16):
        for name in toy.tensors:
            if name.endswith(".scales"):
                toy.tensors[name] = toy.tensors[name].bfloat16().to(dtype)
        toy.save(quantization_config=form.config())
        sizes.append(tensor_bytes(load(tmp_path)))
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize("scale", [1 << 40, 3], ids=["not 32 bits", "a whole number"])
def test_scales_that_are_no_bits_of_floats(scale: int, tmp_path: Path) -> None:
    toy = StoredModel(tmp_path)
    toy.store(lambda name, layer: static(name, layer, True), static_meant, kind="W8A8")
    toy.tensors["model.layers.1.mlp.up_proj.deq_scale"][3] = scale
    toy.save()
    toy.describe()
    with pytest.raises(CheckpointError, match=r"up_proj\.deq_scale"):
        load(tmp_path)


def test_a_dummy_of_a_static_checkpoint(tmp_path: Path) -> None:
    toy = StoredModel(tmp_path)
    toy.store(static, static_meant, kind="W8A8")
    toy.save()
    toy.describe()
    model = load(None, source=locate(str(tmp_path), load_format="dummy"))
    assert PagedModel(model).feed("a", IDS, [21]).isfinite().all()


def test_groups_that_do_not_fill_a_layer(tmp_path: Path) -> None:
    toy = StoredModel(tmp_path)
    toy.store(awq, awq_meant)
    toy.save(quantization_config={**AWQ, "group_size": 36})
    with pytest.raises(CheckpointError, match=r"q_proj\.scales"):
        load(tmp_path)


def test_groups_that_are_not_there(tmp_path: Path) -> None:
    form = GptqForm(4, 16, ordered=True, version=2)
    toy = StoredModel(tmp_path)
    toy.store(form.stored, form.meant)
    toy.tensors["model.layers.0.mlp.up_proj.g_idx"][3] = 99
    toy.save(quantization_config=form.config())
    with pytest.raises(CheckpointError, match=r"up_proj\.g_idx"):
        load(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"bits": 3},
        {"bits": "4"},
        {"group_size": 0},
        {"group_size": "32"},
        {"zero_point": 1},
        {"version": "gemv"},
    ],
    ids=str,
)
def test_other_kinds_of_awq_are_refused(change: dict[str, Any], tmp_path: Path) -> None:
    make("Qwen2", tmp_path, **SIZES)
    change_config(tmp_path, quantization_config={**AWQ, **change})
    with pytest.raises(SourceError, match="quantization_config"):
        load(tmp_path)


@pytest.mark.parametrize("bits", [3, 4.0, "4", True])
def test_other_kinds_of_gptq_are_refused(bits: Any, tmp_path: Path) -> None:
    make("Qwen2", tmp_path, **SIZES)
    config = GptqForm(4, GROUP, ordered=False, version=1).config()
    change_config(tmp_path, quantization_config={**config, "bits": bits})
    with pytest.raises(SourceError, match="quantization_config"):
        load(tmp_path)


def compare(toy: StoredModel, quantization: str | None = None, tolerance: float = 2e-4) -> None:
    found = logits(toy.folder, quantization)
    wanted = reference(toy.model, IDS)
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=tolerance * wanted.abs().max())
