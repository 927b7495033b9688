"""Matrices in other forms than floats: what kernels take that need no decoded copy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from torch import Tensor

from vivace.platforms.blocks import INT8_ACTIVATION_KINDS

ACTIVATION_BLOCK = 32
"""neighboring activations of a row that share a scale"""


FP8_GROUP = 128
"""neighboring inputs of a float8 matrix that share a scale"""
PAIR = 2
"""inputs of floats and int8 that kernels take at once"""


@dataclass(frozen=True, slots=True)
class StoredBlocks:
    """`kind` is GGUF's name of the block type in lower case ("q4_1")."""

    kind: str
    data: np.ndarray
    """uint8[rows, bytes of a row], C-contiguous; may be a read-only view of the mapped file"""
    columns: int
    int8_activations: bool = False
    """activations become int8 for the product, ACTIVATION_BLOCK of a row with one scale"""

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.data.shape[:-1], self.columns)

    def cut(self, columns: slice) -> StoredBlocks:
        """These columns, a copy unless it is all of them. Raises ValueError where they do not
        begin and end with blocks."""
        start, stop, _ = columns.indices(self.columns)
        if (start, stop) == (0, self.columns):
            return self
        size, nbytes = GGML_QUANT_SIZES[GGMLQuantizationType[self.kind.upper()]]
        if start % size or stop % size:
            raise ValueError(
                f"columns {start} to {stop} are no whole {self.kind} blocks of {size} numbers"
            )
        data = self.data[:, start // size * nbytes : stop // size * nbytes]
        return replace(self, data=np.ascontiguousarray(data), columns=stop - start)

    def with_int8_activations(self) -> StoredBlocks:
        """Raises ValueError for a kind that is not one of INT8_ACTIVATION_KINDS."""
        if self.kind not in INT8_ACTIVATION_KINDS:
            raise ValueError(f"{self.kind} blocks are multiplied with floats only")
        return replace(self, int8_activations=True)

    def dequantize(self) -> Tensor:
        """float32[rows, columns], by the gguf package: the slow twin of every kernel."""
        numbers = dequantize(
            np.ascontiguousarray(self.data), GGMLQuantizationType[self.kind.upper()]
        )
        return torch.from_numpy(np.array(numbers, np.float32))


@dataclass(frozen=True, slots=True)
class Int8Rows:
    """int8 numbers with one scale for each row: number * scale is the weight."""

    numbers: Tensor
    """int8[rows, columns], contiguous"""
    scales: Tensor
    """float32[rows], contiguous"""
    int8_activations: bool = False
    """products are of int8 with activations that become int8 too, each row with its own scale"""

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.numbers.shape)

    def with_int8_activations(self) -> Int8Rows:
        return replace(self, int8_activations=True)

    def dequantize(self) -> Tensor:
        """float32[rows, columns]"""
        return self.numbers * self.scales[:, None]


@dataclass(frozen=True, slots=True)
class Fp8Groups:
    """float8 numbers (e4m3fn, no NaN) with a scale for FP8_GROUP neighboring columns of a row:
    number * scale is the weight. The last group of a row may be a shorter one."""

    numbers: Tensor
    """float8_e4m3fn[rows, columns], contiguous"""
    scales: Tensor
    """float32[rows, groups], contiguous"""

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.numbers.shape)

    def dequantize(self) -> Tensor:
        """float32[rows, columns]"""
        scales = self.scales.repeat_interleave(FP8_GROUP, 1)[:, : self.numbers.shape[1]]
        return self.numbers.float() * scales


Packable = Tensor | StoredBlocks | Int8Rows | Fp8Groups
"""a matrix that can be packed for products"""


def int8_rows(weight: Tensor) -> Int8Rows:
    """weight[rows, columns] of any float type to the nearest int8; the largest of a row is 127."""
    numbers = weight.float()
    scales = numbers.abs().amax(1).clamp_min(1e-10) / 127
    rounded = (numbers / scales[:, None]).round_().clamp_(-127, 127)
    return Int8Rows(rounded.to(torch.int8), scales)


def concat_int8(pieces: Sequence[Int8Rows]) -> Int8Rows:
    """One below the other"""
    numbers = torch.cat([piece.numbers for piece in pieces])
    return Int8Rows(
        numbers, torch.cat([piece.scales for piece in pieces]), pieces[0].int8_activations
    )


def concat_fp8(pieces: Sequence[Fp8Groups]) -> Fp8Groups:
    """One below the other"""
    numbers = torch.cat([piece.numbers.view(torch.uint8) for piece in pieces])
    scales = torch.cat([piece.scales for piece in pieces])
    return Fp8Groups(numbers.view(torch.float8_e4m3fn), scales)


def columns_per_block(piece: Packable) -> int:
    """Neighboring columns that cannot be parted: those of a block, or what a kernel takes at
    once."""
    if isinstance(piece, StoredBlocks):
        return GGML_QUANT_SIZES[GGMLQuantizationType[piece.kind.upper()]][0]
    return FP8_GROUP if isinstance(piece, Fp8Groups) else PAIR


def cut_columns(piece: Packable, columns: slice) -> Packable:
    """Whole blocks of columns, a copy."""
    match piece:
        case StoredBlocks():
            return piece.cut(columns)
        case Int8Rows():
            return replace(piece, numbers=piece.numbers[:, columns].contiguous())
        case Fp8Groups():
            groups = slice(columns.start // FP8_GROUP, -(-columns.stop // FP8_GROUP))
            return Fp8Groups(
                piece.numbers[:, columns].contiguous(), piece.scales[:, groups].contiguous()
            )
    return piece[:, columns].contiguous()
