"""Weights as int8 with one scale for each output channel: made while loading, or as stored by
compressed-tensors and llm-compressor ("w8a8_int8")."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from vivace.checkpoint.weights import ALL, FLOATS, Weights
from vivace.platforms.ops.stored import Int8Rows, int8_rows
from vivace.platforms.ops.table import Activation
from vivace.quantization.method import (
    WEIGHT,
    ExpertMethod,
    LayerWeights,
    LinearShape,
    LocalPart,
    Matrix,
)
from vivace.quantization.packed import (
    PackedMethod,
    Quantize,
    WeightPacker,
    keep,
)
from vivace.quantization.packed_experts import packed_experts
from vivace.quantization.plain import HEAD, read_floats, read_stored

SCALE = "weight_scale"
SUFFIXES = (WEIGHT, SCALE)
SCALE_SUFFIX = "_scale"
SCHEMES = {"w8a8_int8": True, "w8a16": False}
"""--quantization -> activations become int8 too"""
OF_INT8_CHECKPOINTS = "w8a8_int8"


class Int8Config:
    """`scheme`: one of SCHEMES, or None: int8 of the checkpoint becomes floats. `online`: what is
    not int8 yet becomes it; otherwise a layer that the checkpoint left alone stays as it is. The
    head is never quantized here, nor what it reads: its error decides tokens."""

    norm_biases = False

    def __init__(self, packer: WeightPacker, scheme: str | None, *, online: bool) -> None:
        self._packer = packer
        self._scheme = scheme
        self._online = online

    def linear_method(self, layer: str, parts: Sequence[str]) -> PackedMethod:
        return PackedMethod(self._packer, *self._forms(layer), SUFFIXES)

    def expert_method(self, layer: str, activation: Activation) -> ExpertMethod:
        read, quantize = self._forms(layer)
        return packed_experts(self._packer, read, activation, quantize, SUFFIXES)

    def _forms(self, layer: str) -> tuple[Callable[[LayerWeights, LocalPart], Matrix], Quantize]:
        """(how a part is read, what is packed)"""
        if self._scheme is None:
            return read_int8_decoded, keep
        quantize = Int8(int8_activations=SCHEMES[self._scheme], decode=not self._packer.blocks)
        return self._quantize if self._online and layer != HEAD else self.take_matrix, quantize

    def take_matrix(self, weights: LayerWeights, part: LocalPart) -> Matrix:
        if self._scheme is None:
            return read_int8_decoded(weights, part)
        if weights.dtype(part, WEIGHT) is torch.int8:
            return read_int8(weights, part)
        return (read_stored if self._packer.blocks else read_floats)(weights, part)

    def _quantize(self, weights: LayerWeights, part: LocalPart) -> Int8Rows:
        """Whole rows are read, so that their scales are the same however ranks divide them."""
        whole = LayerWeights(weights.source, replace(weights.shape, columns=ALL))
        found = self.take_matrix(whole, part)
        if not isinstance(found, Int8Rows):
            found = int8_rows(found if isinstance(found, Tensor) else found.dequantize())
        return replace(found, numbers=found.numbers[:, weights.shape.columns].contiguous())


def read_int8(weights: LayerWeights, part: LocalPart) -> Int8Rows:
    """`x.weight` of int8 and `x.weight_scale`, one float for each row."""
    numbers = weights.take_matrix(part, dtypes=(torch.int8,))
    return Int8Rows(numbers.contiguous(), read_scales(weights, part))


def read_int8_decoded(weights: LayerWeights, part: LocalPart) -> Tensor:
    if weights.dtype(part, WEIGHT) is torch.int8:
        return read_int8(weights, part).dequantize()
    return read_floats(weights, part)


def read_scales(weights: LayerWeights, part: LocalPart, suffix: str = SCALE) -> Tensor:
    """float32[this rank's rows], stored as [rows] or [rows, 1]"""
    shape = (part.size,) if weights.dimensions(part, suffix) == 1 else (part.size, 1)
    scales = weights.take(part, suffix, shape, part.rows).float().flatten()
    if not bool(scales.isfinite().all()):
        raise weights.fail(part, suffix, "infinite or undefined scales")
    return scales


class Int8AsFloats:
    """A checkpoint whose int8 matrices are decoded as they are taken: for code of others."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self.tied = weights.tied
        self.take_stored = self.take

    def has(self, name: str) -> bool:
        return self._weights.has(name)

    def names(self) -> Iterable[str] | None:
        found = self._weights.names()
        if found is None:
            return None
        scales = {name + SCALE_SUFFIX for name in found if self._is_int8(name)}
        return [name for name in found if name not in scales]

    def shape(self, name: str) -> tuple[int, ...]:
        return self._weights.shape(name)

    def dtype(self, name: str) -> torch.dtype | None:
        return torch.float32 if self._is_int8(name) else self._weights.dtype(name)

    def label(self, name: str) -> str:
        return self._weights.label(name)

    def take(
        self,
        name: str,
        shape: tuple[int, ...],
        rows: slice = ALL,
        columns: slice = ALL,
        *,
        depth: slice = ALL,
        dtypes: Collection[torch.dtype] = FLOATS,
    ) -> Tensor:
        if not self._is_int8(name) or len(shape) != 2:
            return self._weights.take(name, shape, rows, columns, depth=depth, dtypes=dtypes)
        part = LocalPart(name.removesuffix(f".{WEIGHT}"), shape[0], rows)
        return read_int8(
            LayerWeights(self._weights, LinearShape((part,), shape[1], columns)), part
        ).dequantize()

    def _is_int8(self, name: str) -> bool:
        return name.endswith(f".{WEIGHT}") and self._weights.dtype(name) is torch.int8


class Int8:
    """What is packed of a layer that has int8 rows; one that the checkpoint left alone stays as it
    is.

    `int8_activations`: activations become int8 too (W8A8), otherwise they stay floats (W8A16).
    `decode`: the device has no product of floats with int8, so W8A16 weights become floats again.
    """

    def __init__(self, *, int8_activations: bool, decode: bool = False) -> None:
        self._int8_activations = int8_activations
        self._decode = decode and not int8_activations

    def __call__(self, pieces: Sequence[Matrix]) -> Sequence[Matrix]:
        stored = any(isinstance(piece, Int8Rows) for piece in pieces)
        return [self._rows(piece) for piece in pieces] if stored else pieces

    def _rows(self, piece: Matrix) -> Matrix:
        """Of parts of one layer some may be floats."""
        if not isinstance(piece, Int8Rows):
            piece = int8_rows(piece if isinstance(piece, Tensor) else piece.dequantize())
        return (
            piece.dequantize()
            if self._decode
            else replace(piece, int8_activations=self._int8_activations)
        )
