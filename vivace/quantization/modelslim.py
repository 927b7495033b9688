"""ModelSlim's checkpoints ("AscendV1"): int8 and int4 weights; activations with a scale of each
token (dynamic) or with one that was measured beforehand (static).

Static, from x in floats: q = clamp(round(x / input_scale + input_offset), -128, 127), and
y = (q @ weight^T + quant_bias) * deq_scale. The quant_bias takes the offset back and holds the
layer's bias. Source: msmodelslim 26.1, docs/.../quantization_formats/ascendv1.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vivace.checkpoint.errors import SourceError
from vivace.platforms.attention import AttendingStep
from vivace.platforms.ops.linear import Operands
from vivace.platforms.ops.stored import Int8Rows
from vivace.platforms.ops.table import Activation
from vivace.quantization.description import FLOAT, ModelSlimCheckpoint
from vivace.quantization.int8 import Int8, read_scales
from vivace.quantization.method import (
    OTHER_TP,
    WEIGHT,
    ExpertMethod,
    LayerWeights,
    LinearMethod,
    LocalPart,
    Matrix,
)
from vivace.quantization.packed import PackedExperts, PackedMethod, WeightPacker
from vivace.quantization.plain import read_floats

SCALE, OFFSET, SCALE_BIAS = "weight_scale", "weight_offset", "scale_bias"
INPUT_SCALE, INPUT_OFFSET, DEQ_SCALE, QUANT_BIAS = (
    "input_scale", "input_offset", "deq_scale", "quant_bias",
)  # fmt: skip
CHANNEL = (WEIGHT, SCALE, OFFSET)
STATIC = (WEIGHT, INPUT_SCALE, INPUT_OFFSET, DEQ_SCALE, QUANT_BIAS, SCALE, OFFSET)
"""the scales of the weight are in deq_scale, and stored by some versions besides"""
TINY = torch.finfo(torch.float32).tiny
INT8, INT32, INT64 = (torch.int8,), (torch.int32,), torch.int64


class ModelSlimConfig:
    """The type of every layer is in the description; parts of one layer have the same."""

    def __init__(self, packer: WeightPacker, checkpoint: ModelSlimCheckpoint) -> None:
        self._packer = packer
        self._types = checkpoint.types
        self.norm_biases = checkpoint.norm_biases

    def linear_method(self, layer: str, parts: Sequence[str]) -> LinearMethod:
        match self._type(parts):
            case "W8A8":
                return StaticInt8Method(self._packer)
            case "W8A8_DYNAMIC":
                return self._by_channel(read_channels, int8_activations=True)
            case "W4A8_DYNAMIC":
                return self._by_channel(read_int4_channels, int8_activations=True)
            case "W8A16":
                return self._by_channel(read_channels, int8_activations=False)
        return PackedMethod(self._packer, read_floats)

    def _by_channel(
        self, read: Callable[[LayerWeights, LocalPart], Matrix], *, int8_activations: bool
    ) -> PackedMethod:
        quantize = Int8(int8_activations=int8_activations, decode=not self._packer.blocks)
        return PackedMethod(self._packer, read, quantize, (*CHANNEL, SCALE_BIAS))

    def expert_method(self, layer: str, activation: Activation) -> ExpertMethod:
        """Static int8 is decoded: scales of activations differ from expert to expert."""
        suffixes = (*STATIC, SCALE_BIAS)
        return PackedExperts(self._packer, self._read_expert, activation, suffixes=suffixes)

    def take_matrix(self, weights: LayerWeights, part: LocalPart) -> Matrix:
        return read_floats(weights, part)

    def _type(self, parts: Sequence[str]) -> str:
        types = {part: self._types.get(f"{part}.{WEIGHT}", FLOAT) for part in parts}
        if len(set(types.values())) > 1:
            told = ", ".join(f"{part} is {kind}" for part, kind in types.items())
            raise SourceError(
                f"quant_model_description.json: {told}; they are one product and need one type"
            )
        return next(iter(types.values()))

    def _read_expert(self, weights: LayerWeights, part: LocalPart) -> Matrix:
        match self._type([part.name]):
            case "W8A8_DYNAMIC":
                return read_channels(weights, part).with_int8_activations()
            case "W4A8_DYNAMIC":
                return read_int4_channels(weights, part).with_int8_activations()
            case "W8A16":
                rows = read_channels(weights, part)
                return rows if self._packer.blocks else rows.dequantize()
            case "W8A8":
                static = read_static(weights, part)
                return static.rows.dequantize() / static.scale
        return read_floats(weights, part)


def read_channels(weights: LayerWeights, part: LocalPart) -> Int8Rows:
    refuse_offsets(weights, part)
    return Int8Rows(weights.take_matrix(part, dtypes=INT8), read_scales(weights, part, SCALE))


def read_int4_channels(weights: LayerWeights, part: LocalPart) -> Int8Rows:
    """Two neighboring rows in a byte, the lower one in its lower half. `scale_bias` is for a kernel
    of the device that splits activations; the product has no need of it."""
    refuse_offsets(weights, part)
    first, stop, _ = part.rows.indices(part.size)
    if part.size % 2 or first % 2 or stop % 2:
        raise weights.fail(part, WEIGHT, f"two rows are in a byte, not {first} to {stop}", OTHER_TP)
    shape = (part.size // 2, weights.shape.inputs)
    rows = slice(first // 2, stop // 2)
    packed = weights.take(part, WEIGHT, shape, rows, weights.shape.columns, dtypes=INT8)
    numbers = torch.stack(((packed << 4) >> 4, packed >> 4), 1).flatten(0, 1)
    return Int8Rows(numbers.contiguous(), read_scales(weights, part, SCALE))


def refuse_offsets(weights: LayerWeights, part: LocalPart) -> None:
    if weights.dimensions(part, OFFSET) is None:
        return
    shape = (part.size, 1) if weights.dimensions(part, OFFSET) == 2 else (part.size,)
    if bool(weights.take(part, OFFSET, shape, part.rows).any()):
        raise weights.fail(
            part, OFFSET, "weights with zero points are not supported yet", "use one without them"
        )


@dataclass(frozen=True, slots=True)
class StaticInt8:
    """One part. `rows.scales` are deq_scale: of activations times of weights."""

    rows: Int8Rows
    bias: Tensor
    """float32[rows]: quant_bias * deq_scale"""
    scale: float
    offset: float


def read_static(weights: LayerWeights, part: LocalPart) -> StaticInt8:
    scale, offset = (read_number(weights, part, name) for name in (INPUT_SCALE, INPUT_OFFSET))
    if scale == 0:
        raise weights.fail(part, INPUT_SCALE, "it is zero")
    scales = read_deq_scale(weights, part)
    bias = weights.take(part, QUANT_BIAS, (part.size,), part.rows, dtypes=INT32)
    numbers = weights.take_matrix(part, dtypes=INT8)
    return StaticInt8(Int8Rows(numbers, scales), bias.float() * scales, scale, offset)


def read_number(weights: LayerWeights, part: LocalPart, suffix: str) -> float:
    """Stored as [1]; as int8 by some versions"""
    found = float(weights.take(part, suffix, (1,), dtypes=(*FLOATS_AND_INT8,)))
    if found != found or abs(found) == float("inf"):
        raise weights.fail(part, suffix, "infinite or undefined")
    return found


FLOATS_AND_INT8 = (torch.float32, torch.bfloat16, torch.float16, torch.int8)


def read_deq_scale(weights: LayerWeights, part: LocalPart) -> Tensor:
    """float32[this rank's rows]; where the model is float16, stored as the bits of a float32 in an
    int64"""
    found = weights.take(part, DEQ_SCALE, (part.size,), part.rows, dtypes=(torch.float32, INT64))
    scales = found
    if found.dtype is INT64:
        scales = found.to(torch.int32).view(torch.float32)
        whole, denormal = (found >= -(1 << 31)) & (found < 1 << 32), scales.abs() < TINY
        if not bool((whole & (~denormal | (found == 0))).all()):
            raise weights.fail(part, DEQ_SCALE, "not the bits of float32 scales")
    if not bool(scales.isfinite().all()):
        raise weights.fail(part, DEQ_SCALE, "infinite or undefined scales")
    return scales


class StaticInt8Method:
    """The whole numbers of x times those of the weight, by the product of floats with int8: up to
    1,024 inputs it is exact, beyond it rounds like a sum in float32."""

    fusible = False

    def __init__(self, packer: WeightPacker) -> None:
        self._packer = packer
        self._ops = packer.ops
        self._operands = Operands(None, None)
        self._scale, self._offset = 1.0, 0.0
        self._multiply = packer.product(None)

    def load(self, weights: LayerWeights) -> None:
        self._multiply = self._packer.product(weights.shape.segments)
        self._operands, self._scale, self._offset = self._pack(weights)

    def update(self, weights: LayerWeights) -> None:
        """Raises ValueError for other scales of activations: captured steps have the old ones."""
        operands, scale, offset = self._pack(weights)
        if (scale, offset) != (self._scale, self._offset):
            raise ValueError("other input_scale and input_offset: load the model again")
        self._packer.update(self._operands, operands)

    def _pack(self, weights: LayerWeights) -> tuple[Operands, float, float]:
        shape = weights.shape
        parts = [read_static(weights, part) for part in shape.parts]
        first = parts[0]
        for part, found in zip(shape.parts, parts, strict=True):
            if (found.scale, found.offset) != (first.scale, first.offset):
                raise weights.fail(
                    part, INPUT_SCALE, f"other activations than those of {shape.parts[0].name}"
                )
        rows = [part.rows if self._packer.blocks else part.rows.dequantize() for part in parts]
        bias = torch.cat([part.bias for part in parts]).to(self._packer.device)
        packed = self._packer.pack_placed(rows, shape.segments)
        return Operands(packed, bias if shape.adds_bias else None), first.scale, first.offset

    def apply(self, x: Tensor, step: AttendingStep | None) -> Tensor:
        numbers = self._ops.quantize_static(x, self._scale, self._offset)
        if numbers.dtype is not torch.float32:
            numbers = numbers.float()
        result = self._multiply(numbers, self._operands)
        return result if result.dtype is x.dtype else result.to(x.dtype)

    def suffixes(self) -> Collection[str]:
        return STATIC
