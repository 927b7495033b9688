"""Norms, activations, rotation and sampling by native kernels: one pass over a row of float32."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from vivace.platforms.cpu.native import (
    F32,
    I64,
    Kernels,
    block,
    head_rows,
    indices,
    matrix,
    require,
    sizes,
    spread_heads,
    wrong,
)
from vivace.platforms.ops.elementwise import SwigluOai
from vivace.platforms.ops.sampling import Penalties, SamplingBatch, TokenMasks, TorchSampling


class NativeOps:
    """Ops of one row at a time, with the signatures of `platforms.ops.table`."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels, self._empty = kernels, kernels.empty
        self._rms_norm = kernels.operation("rms_norm", "q" * 9 + "dd")
        self._rotary = kernels.operation("rotary", "q" * 8)
        self._gated = {
            name: kernels.operation(name, "q" * 5)
            for name in ("silu_mul", "gelu_mul", "gelu_tanh_mul")
        }
        self._gated_rms_norm = kernels.operation("gated_rms_norm", "q" * 10 + "d")
        self._sigmoid_mul = kernels.operation("sigmoid_mul", "q" * 7)
        self._swigluoai = kernels.operation("swigluoai_mul", "q" * 5 + "dd")
        self._scale = kernels.operation("scale", "qqqd")
        self._scale_positions = kernels.operation("scale_positions", "q" * 6)
        self._soft_cap = kernels.operation("soft_cap", "qqqd")
        self._quantize_static = kernels.operation("quantize_static", "q" * 5 + "dd")
        self._add_bias = kernels.operation("add_bias", "q" * 4)

    def rms_norm(
        self,
        x: Tensor,
        weight: Tensor,
        eps: float,
        *,
        offset: float = 0.0,
        out: Tensor | None = None,
    ) -> Tensor:
        """x[T, n] or x[T, heads, n] -> contiguous, of x's shape"""
        shape, stride = x.shape, x.stride()
        if x.dtype is not F32 or len(shape) not in (2, 3) or stride[-1] != 1 or not x.is_cpu:
            raise wrong("rms_norm", "x", x, "float32 [T, n] or [T, heads, n] without gaps in n")
        heads, head_stride = (shape[1], stride[1]) if len(shape) == 3 else (1, 0)
        result = self._empty(*shape) if out is None else out
        self._rms_norm(
            shape[0],
            x.data_ptr(),
            stride[0],
            heads,
            head_stride,
            0,
            block("rms_norm", "weight", weight, shape[-1]),
            block("rms_norm", "out", result, *shape),
            shape[-1],
            eps,
            offset,
        )
        return result

    def add_rms_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, offset: float = 0.0
    ) -> tuple[Tensor, Tensor]:
        """x[T, n], residual[T, n] contiguous"""
        rows, columns = sizes("add_rms_norm", "x", x)
        address, stride = matrix("add_rms_norm", "x", x, columns, rows)
        result = self._empty(rows, columns)
        self._rms_norm(
            rows,
            address,
            stride,
            1,
            0,
            block("add_rms_norm", "residual", residual, rows, columns),
            block("add_rms_norm", "weight", weight, columns),
            result.data_ptr(),
            columns,
            eps,
            offset,
        )
        return result, residual

    def gated_rms_norm(self, x: Tensor, weight: Tensor, gate: Tensor, eps: float) -> Tensor:
        op = "gated_rms_norm"
        rows, heads, size = sizes(op, "x", x, 3)
        _, groups, width = sizes(op, "gate", gate, 3)
        require(op, groups * width == heads * size, f"{heads} heads of {size} in {groups} groups")
        address, stride, group_stride = spread_heads(op, "gate", gate, rows, groups, width)
        require(op, width % size == 0, f"{width} numbers of heads of {size}")
        result = self._empty(rows, heads * size)
        self._gated_rms_norm(
            rows,
            block(op, "x", x, rows, heads, size),
            block(op, "weight", weight, size),
            address,
            stride,
            group_stride,
            heads,
            groups,
            result.data_ptr(),
            size,
            eps,
        )
        return result

    def sigmoid_mul(self, x: Tensor, gate: Tensor) -> Tensor:
        op = "sigmoid_mul"
        rows, heads, size = sizes(op, "gate", gate, 3)
        given = spread_heads(op, "gate", gate, rows, heads, size)
        self._sigmoid_mul(rows, block(op, "x", x, rows, heads * size), *given, heads, size)
        return x

    def rotary(
        self, q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor
    ) -> tuple[Tensor, Tensor]:
        (rows,) = sizes("rotary", "positions", positions, 1)
        where = block("rotary", "positions", positions, rows, dtype=I64)
        longest, _ = sizes("rotary", "cos_sin", cos_sin)
        if not self._kernels.capturing:
            indices("rotary", "positions", positions.numpy(), rows, longest)
        for name, x in (("q", q), ("k", k)):
            _, heads, size = sizes("rotary", name, x, 3)
            table, rotated = rotation("rotary", cos_sin, size)
            address, stride = head_rows("rotary", name, x, rows, heads, size)
            self._rotary(rows, address, stride, heads, size, where, table, rotated)
        return q, k

    def silu_mul(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        return self._activate("silu_mul", x, out)

    def gelu_mul(self, x: Tensor, *, tanh: bool, out: Tensor | None = None) -> Tensor:
        return self._activate("gelu_tanh_mul" if tanh else "gelu_mul", x, out)

    def _activate(self, name: str, x: Tensor, out: Tensor | None) -> Tensor:
        rows, both = sizes(name, "x", x)
        inner = both // 2
        address, stride = matrix(name, "x", x, 2 * inner)
        result = self._empty(rows, inner) if out is None else out
        self._gated[name](rows, address, stride, block(name, "out", result, rows, inner), inner)
        return result

    def swigluoai_mul(self, x: Tensor, activation: SwigluOai) -> Tensor:
        rows, both = sizes("swigluoai_mul", "x", x)
        address, stride = matrix("swigluoai_mul", "x", x, both // 2 * 2)
        result = self._empty(rows, both // 2)
        numbers = activation.alpha, activation.limit
        self._swigluoai(rows, address, stride, result.data_ptr(), both // 2, *numbers)
        return result

    def scale_positions(self, x: Tensor, positions: Tensor, factors: Tensor) -> Tensor:
        op = "scale_positions"
        (rows,), (longest,) = sizes(op, "positions", positions, 1), sizes(op, "factors", factors, 1)
        where = block(op, "positions", positions, rows, dtype=I64)
        if not self._kernels.capturing:
            indices(op, "positions", positions.numpy(), rows, longest)
        _, heads, size = sizes(op, "x", x, 3)
        address, stride = head_rows(op, "x", x, rows, heads, size)
        table = block(op, "factors", factors, longest)
        self._scale_positions(rows, address, stride, heads * size, where, table)
        return x

    def scale(self, x: Tensor, factor: float) -> Tensor:
        rows, columns = sizes("scale", "x", x)
        self._scale(rows, block("scale", "x", x, rows, columns), columns, factor)
        return x

    def soft_cap(self, x: Tensor, cap: float) -> Tensor:
        rows, columns = sizes("soft_cap", "x", x)
        self._soft_cap(rows, block("soft_cap", "x", x, rows, columns), columns, cap)
        return x

    def quantize_static(self, x: Tensor, scale: float, offset: float) -> Tensor:
        rows, columns = sizes("quantize_static", "x", x)
        address, stride = matrix("quantize_static", "x", x, columns, rows)
        result = self._empty(rows, columns)
        self._quantize_static(rows, address, stride, result.data_ptr(), columns, scale, offset)
        return result

    def add_bias(self, x: Tensor, bias: Tensor) -> Tensor:
        """x without gaps"""
        columns = x.shape[-1] if x.ndim > 1 else 0
        require("add_bias", columns > 0, f"x of {list(x.shape)}")
        address = block("add_bias", "x", x, *x.shape)
        added = block("add_bias", "bias", bias, columns)
        self._add_bias(x.numel() // columns, address, added, columns)
        return x


def rotation(op: str, cos_sin: Tensor, size: int) -> tuple[int, int]:
    """(address, how many numbers of a head are turned) of a table for heads of `size`."""
    positions, rotated = sizes(op, "cos_sin", cos_sin)
    address = block(op, "cos_sin", cos_sin, positions, rotated)
    require(op, rotated <= size and rotated % 2 == 0, f"{rotated} of {size} numbers turned")
    return address, rotated


SETTINGS = 6
PENALTIES = 7


class NativeSampling:
    """SamplingOps of the kernels. Logits and hidden states are float32, each row without gaps.

    Equal to TorchSampling but for rounding: a uniform number within about 1e-6 of the border
    between two tokens may draw the other one, and a token within that of a top-p or min-p border
    may stay or go. On one machine the same row always gives the same bits.
    """

    def __init__(self, kernels: Kernels) -> None:
        self._argmax = kernels.operation("argmax", "q" * 7)
        self._sample = kernels.operation("sample", "q" * 6)
        self._logsumexp = kernels.operation("logsumexp", "q" * 6)
        self._topk = kernels.operation("topk", "q" * 7)
        self._not_finite = kernels.operation("not_finite", "q" * 5)
        self._apply_penalties = kernels.operation("apply_penalties", "q" * 7)
        self._settings = _Settings()
        reference = TorchSampling(reads=True)
        self.weights = reference.weights
        """by the reference: they are asked for with relaxed acceptance only"""

    def argmax(self, logits: Tensor, masks: TokenMasks | None = None) -> tuple[Tensor, Tensor]:
        rows, width, *given = table("argmax", logits)
        tokens, bad = torch.empty(rows, dtype=I64), torch.empty(rows, dtype=torch.bool)
        lines = None if masks is None else _find_lines(masks, rows, width)
        address = 0 if lines is None else lines.ctypes.data
        self._argmax(rows, *given, width, address, tokens.data_ptr(), bad.data_ptr())
        return tokens, bad

    def sample(self, logits: Tensor, entries: Tensor, batch: SamplingBatch) -> Tensor:
        count, width, *given = table("sample", logits)
        rows = len(batch.temperature)
        settings = self._settings.take(rows, SETTINGS)
        settings[:, 0] = places("sample", "entries", entries, rows, count)
        settings[:, 1] = batch.temperature.numpy()
        settings[:, 2] = batch.top_k.numpy()
        settings[:, 3] = batch.top_p.numpy()
        settings[:, 4] = batch.min_p.numpy()
        settings[:, 5] = batch.uniform.numpy()
        tokens = torch.empty(rows, dtype=I64)
        self._sample(rows, *given, width, self._settings.pointer, tokens.data_ptr())
        return tokens

    def apply_penalties(self, logits: Tensor, entries: Tensor, penalties: Penalties) -> None:
        count, width, *given = table("apply_penalties", logits)
        rows, tokens = len(penalties.frequency), penalties.tokens
        require(
            "apply_penalties",
            tokens.ndim == 2 and tokens.dtype is torch.int32 and tokens.is_contiguous(),
            "tokens must be contiguous int32 [rows, context]",
        )
        holders, longest = tokens.shape
        settings = self._settings.take(rows, PENALTIES)
        for column, (name, index, end) in enumerate(
            (
                ("entries", entries, count),
                ("rows", penalties.rows, holders),
                ("prompt", penalties.prompt, longest + 1),
                ("known", penalties.known, longest + 1),
            )
        ):
            settings[:, column] = places("apply_penalties", name, index, rows, end)
        settings[:, 4] = penalties.frequency.numpy()
        settings[:, 5] = penalties.presence.numpy()
        settings[:, 6] = penalties.repetition.numpy()
        self._apply_penalties(
            rows, *given, width, tokens.data_ptr(), longest, self._settings.pointer
        )

    def logsumexp(self, logits: Tensor, temperature: Tensor) -> Tensor:
        rows, width, *given = table("logsumexp", logits)
        totals = torch.empty(rows)
        temperatures = block("logsumexp", "temperature", temperature, rows)
        self._logsumexp(rows, *given, width, temperatures, totals.data_ptr())
        return totals

    def topk(self, logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
        rows, width, *given = table("topk", logits)
        require("topk", 0 < count <= width, f"{count} of {width} logits")
        values, ids = torch.empty(rows, count), torch.empty(rows, count, dtype=I64)
        self._topk(rows, *given, width, count, values.data_ptr(), ids.data_ptr())
        return values, ids

    def bad_tokens(self, hidden: Tensor) -> Tensor:
        rows, width, *given = table("bad_tokens", hidden)
        bad = torch.empty(rows, dtype=torch.bool)
        self._not_finite(rows, *given, width, bad.data_ptr())
        return bad


def _find_lines(masks: TokenMasks, rows: int, width: int) -> np.ndarray:
    """[rows] int64: the address of each row's bits, 0 where it has none."""
    (count,), words = sizes("argmax", "entries", masks.entries, 1), -(-width // 32)
    bits = block("argmax", "bits", masks.bits, count, words, dtype=torch.int32)
    lines = np.zeros(rows, np.int64)
    chosen = places("argmax", "entries", masks.entries, count, rows)
    lines[chosen] = bits + np.arange(count) * (words * masks.bits.element_size())
    return lines


class _Settings:
    """A table of float64 that is filled again in every step, and its address."""

    def __init__(self) -> None:
        self._buffer = np.zeros(256)
        self.pointer: int = self._buffer.ctypes.data

    def take(self, rows: int, columns: int) -> np.ndarray:
        """[rows, columns]; the address may change in this call only."""
        length = rows * columns
        if length > len(self._buffer):
            self._buffer = np.zeros(max(length, 2 * len(self._buffer)))
            self.pointer = self._buffer.ctypes.data
        return self._buffer[:length].reshape(rows, columns)


def places(op: str, name: str, x: Tensor, count: int, end: int) -> np.ndarray:
    """int64 x[count], which lies anywhere: whole numbers in 0..end-1."""
    if x.dtype is not I64 or not x.is_cpu:
        raise wrong(op, name, x, f"{I64} [{count}]")
    found = x.numpy()
    indices(op, name, found, count, end)
    return found


def table(op: str, x: Tensor) -> tuple[int, int, int, int]:
    """(rows, columns, address, elements from row to row) of float32 x, whose rows have no gaps."""
    rows, columns = sizes(op, "x", x)
    address, stride = matrix(op, "x", x, columns, rows)
    require(op, columns > 0, "rows of no numbers")
    return rows, columns, address, stride
