"""Checkpoints of float8 (e4m3fn) with float scales: of blocks (DeepSeek V3 and R1, Qwen3's FP8), or
of a tensor or its output channels (compressed-tensors, fbgemm_fp8).

Where the device reads blocks, weights stay one byte each; elsewhere they are decoded. Activations
stay floats, so `input_scale` is not needed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from vivace.platforms.ops.stored import FP8_GROUP, Fp8Groups
from vivace.platforms.ops.table import Activation
from vivace.quantization.description import Fp8Checkpoint
from vivace.quantization.method import (
    WEIGHT,
    ExpertMethod,
    LayerWeights,
    LinearMethod,
    LocalPart,
    Matrix,
)
from vivace.quantization.packed import PackedMethod, WeightPacker
from vivace.quantization.packed_experts import packed_experts
from vivace.quantization.plain import read_floats

BLOCK_SCALE, SCALE, INPUT_SCALE = "weight_scale_inv", "weight_scale", "input_scale"
SUFFIXES: Collection[str] = (WEIGHT, BLOCK_SCALE, SCALE, INPUT_SCALE)
FLOAT8 = torch.float8_e4m3fn
PACKED_STEP = 16
"""inputs; a kernel takes whole ones"""


class Fp8Config:
    """`decode`: floats, whatever the device reads."""

    norm_biases = False

    def __init__(
        self, packer: WeightPacker, checkpoint: Fp8Checkpoint, *, decode: bool = False
    ) -> None:
        self._packer = packer
        self._block = checkpoint.block
        self._decode = decode or not packer.blocks

    def linear_method(self, layer: str, parts: Sequence[str]) -> LinearMethod:
        return PackedMethod(self._packer, self._read, suffixes=SUFFIXES)

    def expert_method(self, layer: str, activation: Activation) -> ExpertMethod:
        return packed_experts(self._packer, self._read, activation, suffixes=SUFFIXES)

    def take_matrix(self, weights: LayerWeights, part: LocalPart) -> Matrix:
        return self._read(weights, part)

    def _read(self, weights: LayerWeights, part: LocalPart) -> Matrix:
        """A layer that was left alone is floats; the tensors say which."""
        if weights.dtype(part, WEIGHT) is not FLOAT8:
            return read_floats(weights, part)
        numbers = weights.take_matrix(part, dtypes=(FLOAT8,)).contiguous()
        if bool(((numbers.view(torch.uint8) & 0x7F) == 0x7F).any()):
            raise weights.fail(part, WEIGHT, "undefined numbers")
        block = self._block
        scales = read_scales(weights, part) if block is None else block_scales(weights, part, block)
        if not bool(scales.isfinite().all()):
            suffix = SCALE if block is None else find_block_scale(weights, part)
            raise weights.fail(part, suffix, "infinite or undefined scales")
        found = Fp8Groups(numbers, scales)
        whole_steps = numbers.shape[1] % PACKED_STEP == 0
        return found if whole_steps and not self._decode else found.dequantize()


def block_scales(weights: LayerWeights, part: LocalPart, block: tuple[int, int]) -> Tensor:
    """[blocks of rows, blocks of inputs] -> float32[this rank's rows, groups of its inputs]"""
    (rows, inputs), suffix = block, find_block_scale(weights, part)
    width = weights.shape.inputs
    start, stop, _ = weights.shape.columns.indices(width)
    if start % inputs or (stop % inputs and stop != width):
        reason = f"inputs {start} to {stop} are no whole blocks of {inputs}"
        raise weights.fail(part, suffix, reason, weights.shape.cut_advice)
    ours = torch.arange(part.size)[part.rows] // rows
    first, last = int(ours[0]), int(ours[-1])
    taken = weights.take(
        part,
        suffix,
        (-(-part.size // rows), -(-width // inputs)),
        slice(first, last + 1),
        slice(start // inputs, -(-stop // inputs)),
    )
    scales = taken.float()[ours - first].repeat_interleave(inputs // FP8_GROUP, 1)
    return scales[:, : groups(stop - start)].contiguous()


def find_block_scale(weights: LayerWeights, part: LocalPart) -> str:
    """DeepSeek's name, of what is multiplied whatever it says, or compressed-tensors'"""
    apart = weights.has(part, SCALE) and not weights.has(part, BLOCK_SCALE)
    return SCALE if apart else BLOCK_SCALE


def read_scales(weights: LayerWeights, part: LocalPart) -> Tensor:
    """`weight_scale`, one of the tensor or of each output channel -> float32[rows, groups]"""
    shapes = {0: (), 1: (1,), 2: (part.size, 1)}
    shape = shapes[weights.dimensions(part, SCALE) or 0]
    if shape == (part.size, 1):
        scales = weights.take(part, SCALE, shape, part.rows).float()
    else:
        scales = weights.take(part, SCALE, shape).float().view(1, 1).expand(part.local_size, 1)
    columns = len(range(weights.shape.inputs)[weights.shape.columns])
    return scales.expand(-1, groups(columns)).contiguous()


def groups(columns: int) -> int:
    return -(-columns // FP8_GROUP)
