"""What changes logits before the draw: penalties, the minimum length, logit bias.

Nothing is remembered between steps: counts are taken from the row's own tokens, so a penalty is
the same after a retraction, in any batch, and a row that is given up leaves nothing behind.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vivace.sampling.rows import BIASED, MINIMUM, PENALISED, SamplingRows

PENALTY_ELEMENTS = 1 << 24
"""elements of the largest temporary table of counts"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Histories:
    """The tokens of the rows that draw. All arrays are indexed by row, not by batch entry."""

    tokens: np.ndarray
    """[rows, context + 1] int32"""
    known: np.ndarray
    """[rows]: how many of them are known"""
    prompt: np.ndarray
    """[rows]: how many of those are prompt"""


def adjust(logits: Tensor, rows: np.ndarray, columns: SamplingRows, history: Histories) -> None:
    """Apply, in place, to logits[n, V] of `rows[n]`: additive penalties and minimum length,
    then repetition scaling, then logit bias."""
    features = columns.features[rows]
    asked = int(np.bitwise_or.reduce(features))
    penalised = np.flatnonzero(features & PENALISED) if asked & PENALISED else _NONE
    if len(penalised):
        _add_penalties(logits, penalised, rows, columns, history)
    if asked & MINIMUM:
        _mask_stops(logits, np.flatnonzero(features & MINIMUM), rows, columns, history)
    if len(penalised):
        _scale_repetitions(logits, penalised, rows, columns, history)
    if asked & BIASED:
        _add_bias(logits, np.flatnonzero(features & BIASED), rows, columns)


_NONE = np.empty(0, np.int64)


def _add_penalties(
    logits: Tensor,
    entries: np.ndarray,
    rows: np.ndarray,
    columns: SamplingRows,
    history: Histories,
) -> None:
    """logits -= frequency * count + presence * (count > 0), counting output tokens."""
    asked = (columns.frequency[rows[entries]] != 0) | (columns.presence[rows[entries]] != 0)
    for part in _parts(entries[asked], logits.shape[1]):
        of = rows[part]
        counts = _counts(history, of, history.prompt[of], logits.shape[1])
        index = torch.from_numpy(part)
        change = counts * torch.from_numpy(columns.frequency[of]).unsqueeze(1)
        change += (counts > 0) * torch.from_numpy(columns.presence[of]).unsqueeze(1)
        logits.index_copy_(0, index, logits.index_select(0, index) - change)


def _scale_repetitions(
    logits: Tensor,
    entries: np.ndarray,
    rows: np.ndarray,
    columns: SamplingRows,
    history: Histories,
) -> None:
    """Tokens of prompt or output: positive logits / penalty, negative ones * penalty."""
    asked = columns.repetition[rows[entries]] != 1
    for part in _parts(entries[asked], logits.shape[1]):
        of = rows[part]
        seen = _counts(history, of, np.zeros(len(of), np.int64), logits.shape[1]) > 0
        index = torch.from_numpy(part)
        chosen = logits.index_select(0, index)
        penalty = torch.from_numpy(columns.repetition[of]).unsqueeze(1)
        scaled = torch.where(chosen > 0, chosen / penalty, chosen * penalty)
        logits.index_copy_(0, index, torch.where(seen, scaled, chosen))


def _mask_stops(
    logits: Tensor,
    entries: np.ndarray,
    rows: np.ndarray,
    columns: SamplingRows,
    history: Histories,
) -> None:
    """Stop ids cannot be drawn while a row has fewer output tokens than its minimum."""
    drawn = history.known[rows[entries]] - history.prompt[rows[entries]]
    for entry in entries[drawn < columns.minimum[rows[entries]]].tolist():
        ids = columns.stop_ids[int(rows[entry])]
        logits[entry, torch.from_numpy(ids[ids < logits.shape[1]])] = -torch.inf


def _add_bias(logits: Tensor, entries: np.ndarray, rows: np.ndarray, columns: SamplingRows) -> None:
    for entry in entries.tolist():
        ids, values = columns.bias[int(rows[entry])]
        inside = ids < logits.shape[1]
        logits[entry].index_add_(0, torch.from_numpy(ids[inside]), torch.from_numpy(values[inside]))


def _parts(entries: np.ndarray, vocabulary: int) -> list[np.ndarray]:
    """Batch entries in pieces whose table of counts stays within PENALTY_ELEMENTS."""
    size = max(1, PENALTY_ELEMENTS // vocabulary)
    return [entries[first : first + size] for first in range(0, len(entries), size)]


def _counts(history: Histories, rows: np.ndarray, first: np.ndarray, vocabulary: int) -> Tensor:
    """[n, V] float32: how often each id occurs in tokens[first..known] of each row."""
    ends = history.known[rows]
    width = int(ends.max()) if len(rows) else 0
    places = np.arange(width)
    ids = torch.from_numpy(history.tokens[rows, :width].astype(np.int64))
    counted = (places >= first[:, None]) & (places < ends[:, None])
    counts = torch.zeros(len(rows), vocabulary)
    ids.clamp_(0, vocabulary - 1)
    return counts.scatter_add_(1, ids, torch.from_numpy(counted.astype(np.float32)))
