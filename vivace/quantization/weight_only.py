"""AWQ's and GPTQ's checkpoints: a few bits for each weight, a scale and a zero point for a group of
neighboring inputs: weight = (number - zero) * scale.

Where the device reads blocks, four-bit weights become GGUF's: q4_0 where all zero points are 8,
which is exact; otherwise q4_1, whose minimum (zero * scale) is rounded to float16. Elsewhere, and
where groups are no whole blocks or scales no numbers of float16, they are decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vivace.checkpoint.weights import CheckpointError
from vivace.platforms.ops.stored import StoredBlocks
from vivace.platforms.ops.table import Activation
from vivace.quantization.description import AwqCheckpoint, GptqCheckpoint
from vivace.quantization.method import (
    BIAS,
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

QWEIGHT, QZEROS, SCALES, ORDER = "qweight", "qzeros", "scales", "g_idx"
INT32 = (torch.int32,)
WORD = 32
"""bits"""
AWQ_COLUMNS = (0, 2, 4, 6, 1, 3, 5, 7)
"""the output channel of each half byte of a word, from the lowest"""
BLOCK = 32
"""numbers of a block of q4_0 and q4_1"""
CORRECT_ONE = "correct quantization_config, or fetch the checkpoint again"


@dataclass(frozen=True, slots=True)
class GroupedNumbers:
    """A matrix of few bits, transposed as its weight is used."""

    numbers: Tensor
    """uint8[rows, columns]"""
    zeros: Tensor
    """int16[rows, groups]"""
    scales: Tensor
    """[rows, groups] of a float type"""
    groups: Tensor
    """int64[columns]: which group a column is in"""
    bits: int

    def in_order(self, rows: Tensor | None) -> GroupedNumbers:
        """With rows[i] in the place of row i"""
        if rows is None:
            return self
        numbers, zeros, scales = (one[rows] for one in (self.numbers, self.zeros, self.scales))
        return GroupedNumbers(numbers, zeros, scales, self.groups, self.bits)

    def decode(self) -> Tensor:
        """float32[rows, columns]"""
        groups = self.groups
        centered = self.numbers.float() - self.zeros.float()[:, groups]
        return centered.mul_(self.scales.float()[:, groups])

    def blocks(self) -> StoredBlocks | None:
        """None where blocks cannot stand for it."""
        rows, columns = self.numbers.shape
        halves_of_scales = self.scales.half()
        exact = torch.equal(halves_of_scales.to(self.scales.dtype), self.scales)
        if self.bits > 4 or columns % BLOCK or not exact:
            return None
        per_block = self.groups.view(-1, BLOCK)
        if not bool((per_block == per_block[:, :1]).all()):
            return None
        scales, zeros = (x[:, per_block[:, 0]] for x in (halves_of_scales, self.zeros))
        halves = self.numbers.view(rows, -1, 2, BLOCK // 2)
        packed = halves[:, :, 0] | (halves[:, :, 1] << 4)
        header = [scales]
        symmetric = bool((zeros == 8).all())
        if not symmetric:
            header.append((zeros.float() * scales.float()).neg_().half())
        if not all(bool(part.isfinite().all()) for part in header):
            return None
        fields = [part.unsqueeze(-1).contiguous().view(torch.uint8) for part in header]
        data = torch.cat([*fields, packed], -1).flatten(1)
        return StoredBlocks("q4_0" if symmetric else "q4_1", np.ascontiguousarray(data), columns)


class WeightOnlyConfig:
    """Of AWQ and GPTQ; `read` knows the layout. `decode`: floats, whatever the device reads."""

    norm_biases = False

    def __init__(
        self,
        packer: WeightPacker,
        checkpoint: AwqCheckpoint | GptqCheckpoint,
        *,
        decode: bool = False,
    ) -> None:
        self._packer = packer
        self._skipped = checkpoint.skipped
        self._blocks = packer.blocks and not decode
        self._read: Callable[[LayerWeights, LocalPart], GroupedNumbers] = (
            AwqReader(checkpoint)
            if isinstance(checkpoint, AwqCheckpoint)
            else GptqReader(checkpoint)
        )

    def linear_method(self, layer: str, parts: Sequence[str]) -> LinearMethod:
        if any(skipped in part for part in parts for skipped in self._skipped):
            return PackedMethod(self._packer, read_floats)
        return PackedMethod(self._packer, self._read_packed, suffixes=SUFFIXES)

    def expert_method(self, layer: str, activation: Activation) -> ExpertMethod:
        return packed_experts(self._packer, self._read_packed, activation, suffixes=SUFFIXES)

    def take_matrix(self, weights: LayerWeights, part: LocalPart) -> Matrix:
        if any(skipped in part.name for skipped in self._skipped) or is_plain(weights, part):
            return read_floats(weights, part)
        return self._read(weights, part).decode()

    def _read_packed(self, weights: LayerWeights, part: LocalPart) -> Matrix:
        if is_plain(weights, part):
            return read_floats(weights, part)
        found = self._read(weights, part).in_order(weights.row_order(part))
        refuse_bias(weights, part)
        if not bool(found.scales.isfinite().all()):
            raise weights.fail(part, SCALES, "infinite or undefined scales")
        blocks = found.blocks() if self._blocks else None
        return found.decode() if blocks is None else blocks


def is_plain(weights: LayerWeights, part: LocalPart) -> bool:
    """A layer that was left alone without a word about it is floats."""
    return weights.has(part, WEIGHT) and not weights.has(part, QWEIGHT)


SUFFIXES: Collection[str] = (QWEIGHT, QZEROS, SCALES, ORDER, WEIGHT, BIAS)


def refuse_bias(weights: LayerWeights, part: LocalPart) -> None:
    """AutoGPTQ's older files have a bias for every layer, of zeros where the model has none."""
    if weights.shape.bias or weights.dimensions(part, BIAS) is None:
        return
    if bool(weights.take(part, BIAS, (part.size,), part.rows).any()):
        raise weights.fail(part, BIAS, "the model's configuration has none here", CORRECT_ONE)


class AwqReader:
    """qweight[in, out / 8], qzeros[groups, out / 8] in words of 32 bits, scales[groups, out]."""

    def __init__(self, checkpoint: AwqCheckpoint) -> None:
        self._group_size = checkpoint.group_size
        self._zero_points = checkpoint.zero_points

    def __call__(self, weights: LayerWeights, part: LocalPart) -> GroupedNumbers:
        inputs, columns = weights.shape.inputs, weights.shape.columns
        group = inputs_of_group(weights, part, self._group_size)
        groups, outputs = divide_groups(columns, inputs, group), divide(part.rows, part.size, 8)
        if groups is None or outputs is None:
            raise misfit(weights, part, f"groups of {group} inputs and words of 8 outputs")
        packed = weights.take(
            part, QWEIGHT, (inputs, part.size // 8), columns, outputs, dtypes=INT32
        )
        scales = weights.take(part, SCALES, (inputs // group, part.size), groups, part.rows)
        shifts = torch.tensor(AWQ_COLUMNS).argsort() * 4
        zeros = middle_zeros(scales)
        if self._zero_points or weights.dimensions(part, QZEROS) is not None:
            shape = (inputs // group, part.size // 8)
            words = weights.take(part, QZEROS, shape, groups, outputs, dtypes=INT32)
            zeros = unpack(words, shifts, 4).short().T.contiguous()
        return GroupedNumbers(
            unpack(packed, shifts, 4).T.contiguous(),
            zeros,
            scales.T.contiguous(),
            torch.arange(packed.shape[0]) // group,
            4,
        )


class GptqReader:
    """qweight[in / n, out], n inputs in a word; qzeros[groups, out / n]; scales[groups, out];
    g_idx[in]."""

    def __init__(self, checkpoint: GptqCheckpoint) -> None:
        self._checkpoint = checkpoint

    def __call__(self, weights: LayerWeights, part: LocalPart) -> GroupedNumbers:
        known, inputs, columns = self._checkpoint, weights.shape.inputs, weights.shape.columns
        bits, each = known.bits, WORD // known.bits
        group = inputs_of_group(weights, part, known.group_size)
        all_groups = inputs // group
        groups = slice(0, all_groups) if known.ordered else divide_groups(columns, inputs, group)
        words, outputs = divide(columns, inputs, each), divide(part.rows, part.size, each)
        if groups is None or words is None or outputs is None:
            raise misfit(weights, part, f"groups of {group} inputs and words of {each} numbers")
        packed = weights.take(
            part, QWEIGHT, (inputs // each, part.size), words, part.rows, dtypes=INT32
        )
        zeros = weights.take(
            part, QZEROS, (all_groups, part.size // each), groups, outputs, dtypes=INT32
        )
        scales = weights.take(part, SCALES, (all_groups, part.size), groups, part.rows)
        shifts = torch.arange(each) * bits
        zeros = self._zeros(weights, part, zeros, shifts)
        numbers = unpack(packed.T, shifts, bits)
        return GroupedNumbers(
            numbers.contiguous(),
            zeros,
            scales.T.contiguous(),
            self._groups(weights, part, numbers.shape[1], group, all_groups),
            bits,
        )

    def _zeros(
        self, weights: LayerWeights, part: LocalPart, words: Tensor, shifts: Tensor
    ) -> Tensor:
        """int16[rows, groups]. Symmetric ones are the middle, and tell by themselves in which
        version of the format they are: some files name the other one."""
        known, middle = self._checkpoint, 1 << self._checkpoint.bits - 1
        if known.symmetric:
            found = unpack(words, shifts, known.bits)
            if not bool((found == middle).all() or (found == middle - 1).all()):
                raise weights.fail(part, QZEROS, "zero points, sym has none", CORRECT_ONE)
            return torch.full_like(found.T, middle, dtype=torch.int16)
        added = add_to_each(words, known.zero_shift, known.bits)
        return unpack(added, shifts, known.bits).short().T.contiguous()

    def _groups(
        self, weights: LayerWeights, part: LocalPart, columns: int, group: int, count: int
    ) -> Tensor:
        unordered = torch.arange(columns) // group
        ordered = self._checkpoint.ordered
        if not ordered and weights.dimensions(part, ORDER) is None:
            return unordered
        shape, ours = (weights.shape.inputs,), weights.shape.columns
        found = weights.take(part, ORDER, shape, ours, dtypes=INT32).long()
        if not ordered:
            first = (ours.start or 0) // group
            if bool(found.any()) and not torch.equal(found - first, unordered):
                raise weights.fail(part, ORDER, "inputs are ordered, desc_act is not", CORRECT_ONE)
            return unordered
        if bool((found < 0).any()) or bool((found >= count).any()):
            raise weights.fail(part, ORDER, f"groups outside 0..{count - 1}")
        return found


def unpack(words: Tensor, shifts: Tensor, bits: int) -> Tensor:
    """int32[n, m] -> uint8[n, m * len(shifts)]: the numbers at these bits of each word"""
    numbers = (words.unsqueeze(-1) >> shifts.to(torch.int32)) & ((1 << bits) - 1)
    return numbers.to(torch.uint8).flatten(1)


def add_to_each(words: Tensor, number: int, bits: int) -> Tensor:
    """int32[n, m] words of numbers of `bits` -> the same with `number` added. Version 1 of the
    format took 1 from whole words, so a zero borrowed from its neighbor: this gives it back."""
    added = words.long() + number * sum(1 << shift for shift in range(0, WORD, bits))
    return added.to(torch.int32)


def middle_zeros(scales: Tensor) -> Tensor:
    return torch.full(scales.T.shape, 8, dtype=torch.int16)


def inputs_of_group(weights: LayerWeights, part: LocalPart, group_size: int) -> int:
    """Inputs that share a scale; raises CheckpointError where groups do not fill a row."""
    inputs = weights.shape.inputs
    group = inputs if group_size == -1 else group_size
    if inputs % group:
        raise weights.fail(
            part, SCALES, f"groups of {group} do not divide {inputs} inputs", CORRECT_ONE
        )
    return group


def divide(part: slice, size: int, unit: int) -> slice | None:
    """The range in units; None where it does not begin and end with one."""
    start, stop, _ = part.indices(size)
    if size % unit or start % unit or stop % unit:
        return None
    return slice(start // unit, stop // unit)


def divide_groups(columns: slice, inputs: int, group: int) -> slice | None:
    """One group of all inputs is every rank's."""
    return slice(0, 1) if group == inputs else divide(columns, inputs, group)


def misfit(weights: LayerWeights, part: LocalPart, units: str) -> CheckpointError:
    reason = f"the part of it that is wanted does not begin and end with {units}"
    return weights.fail(part, QWEIGHT, reason, weights.shape.cut_advice)
