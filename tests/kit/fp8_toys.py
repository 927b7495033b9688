"""Toys of transformers as FP8 checkpoints, and the plain ones that they stand for."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from quantized_toys import change_config
from safetensors.torch import load_file, save_file
from torch import Tensor
from toy_models import make

BLOCK = (128, 128)
LARGEST = 448.0
"""of float8 e4m3fn"""
CONFIG: dict[str, Any] = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "activation_scheme": "dynamic",
    "weight_block_size": list(BLOCK),
}


def make_fp8(
    folder: Path, kind: str, *, form: str = "blocks", **settings: Any
) -> tuple[Path, Path]:
    """(the checkpoint, a plain one of the same numbers). `form`: "blocks" (also "compressed", as
    compressed-tensors has them), "tensor" or "channel" of each linear layer's scales; layer 1 is
    left alone."""
    plain, stored = folder / "plain", folder / "fp8"
    make(kind, plain, **settings)
    tensors = load_file(plain / "model.safetensors")
    quantized: dict[str, Tensor] = {}
    for name, weight in list(tensors.items()):
        if (not name.endswith("proj.weight") and "kv_a_proj" not in name) or ".layers.1." in name:
            quantized[name] = weight
            continue
        of_blocks = form in ("blocks", "compressed")
        scales = by_blocks(weight) if of_blocks else by_tensor(weight, form)
        numbers = (weight / widen(scales, weight)).to(torch.float8_e4m3fn)
        suffix = "_scale_inv" if form == "blocks" else "_scale"
        quantized |= {name: numbers, f"{name}{suffix}": scales}
        if form == "tensor":
            quantized[name.replace("weight", "input_scale")] = torch.tensor(0.5)
        tensors[name] = numbers.float() * widen(scales, weight)
    shutil.copytree(plain, stored)
    save_file(tensors, plain / "model.safetensors")
    save_file(quantized, stored / "model.safetensors")
    change_config(stored, quantization_config=describe(form))
    return stored, plain


def describe_compressed() -> dict[str, Any]:
    numbers = {"num_bits": 8, "type": "float", "symmetric": True}
    weights = {**numbers, "strategy": "block", "block_structure": list(BLOCK), "dynamic": False}
    inputs = {**numbers, "strategy": "group", "group_size": 128, "dynamic": True}
    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "ignore": ["lm_head", "re:.*layers.1.*"],
        "config_groups": {
            "group_0": {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
        },
    }


def describe(form: str) -> dict[str, Any]:
    if form == "compressed":
        return describe_compressed()
    kept = {**CONFIG, "modules_to_not_convert": ["lm_head", "model.layers.1"]}
    if form == "blocks":
        return kept
    del kept["weight_block_size"]
    return {**kept, "activation_scheme": "static" if form == "tensor" else "dynamic"}


def by_blocks(weight: Tensor) -> Tensor:
    rows, inputs = BLOCK
    return torch.stack(
        [
            torch.stack([part.abs().max() / LARGEST for part in row.split(inputs, 1)])
            for row in weight.split(rows)
        ]
    )


def by_tensor(weight: Tensor, form: str) -> Tensor:
    largest = weight.abs().amax(1, keepdim=True) if form == "channel" else weight.abs().max()
    return largest / LARGEST


def widen(scales: Tensor, weight: Tensor) -> Tensor:
    """Of blocks to the matrix's shape."""
    if scales.dim() < 2 or scales.shape[0] == weight.shape[0]:
        return scales
    rows, inputs = BLOCK
    whole = scales.repeat_interleave(rows, 0).repeat_interleave(inputs, 1)
    return whole[: weight.shape[0], : weight.shape[1]]


def change_tensors(folder: Path, **changed: Tensor | None) -> None:
    """By name, with __ for dots; None: it is gone."""
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in changed.items():
        name = name.replace("__", ".")
        assert name in tensors, json.dumps(sorted(tensors))
        if tensor is None:
            del tensors[name]
        else:
            tensors[name] = tensor
    save_file(tensors, folder / "model.safetensors")
