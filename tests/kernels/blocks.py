"""Weights of random numbers in every format that the kernels read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import gguf
import numpy as np
import torch
from torch import Tensor

from vivace.platforms.ops.stored import StoredBlocks

FLOATS = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
HALVES = {"q6_k": [208], "q8_0": [0], "q4_0": [0], "q5_0": [0], "mxfp4": []}
"""byte offsets of the float16 numbers in a block; 0 and 2 in all others"""


@dataclass
class Layer:
    """Something to pack, and the numbers it stands for."""

    piece: Tensor | StoredBlocks
    numbers: Tensor
    """float32[outputs, inputs]"""


def random_layer(kind: str, outputs: int, inputs: int, seed: int = 0) -> Layer:
    random = np.random.default_rng([seed, outputs, inputs])
    if kind in FLOATS:
        numbers = torch.from_numpy(random.standard_normal((outputs, inputs), np.float32))
        numbers = numbers.to(FLOATS[kind])
        return Layer(numbers, numbers.float())
    size, nbytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind.upper()]]
    data = random.integers(0, 256, (outputs, inputs // size, nbytes), np.uint8)
    if kind == "mxfp4":
        data[:, :, 0] = random.integers(115, 128, data.shape[:2])
    for at in HALVES.get(kind, [0, 2]):
        halves = (random.standard_normal(data.shape[:2]) * 0.1).astype(np.float16)
        data[:, :, at : at + 2] = halves.view(np.uint8).reshape(*data.shape[:2], 2)
    blocks = StoredBlocks(kind, data.reshape(outputs, -1), inputs)
    return Layer(blocks, blocks.dequantize())


def assert_rows_stand_alone(
    product: Callable[[Tensor], Tensor], x: Tensor, whole: Tensor, counts: Sequence[int]
) -> None:
    """`whole` is the product of all of x: some of its rows alone have the same bits."""
    for rows in counts:
        for first in {0, (len(x) - rows) // 2, len(x) - rows}:
            found = product(x[first : first + rows])
            assert torch.equal(found, whole[first : first + rows]), (rows, first)
