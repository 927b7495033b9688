"""gpt-oss's checkpoints: experts in MXFP4, blocks of 32 numbers of four bits with the exponent of
a scale (OCP Microscaling Formats, 2023). Everything else is floats.

Where the device reads blocks, they stay what they are, in GGUF's order; elsewhere they are decoded.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import torch
from torch import Tensor

from vivace.platforms.ops.stored import StoredBlocks
from vivace.platforms.ops.table import Activation
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

BLOCKS, SCALES = "blocks", "scales"
SUFFIXES: Collection[str] = (BLOCKS, SCALES, WEIGHT)
BLOCK = 32
"""numbers"""
UINT8 = (torch.uint8,)
NO_SCALE = 255
"""the exponent of what is no number"""


class Mxfp4Config:
    """`decode`: floats, whatever the device reads."""

    norm_biases = False

    def __init__(self, packer: WeightPacker, *, decode: bool = False) -> None:
        self._packer = packer
        self._decode = decode or not packer.blocks

    def linear_method(self, layer: str, parts: Sequence[str]) -> LinearMethod:
        return PackedMethod(self._packer, read_floats)

    def expert_method(self, layer: str, activation: Activation) -> ExpertMethod:
        return packed_experts(self._packer, self._read, activation, suffixes=SUFFIXES)

    def take_matrix(self, weights: LayerWeights, part: LocalPart) -> Matrix:
        return read_floats(weights, part)

    def _read(self, weights: LayerWeights, part: LocalPart) -> Matrix:
        """Experts that were left alone are floats."""
        if weights.has(part, WEIGHT) and not weights.has(part, BLOCKS):
            return read_floats(weights, part)
        inputs = weights.shape.inputs
        start, stop, _ = weights.shape.columns.indices(inputs)
        if start % BLOCK or stop % BLOCK:
            reason = f"inputs {start} to {stop} are no whole blocks of {BLOCK}"
            raise weights.fail(part, BLOCKS, reason, weights.shape.cut_advice)
        columns, count = slice(start // BLOCK, stop // BLOCK), inputs // BLOCK
        blocks = weights.take(
            part, BLOCKS, (part.size, count, BLOCK // 2), part.rows, columns, dtypes=UINT8
        )
        scales = weights.take(part, SCALES, (part.size, count), part.rows, columns, dtypes=UINT8)
        if bool((scales == NO_SCALE).any()):
            raise weights.fail(part, SCALES, "undefined scales")
        stored = mxfp4_blocks(blocks, scales)
        return stored.dequantize() if self._decode else stored


def mxfp4_blocks(blocks: Tensor, scales: Tensor) -> StoredBlocks:
    """blocks[rows, n, 16] uint8, numbers 2j and 2j + 1 in byte j, and scales[rows, n] -> GGUF's,
    which has numbers j and j + 16 there."""
    numbers = torch.stack((blocks & 15, blocks >> 4), -1).flatten(-2)
    half = BLOCK // 2
    data = torch.cat((scales.unsqueeze(-1), numbers[..., :half] | numbers[..., half:] << 4), -1)
    columns = scales.shape[1] * BLOCK
    return StoredBlocks("mxfp4", np.ascontiguousarray(data.flatten(1)), columns)
