"""Rotary scalings: tables and whole models equal transformers'."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from paged_model import PagedModel, load
from toy_models import make, reference, tokens
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from vivace.checkpoint.errors import SourceError
from vivace.checkpoint.fields import ConfigFields
from vivace.layers.module import Bindings
from vivace.layers.rotary import RotaryTable, cosines_and_sines
from vivace.models.causal_lm import rotary_table
from vivace.models.rope import RotatedHead, read_rope
from vivace.platforms.ops.table import reference_ops
from vivace.quantization.packed import WeightPacker
from vivace.quantization.plain import PlainConfig

HEAD = 64
FACTORS = {
    "short_factor": [1.0 + 0.01 * i for i in range(HEAD // 2)],
    "long_factor": [1.5 + 0.25 * i for i in range(HEAD // 2)],
}
SCALINGS: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 3.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    "yarn-mscale": {
        "rope_type": "yarn",
        "factor": 16.0,
        "original_max_position_embeddings": 64,
        "mscale": 0.7,
        "mscale_all_dim": 1.2,
        "beta_fast": 20,
        "beta_slow": 2,
        "truncate": False,
    },
    "yarn-given": {
        "rope_type": "yarn",
        "factor": 2.0,
        "attention_factor": 0.8,
        "original_max_position_embeddings": 64,
    },
    "longrope": {"rope_type": "longrope", "original_max_position_embeddings": 64, **FACTORS},
}


def build_table(config: dict[str, Any], positions: int) -> RotaryTable:
    fields = ConfigFields(config, lambda key: f"config.json: {key}")
    rope = read_rope(fields, RotatedHead(HEAD), config.get("max_position_embeddings", 2048))
    return rotary_table(rope, positions)


def loaded(table: RotaryTable) -> torch.Tensor:
    packer = WeightPacker(
        ops=reference_ops(),
        dtype=torch.float32,
        activations=torch.float32,
        device=torch.device("cpu"),
    )
    table.bind("", Bindings(packer=packer, quantization=PlainConfig(packer)))

    class NoWeights:
        def has(self, name: str) -> bool:
            return False

        def take(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
            raise AssertionError(name)

    table.load(NoWeights())  # type: ignore[arg-type]
    return table.cos_sin


@pytest.mark.parametrize("positions", [48, 256])
@pytest.mark.parametrize("name", SCALINGS)
def test_table_equals_transformers(name: str, positions: int) -> None:
    """`positions` is the served length: all of it is computed in one piece by transformers."""
    scaling = {**SCALINGS[name], "rope_theta": 5000.0}
    longest = 64 if name == "dynamic" else 256
    config = transformers.LlamaConfig(
        hidden_size=2 * HEAD,
        num_attention_heads=2,
        max_position_embeddings=longest,
        rope_parameters=scaling,
    )
    theirs = LlamaRotaryEmbedding(config)
    cos, sin = theirs(torch.zeros(1), torch.arange(positions)[None])
    wanted = torch.cat((cos[0, :, : HEAD // 2], sin[0, :, : HEAD // 2]), dim=-1)

    as_saved = {"max_position_embeddings": longest, "rope_parameters": scaling}
    as_before = {
        "max_position_embeddings": longest,
        "rope_theta": 5000.0,
        "rope_scaling": SCALINGS[name],
    }
    for spelling in (as_saved, as_before):
        found = loaded(build_table(spelling, positions))
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=5e-5)


@pytest.mark.parametrize("name", ["linear", "llama3", "yarn"])
def test_scaled_llama_equals_transformers(name: str, tmp_path: Path) -> None:
    scaling = {**SCALINGS[name], "rope_theta": 10000.0}
    theirs = make("Llama", tmp_path, rope_parameters=scaling)
    ids = tokens(70)
    found = PagedModel(load(tmp_path)).feed("a", ids, [40, 1, 29])
    torch.testing.assert_close(found, reference(theirs, ids), rtol=1e-4, atol=2e-4)


def test_dynamic_scaling_is_fixed_for_the_served_length(tmp_path: Path) -> None:
    scaling = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    theirs = make("Llama", tmp_path, max_position_embeddings=32, rope_parameters=scaling)
    ids = tokens(48)
    ours = PagedModel(load(tmp_path, positions=48))
    found = ours.feed("a", ids, [17, 1, 30])
    torch.testing.assert_close(found, reference(theirs, ids), rtol=1e-4, atol=2e-4)


def test_factors_of_a_gguf_file_divide_the_frequencies() -> None:
    factors = [float(i + 1) for i in range(HEAD // 2)]
    config = {
        "rope_theta": 10000.0,
        "max_position_embeddings": 32,
        "rope_scaling": {"rope_type": "factors", "factors": factors},
    }
    found = loaded(build_table(config, 32))
    for i in (0, 5, 31):
        angle = 7 / 10000.0 ** (2 * i / HEAD) / (i + 1)
        assert float(found[7, i]) == pytest.approx(math.cos(angle), abs=1e-6)
        assert float(found[7, HEAD // 2 + i]) == pytest.approx(math.sin(angle), abs=1e-6)
    config["rope_scaling"] = {"rope_type": "factors", "factors": factors[:-1]}
    with pytest.raises(SourceError, match=r"factors .* 32 "):
        build_table(config, 32)


def test_part_of_a_head_can_be_rotated() -> None:
    """Where a GGUF file says so."""
    found = loaded(build_table({"rope_theta": 100.0, "rope_dimension_count": 16}, 8))
    assert found.shape == (8, 16)


@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize("name", SCALINGS)
def test_a_scaling_of_a_part_of_each_head_is_refused(name: str, within: bool) -> None:
    """transformers' code for these families fails over it; without a scaling it rotates all."""
    part = {"partial_rotary_factor": 0.5}
    scaling = {**SCALINGS[name], **(part if within else {})}
    config = {"rope_scaling": scaling, **({} if within else part)}
    if name == "default":
        assert loaded(build_table(config, 8)).shape == (8, HEAD)
        return
    with pytest.raises(SourceError, match="partial_rotary_factor"):
        build_table(config, 8)


def test_unknown_scaling_is_named() -> None:
    with pytest.raises(ValueError, match=r"'mrope'.* default, .*linear"):
        build_table({"rope_scaling": {"type": "mrope"}}, 8)


def test_a_table_too_large_to_build_is_refused() -> None:
    with pytest.raises(ValueError, match="--context-length"):
        loaded(build_table({"rope_theta": 100.0}, (1 << 31) - 1))


def test_a_table_is_rounded_from_more_bits() -> None:
    """Torch's cosines of large tensors are sometimes those of half as many bits."""
    frequencies = torch.arange(1, HEAD // 2 + 1) / HEAD
    angles = torch.outer(torch.arange(8192.0), frequencies)
    found, half = cosines_and_sines(angles), HEAD // 2
    assert found.dtype == torch.float32 and found.shape == (8192, HEAD)
    precise = angles.double()
    for part, exact in ((found[:, :half], precise.cos()), (found[:, half:], precise.sin())):
        assert (part.double() - exact).abs().max() <= 2**-25
