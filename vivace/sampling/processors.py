"""What changes logits before a token is drawn: penalties, a least length, bias; whatever comes.

Each processor keeps what it knows of its rows in columns on the device, and is asked only in steps
that draw for such a row. Counts are taken from the own tokens of a row, so a penalty is the same
after a retraction, in any batch, and a row that is given up leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from vivace.platforms.host import upload
from vivace.platforms.ops.sampling import Penalties, SamplingOps, TokenMasks
from vivace.platforms.rows import DraftPaths, TokensByRow
from vivace.protocol.step import Join, StepPlan


@dataclass(frozen=True, slots=True)
class Entries:
    """Where tokens are drawn. A row has several entries where drafts stand behind what it knows:
    each sees the tokens before its own position as history, drafts too."""

    rows: Tensor
    """[n] int64"""
    positions: Tensor
    """[n] int64: of the token that is drawn"""
    host_rows: np.ndarray
    """[n] int64: `rows`, which a plan names on the host"""
    paths: DraftPaths | None = None
    """where drafts are trees: to each entry's last token"""

    def __len__(self) -> int:
        return len(self.host_rows)

    def select(self, chosen: np.ndarray, index: Tensor) -> Entries:
        """Those at `chosen[m]`, in ascending order; `index`: the same on the device."""
        if len(chosen) == len(self):
            return self
        return Entries(
            self.rows.index_select(0, index),
            self.positions.index_select(0, index),
            self.host_rows[chosen],
            self.paths and self.paths.select(index),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Histories:
    """The tokens of all rows, by row and not by batch entry."""

    tokens: Tensor
    """[rows, context + 1] int32, or more where drafts stand behind them"""
    prompt: Tensor
    """[rows] int64: how many of them are prompt"""
    known: np.ndarray
    """[rows] int64, on the host: how many are known, or more"""
    drafts: int = 0
    """how many more may stand before an entry"""


class HostState(Protocol):
    """What a processor knows of rows on the host, as of a grammar."""

    def landed(self, drawn: TokensByRow, *, at_once: bool) -> TokensByRow:
        """What some rows have drawn. What follows from it may be computed beside the next step.
        `at_once`: no other step has begun; these tokens follow then, since no others may."""
        ...

    def why_stuck(self, row: int) -> tuple[int, str] | None: ...  # status, why; None: not it
    def left(self, row: int) -> None: ...  # the row is nobody's


class LogitsProcessor(Protocol):
    """Changes the logits of rows that ask for it."""

    @property
    def host_state(self) -> HostState | None:
        """Where every token of a row has `landed` before `apply`: steps in flight are waited for
        behind the forward pass, which they do not hold up."""
        ...

    def joined(self, row: int, join: Join) -> bool:
        """A sequence enters a row, which was empty; whether it wants anything of this processor."""
        ...

    def apply(self, logits: Tensor, entries: Entries, places: np.ndarray) -> TokenMasks | None:
        """Change, in place, the rows `places[m]` of logits[n, V] float32 of n entries, which are
        those of rows that want it. A row has several entries where drafts stand behind what it
        knows; each sees the tokens before its own position. Masks, which one of all may give, are
        for what all have left. Waits for nothing."""
        ...


ProcessorFactory = Callable[[SamplingOps, Histories], LogitsProcessor]


class LogitsProcessors:
    """The processors of a worker, in the order in which they are applied, and which rows want
    which."""

    def __init__(self, processors: Sequence[LogitsProcessor], rows: int) -> None:
        self._all = [(processor, np.zeros(rows, np.bool_)) for processor in processors]
        self._active: list[tuple[LogitsProcessor, np.ndarray]] = []
        """those that some row wants"""
        self.rows: dict[int, list[LogitsProcessor]] = {}
        """rows that want some"""

    def update(self, plan: StepPlan) -> None:
        """Rows leave and join."""
        for row in plan.leaves:
            self._leave(row)
        for join in plan.joins:
            self._leave(join.row)
            wanted: list[LogitsProcessor] = []
            for processor, wants in self._all:
                wants[join.row] = processor.joined(join.row, join)
                if wants[join.row]:
                    wanted.append(processor)
            if wanted:
                self.rows[join.row] = wanted
        self._active = [(processor, wants) for processor, wants in self._all if wants.any()]

    def _leave(self, row: int) -> None:
        for processor, wants in self._all if self.rows.pop(row, None) else ():
            if wants[row] and (state := processor.host_state):
                state.left(row)
            wants[row] = False

    def apply(self, logits: Tensor, entries: Entries) -> TokenMasks | None:
        """Change, in place, logits[n, V] float32 of n entries; masks for what is left."""
        masks: TokenMasks | None = None
        for processor, wants in self._active:
            places = np.flatnonzero(wants[entries.host_rows])
            if len(places):
                masks = processor.apply(logits, entries, places) or masks
        return masks

    def needs_tokens(self, rows: np.ndarray) -> bool:
        """Whether the host must know every token of one of these rows."""
        return any(bool(wants[rows].any()) for one, wants in self._active if one.host_state)

    def landed(self, drawn: TokensByRow, *, at_once: bool) -> TokensByRow:
        found = dict[int, list[int]]()
        for processor, wants in self._active:
            if state := processor.host_state:
                own = {row: tokens for row, tokens in drawn.items() if wants[row]}
                found |= state.landed(own, at_once=at_once)
        return found

    def why_stuck(self, row: int) -> tuple[int, str] | None:
        states = [state for one in self.rows.get(row, ()) if (state := one.host_state)]
        return next(filter(None, (state.why_stuck(row) for state in states)), None)


# --- those that every worker has ------------------------------------------------------------


def standard_processors(
    ops: SamplingOps, history: Histories, rows: int, device: torch.device
) -> list[LogitsProcessor]:
    """What SGLang's sampling settings ask for, in its order."""
    return [
        PenaltiesLogitsProcessor(ops, history, rows, device),
        MinTokensLogitsProcessor(history, rows, device),
        LogitBiasLogitsProcessor(),
    ]


class PenaltiesLogitsProcessor:
    """frequency_penalty, presence_penalty and repetition_penalty."""

    host_state = None

    def __init__(
        self, ops: SamplingOps, history: Histories, rows: int, device: torch.device
    ) -> None:
        self._ops, self._history, self._device = ops, history, device
        self._settings = torch.zeros((rows, 3), dtype=torch.float64, device=device)
        """frequency, presence, repetition: numbers of float32"""

    def joined(self, row: int, join: Join) -> bool:
        asked = join.sampling
        wanted = asked.frequency_penalty, asked.presence_penalty, asked.repetition_penalty
        if wanted == (0.0, 0.0, 1.0):
            return False
        rounded = np.array(wanted, np.float32).astype(np.float64)
        self._settings[row] = upload(rounded, self._device)
        return True

    def apply(self, logits: Tensor, entries: Entries, places: np.ndarray) -> None:
        index = upload(places, logits.device)
        picked = entries.select(places, index)
        settings, history = self._settings.index_select(0, picked.rows), self._history
        longest = int(history.known[picked.host_rows].max()) + history.drafts
        tokens, rows = history.tokens, picked.rows
        if picked.paths is not None:
            tokens, rows = picked.paths.read_tokens(tokens[:, :longest], rows, picked.positions)
        penalties = Penalties(
            rows=rows,
            prompt=history.prompt.index_select(0, picked.rows),
            known=picked.positions,
            frequency=settings[:, 0],
            presence=settings[:, 1],
            repetition=settings[:, 2],
            tokens=tokens,
            longest=longest,
        )
        self._ops.apply_penalties(logits, index, penalties)


class MinTokensLogitsProcessor:
    """min_new_tokens: stop ids cannot be drawn while a row has fewer output tokens."""

    host_state = None

    def __init__(self, history: Histories, rows: int, device: torch.device) -> None:
        self._history, self._device = history, device
        self._minimum = torch.zeros(rows, dtype=torch.int64, device=device)
        self._stop_ids: dict[int, np.ndarray] = {}

    def joined(self, row: int, join: Join) -> bool:
        minimum = join.sampling.min_new_tokens
        if minimum <= 0 or not join.stop_ids:
            return False
        self._stop_ids[row] = np.array(join.stop_ids, np.int64)
        self._minimum[row : row + 1] = upload(np.array([minimum]), self._device)
        return True

    def apply(self, logits: Tensor, entries: Entries, places: np.ndarray) -> None:
        picked = entries.select(places, upload(places, logits.device))
        first = self._history.prompt.index_select(0, picked.rows)
        early = picked.positions - first < self._minimum.index_select(0, picked.rows)
        stops = [self._stop_ids[row] for row in picked.host_rows.tolist()]
        place, ids, which = _flatten(stops, places, logits)
        masked = torch.where(early.index_select(0, which), -torch.inf, logits[place, ids])
        logits.index_put_((place, ids), masked)


class LogitBiasLogitsProcessor:
    """logit_bias."""

    host_state = None

    def __init__(self) -> None:
        self._bias: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        """(ids int64, values float32)"""

    def joined(self, row: int, join: Join) -> bool:
        bias = join.sampling.logit_bias
        if not bias:
            return False
        ids = np.array(list(bias), np.int64)
        self._bias[row] = (ids, np.array(list(bias.values()), np.float32))
        return True

    def apply(self, logits: Tensor, entries: Entries, places: np.ndarray) -> None:
        pairs = [self._bias[row] for row in entries.host_rows[places].tolist()]
        place, ids, _ = _flatten([ids for ids, _ in pairs], places, logits)
        bias = np.concatenate([values[ids < logits.shape[1]] for ids, values in pairs])
        logits.index_put_((place, ids), logits[place, ids] + upload(bias, logits.device))


def _flatten(
    ids: list[np.ndarray], places: np.ndarray, logits: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """(entry, id, index in `places`), int64 each, of all ids of the vocabulary in ids[m]."""
    inside = [some[some < logits.shape[1]] for some in ids]
    which = np.repeat(np.arange(len(ids)), [len(some) for some in inside])
    device, columns = logits.device, np.concatenate(inside)
    return upload(places[which], device), upload(columns, device), upload(which, device)
