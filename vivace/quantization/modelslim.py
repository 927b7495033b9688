"""ModelSlim's checkpoints ("AscendV1"): int8 and int4 weights; activations with a scale of each
token (dynamic) or with one that was measured beforehand (static_int8.py). Source: msmodelslim 26.1,
docs/.../quantization_formats/ascendv1.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from vivace.checkpoint.errors import SourceError
from vivace.platforms.ops.stored import Int8Rows
from vivace.platforms.ops.table import Activation
from vivace.quantization.description import FLOAT, ModelSlimCheckpoint
from vivace.quantization.grouped import GroupedExperts
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
from vivace.quantization.packed import PackedMethod, WeightPacker
from vivace.quantization.packed_experts import packed_experts
from vivace.quantization.plain import read_floats
from vivace.quantization.static_int8 import (
    INT8,
    OFFSET,
    SCALE,
    STATIC,
    StaticInt8Method,
    StaticInt8Product,
    read_static,
)

SCALE_BIAS = "scale_bias"
CHANNEL = (WEIGHT, SCALE, OFFSET)
STATIC_TYPE = "W8A8"


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
        """Static int8 is of all experts of a layer or of none."""
        types = {name: kind for name, kind in self._types.items() if name.startswith(f"{layer}.")}
        static = [name for name, kind in types.items() if kind == STATIC_TYPE]
        others = [name for name, kind in types.items() if kind != STATIC_TYPE]
        if not static:
            suffixes = (*STATIC, SCALE_BIAS)
            return packed_experts(self._packer, self._read_expert, activation, suffixes=suffixes)
        if others:
            raise SourceError(
                f"quant_model_description.json: {static[0]} is {STATIC_TYPE} and {others[0]} is "
                f"{types[others[0]]}; the experts of a layer need one type"
            )
        return GroupedExperts(self._packer, activation, StaticInt8Product(self._packer))

    def take_matrix(self, weights: LayerWeights, part: LocalPart) -> Matrix:
        if self._type([part.name]) == STATIC_TYPE:
            static = read_static(weights, part)
            return static.rows.dequantize() / static.scale
        found = self._read_expert(weights, part)
        return found if isinstance(found, Tensor) else found.dequantize()

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
    order = weights.row_order(part)
    numbers = numbers if order is None else numbers[order]
    return Int8Rows(numbers.contiguous(), read_scales(weights, part, SCALE))


def refuse_offsets(weights: LayerWeights, part: LocalPart) -> None:
    if weights.dimensions(part, OFFSET) is None:
        return
    shape = (part.size, 1) if weights.dimensions(part, OFFSET) == 2 else (part.size,)
    if bool(weights.take(part, OFFSET, shape, part.rows).any()):
        raise weights.fail(
            part, OFFSET, "weights with zero points are not supported yet", "use one without them"
        )
