"""Toys of transformers whose linear layers are stored as ModelSlim, AWQ and GPTQ do it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from toy_models import make

SIZES = {"head_dim": 16, "hidden_size": 96, "intermediate_size": 128}

GROUP = 32

Tensors = dict[str, Tensor]


class StoredModel:
    """A toy of transformers whose linear layers are stored in another form: `stored` gives the
    tensors of one, `replaced` the module that computes what these mean."""

    def __init__(self, folder: Path, kind: str = "Qwen2", **settings: Any) -> None:
        self.folder = folder
        self.model = make(kind, folder, **{**SIZES, **settings})
        self.tensors = load_file(folder / "model.safetensors")
        self.types = dict.fromkeys(self.tensors, "FLOAT")

    def store(
        self,
        stored: Callable[[str, nn.Linear], Tensors],
        meant: Callable[[nn.Linear, Tensors], nn.Module],
        *,
        only: str = "_proj",
        kind: str = "",
    ) -> None:
        for name, module in list(self.model.named_modules()):
            if not isinstance(module, nn.Linear) or only not in name:
                continue
            found = stored(name, module)
            del self.tensors[f"{name}.weight"]
            for suffix, tensor in found.items():
                self.tensors[f"{name}.{suffix}"] = tensor.contiguous()
                self.types[f"{name}.{suffix}"] = kind
            parent, _, child = name.rpartition(".")
            setattr(self.model.get_submodule(parent), child, meant(module, found))

    def save(self, **config: Any) -> None:
        save_file(self.tensors, self.folder / "model.safetensors")
        change_config(self.folder, **config)

    def describe(self, **more: Any) -> None:
        text = json.dumps({"model_quant_type": "W8A8", "version": "1.0.0", **self.types, **more})
        (self.folder / "quant_model_description.json").write_text(text)


def change_config(folder: Path, **config: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **config}))


class Meant(nn.Module):
    """A linear layer by a function of float64 activations."""

    def __init__(self, product: Callable[[Tensor], Tensor], bias: Tensor | None) -> None:
        super().__init__()
        self.product = product
        self.bias = bias

    def forward(self, x: Tensor) -> Tensor:
        y = self.product(x.double())
        return (y if self.bias is None else y + self.bias).float()


def by_channel(weight: Tensor, largest: int) -> tuple[Tensor, Tensor]:
    scales = weight.abs().amax(1, keepdim=True) / largest
    return (weight / scales).round().to(torch.int8), scales


def static(name: str, layer: nn.Linear, halves: bool = False) -> Tensors:
    """Scale and offset of activations are shared by the parts of a product."""
    numbers, scales = by_channel(layer.weight.detach(), 127)
    scale, offset = (0.021, -9.0) if "down" in name or "o_proj" in name else (0.017, 5.0)
    deq = (scales[:, 0] * scale).float()
    bias = torch.zeros_like(deq) if layer.bias is None else layer.bias.detach()
    found = {
        "weight": numbers,
        "input_scale": torch.tensor([scale]),
        "input_offset": torch.tensor([offset]),
        "deq_scale": deq.view(torch.int32).long() if halves else deq,
        "quant_bias": (bias / deq - numbers.float().sum(1) * offset).round().int(),
    }
    return found if layer.bias is None else {**found, "bias": bias}


def static_meant(layer: nn.Linear, found: Tensors) -> nn.Module:
    deq = found["deq_scale"]
    deq = deq if deq.dtype is torch.float32 else deq.int().view(torch.float32)
    scale, offset = found["input_scale"], found["input_offset"]

    def product(x: Tensor) -> Tensor:
        numbers = (x.float() / scale + offset).round().clamp(-128, 127).double()
        return (numbers @ found["weight"].double().T + found["quant_bias"].double()) * deq

    return Meant(product, None)


def dynamic(name: str, layer: nn.Linear) -> Tensors:
    numbers, scales = by_channel(layer.weight.detach(), 127)
    return {"weight": numbers, "weight_scale": scales, "weight_offset": torch.zeros_like(scales)}


def int4(name: str, layer: nn.Linear) -> Tensors:
    numbers, scales = by_channel(layer.weight.detach(), 7)
    packed = ((numbers[1::2] << 4) | (numbers[0::2] & 15)).to(torch.int8)
    return {
        "weight": packed,
        "weight_scale": scales,
        "weight_offset": torch.zeros_like(scales),
        "scale_bias": 8 * (numbers * scales).sum(1, keepdim=True),
    }


def dynamic_meant(layer: nn.Linear, found: Tensors) -> nn.Module:
    """Weights of int4 are what int8 of them would be, so the floats are asked for."""
    largest = 7 if "scale_bias" in found else 127
    numbers, scales = by_channel(layer.weight.detach(), largest)

    def product(x: Tensor) -> Tensor:
        each = x.abs().amax(-1, keepdim=True) / 127
        return ((x / each).round() @ numbers.double().T) * scales.double()[:, 0] * each

    return Meant(product, None if layer.bias is None else layer.bias.detach())


def grouped(weight: Tensor, groups: Tensor, bits: int, *, symmetric: bool) -> tuple[Tensor, ...]:
    """(numbers[out, in], zeros[out, groups], scales[out, groups] of float16)"""
    count, most = int(groups.max()) + 1, (1 << bits) - 1
    zeros, scales = (torch.empty(weight.shape[0], count) for _ in range(2))
    for group in range(count):
        part = weight[:, groups == group]
        low, high = part.amin(1).clamp(max=0), part.amax(1).clamp(min=0)
        if symmetric:
            high = torch.maximum(high, -low)
            low = -high
        scales[:, group] = ((high - low) / most).half().float()
        zeros[:, group] = (-low / scales[:, group]).round()
        if symmetric:
            zeros[:, group] = (most + 1) // 2
    numbers = (weight / scales[:, groups] + zeros[:, groups]).round().clamp(0, most)
    return numbers.int(), zeros.int(), scales.half()


def pack(numbers: Tensor, bits: int, order: tuple[int, ...] | None = None) -> Tensor:
    """[n, m] -> int32[n, m / each]: neighbors of a row in one word"""
    each = 32 // bits
    order = order or tuple(range(each))
    words = torch.zeros(numbers.shape[0], numbers.shape[1] // each, dtype=torch.int64)
    for place, column in enumerate(order):
        words |= numbers[:, column::each].long() << (place * bits)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).int()


def decoded(numbers: Tensor, zeros: Tensor, scales: Tensor, groups: Tensor) -> Tensor:
    return (numbers - zeros[:, groups]).double() * scales.double()[:, groups]


def keep_layer(layer: nn.Linear, weight: Tensor) -> nn.Module:
    return Meant(lambda x: x @ weight.T, None if layer.bias is None else layer.bias.detach())


def awq(name: str, layer: nn.Linear) -> Tensors:
    groups = torch.arange(layer.in_features) // GROUP
    numbers, zeros, scales = grouped(layer.weight.detach(), groups, 4, symmetric=False)
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    return {
        "qweight": pack(numbers.T, 4, order),
        "qzeros": pack(zeros.T, 4, order),
        "scales": scales.T,
    }


def awq_meant(layer: nn.Linear, found: Tensors) -> nn.Module:
    groups = torch.arange(layer.in_features) // GROUP
    numbers, zeros, scales = grouped(layer.weight.detach(), groups, 4, symmetric=False)
    return keep_layer(layer, decoded(numbers, zeros, scales, groups))


AWQ = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"}


class GptqForm:
    def __init__(self, bits: int, size: int, *, ordered: bool, version: int) -> None:
        self.bits, self.size, self.ordered, self.version = bits, size, ordered, version
        self.symmetric = not ordered

    def parts(self, layer: nn.Linear) -> tuple[Tensor, ...]:
        inputs = layer.in_features
        groups = torch.arange(inputs) // (inputs if self.size == -1 else self.size)
        if self.ordered:
            groups = groups[torch.randperm(inputs, generator=torch.Generator().manual_seed(7))]
        weight = layer.weight.detach()
        return (*grouped(weight, groups, self.bits, symmetric=self.symmetric), groups)

    def stored(self, name: str, layer: nn.Linear) -> Tensors:
        numbers, zeros, scales, groups = self.parts(layer)
        ones = sum(1 << place for place in range(0, 32, self.bits))
        return {
            "qweight": pack(numbers, self.bits).T,
            "qzeros": pack(zeros.T, self.bits) - (ones if self.version == 1 else 0),
            "scales": scales.T,
            "g_idx": groups.int(),
        }

    def meant(self, layer: nn.Linear, found: Tensors) -> nn.Module:
        return keep_layer(layer, decoded(*self.parts(layer)))

    def config(self) -> dict[str, Any]:
        return {
            "quant_method": "gptq",
            "bits": self.bits,
            "group_size": self.size,
            "desc_act": self.ordered,
            "sym": self.symmetric,
            "checkpoint_format": "gptq" if self.version == 1 else "gptq_v2",
        }


def store_static(folder: Path, types: dict[str, str] | None = None, **sizes: Any) -> Tensors:
    """A Qwen3-MoE whose experts are static int8, with scales that differ from one to the next."""
    make("Qwen3Moe", folder, **sizes)
    tensors = load_file(folder / "model.safetensors")
    kinds = dict.fromkeys(tensors, "FLOAT")
    for name in [name for name in tensors if ".experts." in name]:
        weight, stem = tensors.pop(name), name.removesuffix(".weight")
        del kinds[name]
        layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        layer.weight.data = weight
        found, larger = static(name, layer), 1 + int(name.split(".experts.")[1].split(".")[0])
        found["input_scale"] *= larger
        found["deq_scale"] *= larger
        for suffix, tensor in found.items():
            tensors[f"{stem}.{suffix}"] = tensor.contiguous()
            kinds[f"{stem}.{suffix}"] = "W8A8"
    save_file(tensors, folder / "model.safetensors")
    described = {"model_quant_type": "W8A8", "version": "1.0.0", **kinds, **(types or {})}
    (folder / "quant_model_description.json").write_text(json.dumps(described))
    return tensors
