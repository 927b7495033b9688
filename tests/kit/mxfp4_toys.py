"""Toys of gpt-oss whose experts are stored in MXFP4, as OpenAI's checkpoints have them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from safetensors.torch import load_file, save_file
from torch import Tensor
from toy_models import make

CONFIG = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": [
        "model.layers.*.self_attn",
        "model.layers.*.mlp.router",
        "model.embed_tokens",
        "lm_head",
    ],
}
KIND = GGMLQuantizationType.MXFP4


def make_mxfp4(folder: Path, **settings: Any) -> Any:
    """transformers' model with the numbers that the blocks stand for, in eval."""
    model = make("GptOss", folder, **{"intermediate_size": 64, "head_dim": 16, **settings})
    tensors = load_file(folder / "model.safetensors")
    for name, weight in model.named_parameters():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            blocks, scales, meant = stored(weight.detach())
            del tensors[name]
            tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
            with torch.no_grad():
                weight.copy_(meant)
    save_file(tensors, folder / "model.safetensors")
    file = folder / "config.json"
    config = {**json.loads(file.read_text()), "quantization_config": CONFIG}
    file.write_text(json.dumps(config))
    return model


def stored(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """weight[E, in, out] -> (blocks[E, out, in / 32, 16], scales[E, out, in / 32], weight)"""
    rows = weight.transpose(1, 2).contiguous()
    data = quantize(rows.numpy(), KIND)
    meant = torch.from_numpy(dequantize(data, KIND)).transpose(1, 2)
    by_block = torch.from_numpy(data).unflatten(-1, (-1, 17))
    halves = by_block[..., 1:]
    numbers = torch.cat((halves & 15, halves >> 4), -1).unflatten(-1, (16, 2))
    blocks = numbers[..., 0] | numbers[..., 1] << 4
    return blocks.contiguous(), by_block[..., 0].contiguous(), meant
