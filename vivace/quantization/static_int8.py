"""ModelSlim's static int8: activations become int8 by a scale and an offset that were measured
beforehand. From x in floats: q = clamp(round(x / input_scale + input_offset), -128, 127), and
y = (q @ weight^T + quant_bias) * deq_scale. The quant_bias takes the offset back and holds the
layer's bias. Source: msmodelslim 26.1, docs/.../quantization_formats/ascendv1.md.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vivace.platforms.attention import AttendingStep
from vivace.platforms.ops.linear import Operands
from vivace.platforms.ops.moe import Routes
from vivace.platforms.ops.stored import Int8Rows
from vivace.platforms.ops.table import GroupedLinearOp
from vivace.quantization.grouped import GroupedOperands
from vivace.quantization.method import WEIGHT, LayerWeights, LocalPart, Matrix
from vivace.quantization.packed import WeightPacker

SCALE, OFFSET = "weight_scale", "weight_offset"
INPUT_SCALE, INPUT_OFFSET, DEQ_SCALE, QUANT_BIAS = (
    "input_scale", "input_offset", "deq_scale", "quant_bias",
)  # fmt: skip
STATIC = (WEIGHT, INPUT_SCALE, INPUT_OFFSET, DEQ_SCALE, QUANT_BIAS, SCALE, OFFSET)
"""the scales of the weight are in deq_scale, and stored by some versions besides"""
TINY = torch.finfo(torch.float32).tiny
INT8, INT32, INT64 = (torch.int8,), (torch.int32,), torch.int64


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


def read_parts(weights: LayerWeights) -> list[StaticInt8]:
    """All parts of a layer, which have the same activations."""
    shape = weights.shape
    parts = [read_static(weights, part) for part in shape.parts]
    for part, found in zip(shape.parts, parts, strict=True):
        if (found.scale, found.offset) != (parts[0].scale, parts[0].offset):
            raise weights.fail(
                part, INPUT_SCALE, f"other activations than those of {shape.parts[0].name}"
            )
    return parts


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
        shape, parts = weights.shape, read_parts(weights)
        first = parts[0]
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


class StaticInt8Product:
    """Of experts, which have activations of their own each."""

    def __init__(self, packer: WeightPacker) -> None:
        self._packer, self._ops = packer, packer.ops

    def pack(self, experts: Sequence[LayerWeights]) -> GroupedOperands:
        device, shape = self._packer.device, experts[0].shape
        read = [read_parts(one) for one in experts]
        pieces = [[self._form(part.rows) for part in parts] for parts in read]
        bias = torch.stack([torch.cat([part.bias for part in parts]) for parts in read])
        scales, offsets = (
            torch.tensor(numbers, dtype=torch.float32, device=device)
            for numbers in zip(*((parts[0].scale, parts[0].offset) for parts in read), strict=True)
        )
        return GroupedOperands(
            self._packer.pack_experts(pieces, shape.segments),
            bias.to(device) if shape.adds_bias else None,
            scales,
            offsets,
        )

    def _form(self, rows: Int8Rows) -> Matrix:
        return rows if self._packer.blocks else rows.dequantize()

    def multiply(
        self, product: GroupedLinearOp, x: Tensor, operands: GroupedOperands, routes: Routes
    ) -> Tensor:
        assert operands.scales is not None and operands.offsets is not None
        numbers = self._ops.quantize_experts(x, operands.scales, operands.offsets, routes)
        if numbers.dtype is not torch.float32:
            numbers = numbers.float()
        result = product(numbers, operands.weight, routes, operands.bias)
        return result if result.dtype is x.dtype else result.to(x.dtype)

    def suffixes(self) -> Collection[str]:
        return STATIC
