"""Linear layers and the gated MLP by native kernels: weights packed once, in panels of 16 columns.

A panel keeps the bits of the checkpoint (floats, or GGUF's blocks); kernels decode them on the way
through the registers. Formats: kernels/formats.inc.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from torch import Tensor

from vivace.platforms.blocks import INT8_ACTIVATION_KINDS
from vivace.platforms.cpu.huge_pages import HugePages
from vivace.platforms.cpu.native import (
    I64,
    Kernels,
    Words,
    block,
    matrix,
    optional,
    require,
    sizes,
    target,
)
from vivace.platforms.ops.linear import Operands
from vivace.platforms.ops.stored import (
    ACTIVATION_BLOCK,
    FP8_GROUP,
    Fp8Groups,
    Int8Rows,
    Packable,
    StoredBlocks,
    concat_fp8,
    concat_int8,
)
from vivace.platforms.ops.table import ACTIVATIONS, Ops, gated_mlp

PANEL = 16
"""output columns"""
BLOCKS = {
    "f32": (2, 8),
    "f16": (2, 4),
    "bf16": (2, 4),
    "q4_0": (32, 18),
    "q4_1": (32, 20),
    "q5_0": (32, 22),
    "q5_1": (32, 24),
    "q8_0": (32, 34),
    "q4_k": (256, 148),
    "q5_k": (256, 180),
    "q6_k": (256, 210),
    "mxfp4": (32, 17),
}
"""kind -> (numbers, bytes) of a packed block of one column"""
A8_BLOCKS = {f"{kind}_a8": BLOCKS[kind] for kind in INT8_ACTIVATION_KINDS}
"""the same for blocks that are multiplied with activations in int8"""
ACTIVATION_BLOCK_BYTES = 48
"""of ACTIVATION_BLOCK activations in int8 and their scales"""
FEW_ROWS = 1
"""so many are made int8 by every part of the product; more, once before it"""
INT8 = {"i8": (4, 2), "w8a8": (8, 4)}
"""kind -> (bytes before a column's numbers, its inputs are filled up to a multiple of this)"""
FP8, FP8_STEP = "fp8", 16
"""inputs are a multiple of it"""
MOST_INT8_INPUTS = 1 << 16
"""more could overflow a sum of 32 bits"""
FLOATS = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
PACK, LINEAR, EMBED, QUANTIZE_ROWS = "qqqqqq", "qqqqqqqqq", "qqqqqqqq", "qqqqq"
GATED = "q" * 10


@dataclass(frozen=True, slots=True)
class Panels:
    """Output columns `first`..`first + columns` of one layer."""

    kind: str
    data: Tensor
    """uint8[panels * bytes of a panel]"""
    first: int
    columns: int


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """One layer; more than one part where its tensors are of different types."""

    parts: tuple[Panels, ...]
    inputs: int
    outputs: int

    @property
    def nbytes(self) -> int:
        return sum(part.data.nbytes for part in self.parts)


class NativeLinears:
    """The pair `pack_linear` and `linear` of one op table."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels
        kinds = (*BLOCKS, *INT8, *A8_BLOCKS, FP8)
        self._pack = {kind: kernels.operation(f"pack_{kind}", PACK) for kind in kinds}
        self._linear: dict[str, Words] = {
            kind: kernels.operation(f"linear_{kind}", LINEAR + "q" * (kind in A8_BLOCKS))
            for kind in kinds
        }
        self._quantize_rows = kernels.operation("quantize_rows", QUANTIZE_ROWS)
        self._memory = HugePages()
        self._embed = {kind: kernels.operation(f"embed_{kind}", EMBED) for kind in BLOCKS}

    def pack(self, pieces: Sequence[Any]) -> PackedWeight:
        """Rows of `pieces`, one below the other. Neighbors of one kind become one product.
        A packed weight is returned as it is: a head may share the embedding's.

        Raises ValueError for a type or width that no kernel takes.
        """
        require("pack_linear", len(pieces) > 0, "no weight")
        if isinstance(pieces[0], PackedWeight):
            require("pack_linear", len(pieces) == 1, "a packed weight has no others beside it")
            return pieces[0]
        shapes = [tuple(piece.shape) for piece in pieces]
        require(
            "pack_linear",
            all(
                len(shape) == 2 and min(shape) > 0 and shape[1] == shapes[0][1] for shape in shapes
            ),
            f"weights of shapes {shapes} cannot stand one below the other",
        )
        parts, first = [], 0
        for kind, group in groupby(pieces, weight_kind):
            rows = concat_rows(list(group))
            count, inputs = rows.shape
            parts.append(self._pack_panels(kind, rows, first, inputs))
            first += count
        return PackedWeight(tuple(parts), pieces[0].shape[1], first)

    def _pack_panels(self, kind: str, rows: Packable, first: int, inputs: int) -> Panels:
        count, column = rows.shape[0], column_bytes(kind, inputs)
        data = self._memory.empty(-(-count // PANEL) * PANEL * column)
        pointer, row_bytes = row_memory(rows)
        scaled = isinstance(rows, Int8Rows | Fp8Groups)
        scales = rows.scales.data_ptr() if scaled else 0
        self._pack[kind](count, pointer, row_bytes, data.data_ptr(), inputs, scales)
        return Panels(kind, data, first, count)

    def update(self, kept: PackedWeight, new: PackedWeight) -> None:
        """`Ops.update_weight`"""
        require("update_weight", layout(kept) == layout(new), "the two are packed differently")
        for part, other in zip(kept.parts, new.parts, strict=True):
            part.data.copy_(other.data)

    def pack_embedding(self, weight: Tensor | StoredBlocks) -> PackedWeight:
        """[V, hidden] -> what `embedding` and `pack` take"""
        return self.pack([weight])

    def embedding(
        self,
        ids: Tensor,
        weight: PackedWeight,
        out: Tensor | None = None,
        *,
        first: int = 0,
        whole: int | None = None,
    ) -> Tensor:
        """ids[T] int64 -> [T, hidden] float32; an id that is not in the vocabulary gives NaN"""
        part, (rows,) = weight.parts[0], sizes("embedding", "ids", ids, 1)
        embed = self._embed.get(part.kind) if len(weight.parts) == 1 else None
        if embed is None:
            raise ValueError(f"embedding: {[part.kind for part in weight.parts]} has no rows")
        result = self._kernels.empty(rows, weight.inputs) if out is None else out
        embed(
            rows,
            block("embedding", "ids", ids, rows, dtype=I64),
            part.data.data_ptr(),
            block("embedding", "out", result, rows, weight.inputs),
            weight.outputs,
            weight.inputs,
            first,
            weight.outputs if whole is None else whole,
        )
        return result

    def linear(
        self, x: Tensor, weight: PackedWeight, bias: Tensor | None = None, out: Tensor | None = None
    ) -> Tensor:
        """x[T, in] float32, rows of any stride -> [T, out] float32"""
        source, stride = matrix("linear", "x", x, weight.inputs)
        rows, outputs = x.shape[0], weight.outputs
        result = self._kernels.empty(rows, outputs) if out is None else out
        to, step = target("linear", result, rows, outputs)
        added = optional("linear", "bias", bias, outputs)
        quantized = self.quantize_rows(x) if quantizes_rows(weight, rows) else None
        for part in weight.parts:
            self._linear[part.kind](
                rows,
                source,
                stride,
                part.data.data_ptr(),
                added and added + 4 * part.first,
                to + 4 * part.first,
                step,
                part.columns,
                weight.inputs,
                *(
                    (0 if quantized is None else quantized.data_ptr(),)
                    if part.kind in A8_BLOCKS
                    else ()
                ),
            )
        return result

    def quantize_rows(self, x: Tensor) -> Tensor:
        """x[T, in] float32 -> uint8: its int8 form and scales, as kernels/linear_int8.inc has
        them."""
        rows, inputs = sizes("quantize_rows", "x", x)
        require("quantize_rows", inputs % ACTIVATION_BLOCK == 0, f"{inputs} numbers in a row")
        address, stride = matrix("quantize_rows", "x", x, inputs, rows)
        found = self._kernels.empty(rows * quantized_bytes(inputs), dtype=torch.uint8)
        self._quantize_rows(rows, address, stride, found.data_ptr(), inputs)
        return found


def layout(weight: PackedWeight) -> tuple[object, ...]:
    parts = ((part.kind, part.first, part.columns) for part in weight.parts)
    return (weight.inputs, weight.outputs, *parts)


def quantized_bytes(inputs: int) -> int:
    """of one row in int8"""
    return inputs // ACTIVATION_BLOCK * ACTIVATION_BLOCK_BYTES


def quantizes_rows(weight: PackedWeight, rows: int) -> bool:
    """Whether activations are made int8 before the product, once for all its parts."""
    return rows > FEW_ROWS and any(part.kind in A8_BLOCKS for part in weight.parts)


def column_bytes(kind: str, inputs: int) -> int:
    """Bytes of one packed column; raises ValueError for a width that the kernel does not take."""
    if kind in INT8:
        header, step = INT8[kind]
        if inputs > MOST_INT8_INPUTS:
            raise ValueError(
                f"pack_linear: int8 weights of {inputs} inputs: at most {MOST_INT8_INPUTS}"
            )
        if kind == "i8" and inputs % step:
            raise ValueError(f"pack_linear: int8 weights of {inputs} inputs: no multiple of {step}")
        return header + -(-inputs // step) * step
    if kind == FP8:
        if inputs % FP8_STEP:
            raise ValueError(
                f"pack_linear: float8 weights of {inputs} inputs: no multiple of {FP8_STEP}"
            )
        return -(-inputs // FP8_GROUP) * 4 + inputs
    numbers, nbytes = A8_BLOCKS[kind] if kind in A8_BLOCKS else BLOCKS[kind]
    if inputs % numbers:
        raise ValueError(
            f"pack_linear: {kind} weights of {inputs} inputs: no multiple of {numbers}"
        )
    return inputs // numbers * nbytes


def weight_kind(piece: Packable) -> str:
    if isinstance(piece, Int8Rows):
        return "w8a8" if piece.int8_activations else "i8"
    if isinstance(piece, Fp8Groups):
        return FP8
    if isinstance(piece, StoredBlocks):
        if piece.kind not in BLOCKS:
            raise ValueError(f"pack_linear: no kernel reads {piece.kind} blocks")
        return f"{piece.kind}_a8" if piece.int8_activations else piece.kind
    if piece.dtype not in FLOATS:
        raise ValueError(f"pack_linear: no kernel takes weights of {piece.dtype}")
    return FLOATS[piece.dtype]


def concat_rows(pieces: Sequence[Packable]) -> Packable:
    if len(pieces) == 1:
        return pieces[0]
    tensors = [piece for piece in pieces if isinstance(piece, Tensor)]
    if tensors:
        return torch.cat(tensors)
    numbers = [piece for piece in pieces if isinstance(piece, Int8Rows)]
    if numbers:
        return concat_int8(numbers)
    fp8 = [piece for piece in pieces if isinstance(piece, Fp8Groups)]
    if fp8:
        return concat_fp8(fp8)
    blocks = [piece for piece in pieces if isinstance(piece, StoredBlocks)]
    data = np.concatenate([piece.data for piece in blocks])
    return StoredBlocks(blocks[0].kind, data, blocks[0].columns)


def row_memory(rows: Packable) -> tuple[int, int]:
    """(address, bytes from row to row)"""
    count, columns = rows.shape
    if isinstance(rows, Int8Rows):
        block("pack_linear", "scales", rows.scales, count)
        numbers = block("pack_linear", "numbers", rows.numbers, count, columns, dtype=torch.int8)
        return numbers, columns
    if isinstance(rows, Fp8Groups):
        block("pack_linear", "scales", rows.scales, count, -(-columns // FP8_GROUP))
        kind = torch.float8_e4m3fn
        return block("pack_linear", "numbers", rows.numbers, count, columns, dtype=kind), columns
    if isinstance(rows, StoredBlocks):
        size, nbytes = GGML_QUANT_SIZES[GGMLQuantizationType[rows.kind.upper()]]
        require(
            "pack_linear",
            rows.data.dtype == np.uint8
            and rows.data.shape == (count, columns // size * nbytes)
            and rows.data.flags.c_contiguous,
            f"{rows.kind} blocks of {rows.data.shape} bytes are not {columns} columns",
        )
        return rows.data.ctypes.data, rows.data.strides[0]
    address, stride = matrix("pack_linear", "weight", rows, columns, count, rows.dtype)
    return address, stride * rows.element_size()


def packable(kinds: Iterable[str]) -> bool:
    return all(kind in BLOCKS for kind in kinds)


class NativeMLP:
    """`gated_mlp` of one op table: where both layers are multiplied with int8, two kernels do it
    all (kernels/gated_int8.inc); elsewhere it is put together from `ops`. The results have the
    same bits."""

    def __init__(self, kernels: Kernels, linears: NativeLinears, ops: Ops) -> None:
        self._kernels = kernels
        self._linears = linears
        self._composed = gated_mlp(ops)
        self._gated = {kind: kernels.operation(f"gated_{kind}", GATED) for kind in A8_BLOCKS}
        self._linear = {
            kind: kernels.operation(f"linear_{kind}", LINEAR + "q") for kind in A8_BLOCKS
        }

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
        quantized = self._linears.quantize_rows(x) if quantizes_rows(weight, rows) else None
        inner = self._kernels.empty(rows * quantized_bytes(columns), dtype=torch.uint8)
        self._gated[part.kind](
            rows,
            address,
            stride,
            part.data.data_ptr(),
            optional("gated_mlp", "bias", gate_up.bias, weight.outputs),
            inner.data_ptr(),
            columns,
            weight.inputs,
            0 if quantized is None else quantized.data_ptr(),
            activation,
        )
        return inner


def fusable(gate_up: PackedWeight, down: PackedWeight) -> bool:
    """One kind each, and blocks of the inner activations that lie within the panels."""
    kinds = [part.kind for weight in (gate_up, down) for part in weight.parts]
    return len(kinds) == 2 and all(kind in A8_BLOCKS for kind in kinds) and whole(gate_up.outputs)


def whole(outputs: int) -> bool:
    return outputs % (2 * ACTIVATION_BLOCK) == 0
