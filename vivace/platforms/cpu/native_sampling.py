"""Sampling by native kernels: what `platforms.ops.sampling` says, one pass over a row."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from vivace.platforms.cpu.native import Kernels
from vivace.platforms.ops.sampling import Drawing, Penalties

SETTINGS = 6
PENALTIES = 7


class NativeSampling:
    """SamplingOps of the kernels. Logits and hidden states are float32, each row without gaps.

    Equal to TorchSampling but for rounding: a uniform number within about 1e-6 of the border
    between two tokens may draw the other one, and a token within that of a top-p or min-p border
    may stay or go. On one machine the same row always gives the same bits.
    """

    def __init__(self, kernels: Kernels) -> None:
        self._best = kernels.operation("best_token", "q" * 6)
        self._draw = kernels.operation("draw_token", "q" * 6)
        self._log_total = kernels.operation("log_total", "q" * 6)
        self._top = kernels.operation("top_logits", "q" * 7)
        self._not_finite = kernels.operation("not_finite", "q" * 5)
        self._penalise = kernels.operation("penalise", "q" * 7)
        self._ids = _Column(np.int64)
        self._flags = _Column(np.bool_)
        self._settings = _Column(np.float64)

    def best(self, logits: Tensor) -> tuple[np.ndarray, np.ndarray | None]:
        rows, width = logits.shape
        tokens, bad = self._ids.first(rows), self._flags.first(rows)
        self._best(
            rows, _floats(logits), logits.stride(0), width, self._ids.pointer, self._flags.pointer
        )
        return tokens.copy(), bad.copy() if bad.any() else None

    def draw(self, logits: Tensor, entries: np.ndarray, drawing: Drawing) -> np.ndarray:
        rows = len(entries)
        settings = self._settings.first(rows * SETTINGS).reshape(rows, SETTINGS)
        settings[:, 0] = entries
        settings[:, 1] = drawing.temperature
        settings[:, 2] = drawing.top_k
        settings[:, 3] = drawing.top_p
        settings[:, 4] = drawing.min_p
        settings[:, 5] = drawing.uniform
        tokens = self._ids.first(rows)
        self._draw(
            rows,
            _floats(logits),
            logits.stride(0),
            logits.shape[1],
            self._settings.pointer,
            self._ids.pointer,
        )
        return tokens.copy()

    def penalise(self, logits: Tensor, entries: np.ndarray, penalties: Penalties) -> None:
        rows, history = len(entries), penalties.tokens
        settings = self._settings.first(rows * PENALTIES).reshape(rows, PENALTIES)
        settings[:, 0] = entries
        settings[:, 1] = penalties.rows
        settings[:, 2] = penalties.prompt
        settings[:, 3] = penalties.known
        settings[:, 4] = penalties.frequency
        settings[:, 5] = penalties.presence
        settings[:, 6] = penalties.repetition
        self._penalise(
            rows,
            _floats(logits),
            logits.stride(0),
            logits.shape[1],
            history.ctypes.data,
            history.shape[1],
            self._settings.pointer,
        )

    def log_totals(self, logits: Tensor, temperature: np.ndarray) -> np.ndarray:
        rows, width = logits.shape
        given, totals = torch.from_numpy(temperature), torch.empty(rows)
        self._log_total(
            rows,
            _floats(logits),
            logits.stride(0),
            width,
            given.data_ptr(),
            totals.data_ptr(),
        )
        return totals.numpy()

    def top(self, logits: Tensor, count: int) -> tuple[np.ndarray, np.ndarray]:
        rows, width = logits.shape
        values, ids = torch.empty(rows, count), torch.empty(rows, count, dtype=torch.int64)
        self._top(
            rows,
            _floats(logits),
            logits.stride(0),
            width,
            count,
            values.data_ptr(),
            ids.data_ptr(),
        )
        return values.numpy(), ids.numpy()

    def bad_tokens(self, hidden: Tensor) -> np.ndarray | None:
        rows, width = hidden.shape
        bad = self._flags.first(rows)
        self._not_finite(rows, _floats(hidden), hidden.stride(0), width, self._flags.pointer)
        return bad.copy() if bad.any() else None


class _Column:
    """A buffer that is used again in every step, and its address."""

    def __init__(self, dtype: type[np.generic]) -> None:
        self._buffer = np.zeros(256, dtype)
        self.pointer: int = self._buffer.ctypes.data

    def first(self, length: int) -> np.ndarray:
        """The first `length` places; the address may change in this call only."""
        if length > len(self._buffer):
            self._buffer = np.zeros(max(length, 2 * len(self._buffer)), self._buffer.dtype)
            self.pointer = self._buffer.ctypes.data
        return self._buffer[:length]


def _floats(table: Tensor) -> int:
    """The address of a float32 table whose rows have no gaps."""
    if table.dtype is not torch.float32 or table.stride(1) != 1:
        raise TypeError(
            f"the kernels sample from float32 rows without gaps, not from {table.dtype} with "
            f"strides {table.stride()}"
        )
    return table.data_ptr()
