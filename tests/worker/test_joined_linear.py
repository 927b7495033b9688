"""Layers of drafts over several inputs side by side."""

from __future__ import annotations

import pytest
import torch

from vivace.checkpoint.dummy import DummyWeights
from vivace.checkpoint.weights import CheckpointError
from vivace.layers.linear import Part
from vivace.layers.module import Bindings
from vivace.platforms.cpu.ops import cpu_ops
from vivace.quantization.description import AwqCheckpoint, Fp8Checkpoint
from vivace.quantization.fp8 import Fp8Config
from vivace.quantization.packed import WeightPacker
from vivace.quantization.weight_only import WeightOnlyConfig
from vivace.worker.drafters.joined_linear import JoinedLinear


class Float8Weights(DummyWeights):
    def dtype(self, name: str) -> torch.dtype:
        return torch.float8_e4m3fn

    def _whole(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(shape).to(dtype)


@pytest.mark.parametrize("method", ["fp8", "awq"])
def test_scales_of_both_inputs_are_no_matter_of_ranks(method: str) -> None:
    """Each input has 96 columns, of which 128 or 64 share a scale."""
    packer = WeightPacker(
        ops=cpu_ops(), dtype=torch.float32, activations=torch.float32, device=torch.device("cpu")
    )
    config = (
        Fp8Config(packer, Fp8Checkpoint(block=(128, 128)))
        if method == "fp8"
        else WeightOnlyConfig(packer, AwqCheckpoint(group_size=64, zero_points=False, skipped=()))
    )
    layer = JoinedLinear(96, 2, [Part("fc", 8)])
    layer.bind("fc", Bindings(packer=packer, quantization=config))
    weights = Float8Weights(0, lambda stage, done: None, tied=False)
    with pytest.raises(CheckpointError, match="quantized") as raised:
        layer.load(weights)
    assert "rank" not in str(raised.value) and "--tp-size" not in str(raised.value)
