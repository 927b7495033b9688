"""What changes logits before the draw: penalties, the minimum length, logit bias.

Nothing is remembered between steps: counts are taken from the row's own tokens, so a penalty is
the same after a retraction, in any batch, and a row that is given up leaves nothing behind.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vivace.platforms.ops.sampling import Penalties, SamplingOps
from vivace.sampling.rows import BIASED, MINIMUM, PENALIZED, SamplingRows


@dataclass(frozen=True, kw_only=True, slots=True)
class Histories:
    """The tokens of the rows that draw. All arrays are indexed by row, not by batch entry."""

    tokens: np.ndarray
    """[rows, context + 1] int32"""
    known: np.ndarray
    """[rows]: how many of them are known"""
    prompt: np.ndarray
    """[rows]: how many of those are prompt"""


def adjust(
    ops: SamplingOps,
    logits: Tensor,
    rows: np.ndarray,
    columns: SamplingRows,
    history: Histories,
) -> None:
    """Apply, in place, to logits[n, V] of `rows[n]`: penalties, then minimum length, then bias."""
    features = columns.features[rows]
    wanted = int(np.bitwise_or.reduce(features))
    if wanted & PENALIZED:
        entries = np.flatnonzero(features & PENALIZED)
        _penalize(ops, logits, entries, rows, columns, history)
    if wanted & MINIMUM:
        _mask_stops(logits, np.flatnonzero(features & MINIMUM), rows, columns, history)
    if wanted & BIASED:
        _add_bias(logits, np.flatnonzero(features & BIASED), rows, columns)


def _penalize(
    ops: SamplingOps,
    logits: Tensor,
    entries: np.ndarray,
    rows: np.ndarray,
    columns: SamplingRows,
    history: Histories,
) -> None:
    picked = rows[entries]
    penalties = Penalties(
        rows=picked,
        prompt=history.prompt[picked],
        known=history.known[picked],
        frequency=columns.frequency[picked],
        presence=columns.presence[picked],
        repetition=columns.repetition[picked],
        tokens=history.tokens,
    )
    ops.penalize(logits, entries, penalties)


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
