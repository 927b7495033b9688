"""ModelSlim's static int8 experts: every expert rounds its tokens by scales of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from paged_model import load
from quantized_toys import Tensors, store_static

from vivace.checkpoint.open import open_weights
from vivace.checkpoint.source import SourceError, locate
from vivace.layers.experts import RoutedExperts
from vivace.models.facts import read_facts

EXPERTS, TOP = 4, 2
SIZES = {"num_experts": EXPERTS, "num_experts_per_tok": TOP, "moe_intermediate_size": 64}
PLACE = "model.layers.1.mlp.experts"


def store(folder: Path, **types: str) -> Tensors:
    return store_static(folder, types, head_dim=16, **SIZES)


def product(tensors: Tensors, name: str, x: torch.Tensor) -> torch.Tensor:
    found = {
        suffix: tensors[f"{name}.{suffix}"]
        for suffix in ("weight", "input_scale", "input_offset", "quant_bias", "deq_scale")
    }
    numbers = (x.float() / found["input_scale"] + found["input_offset"]).round().clamp(-128, 127)
    whole = numbers.double() @ found["weight"].double().T + found["quant_bias"].double()
    return whole * found["deq_scale"].double()


def test_experts_follow_the_definition(tmp_path: Path, operations: None) -> None:
    tensors = store(tmp_path)
    experts = list(load(tmp_path).find(RoutedExperts))[1]
    x, chosen = torch.randn(9, 96), torch.stack([torch.randperm(EXPERTS)[:TOP] for _ in range(9)])
    weights, step = torch.rand(9, TOP), Any
    with torch.inference_mode():
        found = experts(x, weights, chosen, step)  # pyright: ignore[reportArgumentType]
    wanted = torch.zeros(9, 96, dtype=torch.float64)
    for token in range(9):
        for weight, expert in zip(weights[token], chosen[token].tolist(), strict=True):
            name = f"{PLACE}.{expert}"
            gate, up = (
                product(tensors, f"{name}.{part}_proj", x[token]) for part in ("gate", "up")
            )
            inner = torch.nn.functional.silu(gate) * up
            wanted[token] += weight * product(tensors, f"{name}.down_proj", inner)
    # where a number lies between two whole ones, float32 and float64 may round differently
    off = (found.double() - wanted).abs() > 1e-4 * wanted.abs().max()
    assert off.double().mean() < 0.02


def test_one_type_for_all_experts_of_a_layer(tmp_path: Path) -> None:
    store(tmp_path, **{f"{PLACE}.2.up_proj.weight": "W8A8_DYNAMIC"})
    with pytest.raises(SourceError, match="W8A8_DYNAMIC"):
        load(tmp_path)


def test_an_expert_is_put_in_the_place_of_another(tmp_path: Path, operations: None) -> None:
    """In the same memory, with its activations' scale."""
    store(tmp_path)
    experts, source = next(load(tmp_path).find(RoutedExperts)), locate(str(tmp_path))
    weights = open_weights(
        source, read_facts(source), seed=0, progress=lambda stage, fraction: None
    )
    x, ones, step = torch.randn(5, 96), torch.ones(5, 1), Any

    def ask(expert: int) -> torch.Tensor:
        chosen = torch.full((5, 1), expert)
        with torch.inference_mode():
            return experts(x, ones, chosen, step)  # pyright: ignore[reportArgumentType]

    before, third = ask(1), ask(3)
    assert not torch.equal(before, third)
    with torch.inference_mode():
        experts.method.prepare([1], experts._weights(weights, [3]))()
    assert torch.equal(ask(1), third) and torch.equal(ask(3), third)
