"""Quantized checkpoints of mixtures, with the names of published ones: the logits of the plain
models that they stand for, on one rank and on several."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import paged_model
import pytest
import torch
from quantized_toys import (
    AWQ,
    GROUP,
    GptqForm,
    Tensors,
    awq,
    by_channel,
    change_config,
    decoded,
    dynamic,
    grouped,
    int4,
    static,
)
from safetensors.torch import load_file, save_file
from thread_ranks import ThreadRanks
from torch import Tensor, nn
from toy_models import make, tokens

from vivace.checkpoint.source import locate
from vivace.models.facts import checkpoint_quantization

IDS, CHUNKS = tokens(21), [9, 1, 11]
GPTQ = GptqForm(4, GROUP, ordered=False, version=1)
FLOAT8 = torch.float8_e4m3fn
SIZES: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "num_hidden_layers": 2,
    "moe_intermediate_size": 128,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen": ("Qwen3Moe", {"head_dim": 32, "num_experts": 4, "num_experts_per_tok": 2}),
    "deepseek": (
        "DeepseekV3",
        {
            "num_key_value_heads": 8,
            "q_lora_rank": 64,
            "kv_lora_rank": 32,
            "qk_nope_head_dim": 16,
            "qk_rope_head_dim": 16,
            "v_head_dim": 16,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "n_group": 2,
            "topk_group": 1,
            "first_k_dense_replace": 1,
        },
    ),
}


def channels(weight: Tensor, largest: int) -> Tensor:
    numbers, scales = by_channel(weight, largest)
    return numbers * scales


def blocks(weight: Tensor, *, symmetric: bool) -> Tensor:
    groups = torch.arange(weight.shape[1]) // GROUP
    numbers, zeros, scales = grouped(weight, groups, 4, symmetric=symmetric)
    return decoded(numbers, zeros, scales, groups).float()


def fp8(weight: Tensor, form: str) -> tuple[Tensor, Tensor]:
    most = weight.abs().amax(1, keepdim=True) if form == "channel" else weight.abs().max()
    scale = (most / 448.0).reshape(-1, 1) if form == "channel" else (most / 448.0).reshape(1)
    return (weight / scale).to(FLOAT8), scale


def store_fp8(form: str) -> Callable[[str, nn.Linear], Tensors]:
    def store(name: str, layer: nn.Linear) -> Tensors:
        numbers, scale = fp8(layer.weight.detach(), form)
        input_scale = {} if form == "channel" else {"input_scale": torch.tensor([0.5])}
        return {"weight": numbers, "weight_scale": scale, **input_scale}

    return store


def meant_fp8(form: str) -> Callable[[Tensor], Tensor]:
    def meant(weight: Tensor) -> Tensor:
        numbers, scale = fp8(weight, form)
        return numbers.float() * scale

    return meant


def compressed(strategy: str, inputs: dict[str, Any] | None) -> dict[str, Any]:
    numbers = {"num_bits": 8, "type": "float", "symmetric": True}
    group = {
        "targets": ["Linear"],
        "weights": {**numbers, "strategy": strategy, "dynamic": False},
        "input_activations": {**numbers, **inputs} if inputs else None,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head", "re:.*gate$"],
        "kv_cache_scheme": None,
    }


Meant = Callable[[Tensor], Tensor]
FORMS: dict[str, tuple[Callable[[str, nn.Linear], Tensors], Meant, Any, float]] = {
    "awq": (awq, lambda w: blocks(w, symmetric=False), AWQ, 2e-3),
    "gptq": (GPTQ.stored, lambda w: blocks(w, symmetric=True), GPTQ.config(), 1e-4),
    "W8A16": (dynamic, lambda w: channels(w, 127), None, 1e-4),
    "W8A8_DYNAMIC": (dynamic, lambda w: channels(w, 127), None, 0.05),
    "W4A8_DYNAMIC": (int4, lambda w: channels(w, 7), None, 0.05),
    "W8A8": (static, lambda w: channels(w, 127), None, 0.25),
    "fp8 channel": (
        store_fp8("channel"),
        meant_fp8("channel"),
        compressed("channel", {"strategy": "token", "dynamic": True}),
        1e-4,
    ),
    "fp8 tensor": (
        store_fp8("tensor"),
        meant_fp8("tensor"),
        compressed("tensor", {"strategy": "tensor", "dynamic": False}),
        1e-4,
    ),
    "fbgemm": (store_fp8("channel"), meant_fp8("channel"), {"quant_method": "fbgemm_fp8"}, 1e-4),
}
"""how a layer is stored, what that means, quantization_config, and the error of the logits' norm
(static scales of the toys cut activations off)"""


def write(folder: Path, model: str, form: str) -> tuple[Path, Path]:
    """(the checkpoint, a plain one of the same numbers)"""
    store, meant, config, _ = FORMS[form]
    kind, settings = MODELS[model]
    plain, quantized = folder / "plain", folder / "quantized"
    make(kind, plain, **{**SIZES, **settings})
    tensors = load_file(plain / "model.safetensors")
    stored, types = dict[str, Tensor](), dict[str, str]()
    for name, weight in list(tensors.items()):
        # Huawei's own DeepSeek checkpoints leave kv_b_proj as it is.
        layer, left = name.removesuffix(".weight"), config is None and "kv_b_proj" in name
        if ("_proj" not in name or weight.dim() != 2) or left:
            stored[name], types[name] = weight, "FLOAT"
            continue
        linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        linear.weight.data = weight
        for suffix, tensor in store(layer, linear).items():
            stored[f"{layer}.{suffix}"] = tensor.contiguous()
            types[f"{layer}.{suffix}"] = form
        tensors[name] = meant(weight).float()
    assert any(".experts.3.down_proj." in name for name in stored)
    shutil.copytree(plain, quantized)
    save_file(tensors, plain / "model.safetensors")
    save_file(stored, quantized / "model.safetensors")
    if config is None:
        described = {"model_quant_type": form, "version": "1.0.0", **types}
        (quantized / "quant_model_description.json").write_text(json.dumps(described))
    else:
        change_config(quantized, quantization_config=config)
    return quantized, plain


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("model", MODELS)
def test_logits_of_the_plain_model(model: str, form: str, tmp_path: Path) -> None:
    quantized, plain = write(tmp_path, model, form)
    assert checkpoint_quantization(locate(str(quantized))) is not None
    wanted = ThreadRanks(plain, 1).feed(IDS, CHUNKS)
    for ranks, ep in ((1, 1), (2, 1), (4, 1), (2, 2)):
        if ranks > 1 and paged_model.PLATFORM is None and form != "W8A16":
            continue  # how ranks read is the same for torch's operations
        found = ThreadRanks(quantized, ranks, ep=ep).feed(IDS, CHUNKS)
        assert float((found - wanted).norm() / wanted.norm()) < FORMS[form][3]
