"""Where the states of rows lie: layers that keep a state instead of tokens.

A slot holds the state of a row in all its layers. Slots 0, 1 ... are the pages of the group, which
the prefix cache fills with states to start from; behind them each row has slots of its own; then
comes the empty state, which nobody writes, and one that nobody reads. A step reads the slot that is
current and writes others of the row; which of these is current then is decided when the step is
recorded, and so when nothing of it can fail any more (`enter`). So a step that fails leaves the
state as it was, and refused drafts leave none.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from vivace.platforms.attention import StepStates
from vivace.platforms.host import upload
from vivace.platforms.rows import ColumnChange, SampledTokens, Spans
from vivace.worker.sizing import count_slots


class StateSlots:
    """The group of states of a worker. Columns are on the device and never move."""

    def __init__(self, rows: int, drafts: int, pages: int, device: torch.device) -> None:
        self.pages = pages
        self.count = count_slots(rows, drafts, pages)
        self._own, self._drafts, self._device = 2 + drafts, drafts, device
        self._empty, self._scratch = self.count - 2, self.count - 1
        self.current = torch.full((rows,), self._empty, dtype=torch.int64, device=device)
        """[rows]: the slot of each row's state; who left a row leaves its state, too"""
        spans = rows * (1 + drafts)  # of captured steps, where drafts may be spans of their own
        self._read = torch.full((spans,), self._empty, dtype=torch.int64, device=device)
        self._write = torch.full(
            (spans, 1 + drafts), self._scratch, dtype=torch.int64, device=device
        )
        self._joined: dict[int, int] = {}
        self._recorded = torch.empty(2, 0, dtype=torch.int64, device=device).unbind()
        """rows, and the slots that are theirs when the step that was recorded is entered"""

    def join(self, row: int, pages: list[int], cached: int) -> None:
        """Somebody joins a row with `cached` tokens computed: from the state in the page, from the
        empty one, or, after a failed step, from the row's own."""
        if pages or not cached:
            self._joined[row] = pages[0] if pages else self._empty

    def take_joined(self) -> ColumnChange:
        """What the device is to hear of who joined."""
        joined, self._joined = self._joined, {}
        rows, slots = (np.array(list(part), np.int64) for part in (joined, joined.values()))
        return ColumnChange(self.current, rows, slots)

    def prepare(self, rows: int, drafts: np.ndarray | None = None) -> StepStates:
        """The buffers of a step of `rows` spans, with so many `drafts` each, to capture one."""
        return StepStates(read=self._read[:rows], write=self._write[:rows], drafts=drafts)

    def pad(self, first: int, end: int) -> None:
        """Spans first..end read the empty state, and nobody reads what they write."""
        self._read[first:end] = self._empty
        self._write[first:end] = self._scratch

    def gather(self, spans: Spans) -> StepStates:
        """Of a step; changes no row."""
        rows = upload(spans.rows, self._device)
        current, first = self.current.index_select(0, rows), self.pages + rows * self._own
        place = current - first  # in the row's ring of slots; any, where it is not the row's own
        ahead = torch.arange(1, self._own, device=self._device)
        states = self.prepare(len(spans.rows), spans.drafts)
        states.read.copy_(current)
        states.write.copy_(first.unsqueeze(1) + (place.unsqueeze(1) + ahead) % self._own)
        return states

    def record(self, spans: Spans, draws: SampledTokens) -> None:
        """The state behind what stays of each span is the row's once it is entered."""
        rows = upload(spans.rows, self._device)
        states = self.prepare(len(spans.rows))
        kept = torch.zeros_like(rows)
        if spans.drafts is not None:
            final = upload(spans.final, self._device)
            kept = (kept.index_add_(0, final, draws.stays.long()) - 1).clamp_min(0)
        written = states.write.gather(1, kept.unsqueeze(1)).squeeze(1)
        self._recorded = rows, torch.where(draws.bad_spans, states.read, written)

    def enter(self) -> None:
        self.current.index_copy_(0, *self._recorded)

    def find(self, rows: list[int]) -> Tensor:
        """[n] int64: the slots of the states of these rows, with what was recorded"""
        recorded = self.current.index_copy(0, *self._recorded)
        return recorded.index_select(0, upload(np.array(rows, np.int64), self._device))

    def take_back(self, rows: np.ndarray, counts: np.ndarray) -> None:
        """So many tokens of the last span of each row were refused drafts, which it had kept."""
        places, back = (upload(part[counts > 0], self._device) for part in (rows, counts))
        current, first = self.current.index_select(0, places), self.pages + places * self._own
        self.current.index_copy_(0, places, first + (current - first - back) % self._own)
