"""The gated feed-forward block by native kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from vivace.platforms.cpu.native import Kernels
from vivace.platforms.cpu.native_checks import matrix, optional, require, sizes
from vivace.platforms.cpu.native_linear import (
    NARROW,
    NARROW_BLOCK,
    NativeLinears,
    PackedWeight,
    narrow_bytes,
    wants_narrow,
)
from vivace.platforms.ops.linear import Operands
from vivace.platforms.ops.mlp import ACTIVATIONS, gated_mlp
from vivace.platforms.ops.table import Ops

GATED, LINEAR = "q" * 10, "q" * 10


class NativeMLP:
    """`gated_mlp` of one op table: where both layers are multiplied with int8, two kernels do it
    all (kernels/gated_narrow.inc); elsewhere it is put together from `ops`. The results have the
    same bits."""

    def __init__(self, kernels: Kernels, linears: NativeLinears, ops: Ops) -> None:
        self._kernels = kernels
        self._linears = linears
        self._composed = gated_mlp(ops)
        self._gated = {kind: kernels.operation(f"gated_{kind}", GATED) for kind in NARROW}
        self._linear = {kind: kernels.operation(f"linear_{kind}", LINEAR) for kind in NARROW}

    def __call__(self, x: Tensor, gate_up: Operands, down: Operands, activation: str) -> Tensor:
        """x[T, hidden] float32 -> [T, hidden]"""
        if not fusable(gate_up.weight, down.weight):
            return self._composed(x, gate_up, down, activation)
        weight: PackedWeight = down.weight
        require("gated_mlp", gate_up.weight.outputs == 2 * weight.inputs, "layers do not fit")
        inner = self._inner(x, gate_up, ACTIVATIONS.index(activation))
        (part,) = weight.parts
        result = self._kernels.empty(x.shape[0], weight.outputs)
        self._linear[part.kind](
            x.shape[0],
            0,
            0,
            part.data.data_ptr(),
            optional("gated_mlp", "bias", down.bias, weight.outputs),
            result.data_ptr(),
            result.stride(0),
            part.columns,
            weight.inputs,
            inner.data_ptr(),
        )
        return result

    def _inner(self, x: Tensor, gate_up: Operands, activation: int) -> Tensor:
        """act(gate(x)) * up(x) in int8"""
        (rows, _), weight = sizes("gated_mlp", "x", x), gate_up.weight
        address, stride = matrix("gated_mlp", "x", x, weight.inputs, rows)
        (part,) = weight.parts
        columns = weight.outputs // 2
        narrow = self._linears.narrowed(x) if wants_narrow(weight, rows) else None
        inner = self._kernels.empty(rows * narrow_bytes(columns), dtype=torch.uint8)
        self._gated[part.kind](
            rows,
            address,
            stride,
            part.data.data_ptr(),
            optional("gated_mlp", "bias", gate_up.bias, weight.outputs),
            inner.data_ptr(),
            columns,
            weight.inputs,
            0 if narrow is None else narrow.data_ptr(),
            activation,
        )
        return inner


def fusable(gate_up: PackedWeight, down: PackedWeight) -> bool:
    """One kind each, and blocks of the inner activations that lie within the panels."""
    kinds = [part.kind for weight in (gate_up, down) for part in weight.parts]
    return len(kinds) == 2 and all(kind in NARROW for kind in kinds) and whole(gate_up.outputs)


def whole(outputs: int) -> bool:
    return outputs % (2 * NARROW_BLOCK) == 0
