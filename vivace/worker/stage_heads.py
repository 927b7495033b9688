"""Stages of a pipeline before the last one have no head: what rows drew they hear later."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vivace.platforms.host import upload
from vivace.platforms.ops.sampling import SamplingOps
from vivace.platforms.rows import ColumnChange, Spans, TokensByRow
from vivace.protocol.step import DrawnTokens, StepPlan
from vivace.worker.heads import StepOutput, find_bad_spans
from vivace.worker.rows import RowStates
from vivace.worker.step_input import StepInput


@dataclass(frozen=True, slots=True)
class AwaitedTokens:
    """Of a step: for each span that draws its number, its row, how often the row had been joined,
    its first position, and that of the first token that it draws, [n] int64 each."""

    spans: np.ndarray
    rows: np.ndarray
    joined: np.ndarray
    before: np.ndarray
    positions: np.ndarray


class HeadsElsewhere:
    """`Heads` of a stage before the last. Rows move on as if each drew a token and all its drafts
    were right; how it was is entered when a later plan brings it, with the drafts that come next:
    before it does, no plan computes behind it (`sequence_depth` 1)."""

    def __init__(self, ops: SamplingOps, rows: RowStates) -> None:
        self._ops = ops
        self._rows = rows
        self._number = 0
        """of the step under way"""
        self._awaited: dict[int, AwaitedTokens] = {}
        """by the number of the step"""

    def update(self, plan: StepPlan) -> None:
        self._number = plan.number
        for drawn in plan.drawn:
            self._enter(drawn, self._awaited.pop(drawn.number))
        if plan.drawn:  # what a refused plan brought is missing: its rows have left
            last = plan.drawn[-1].number
            self._awaited = {step: one for step, one in self._awaited.items() if step > last}

    def _enter(self, drawn: DrawnTokens, awaited: AwaitedTokens) -> None:
        """What is known by now; who has left its row since is nobody's business."""
        states, spans = self._rows, awaited.spans.tolist()
        came = np.array([len(drawn.tokens[span]) for span in spans], np.int64)
        wanted = (came > 0) | (states.drafts > 0)
        chosen = np.flatnonzero((states.joined[awaited.rows] == awaited.joined) & wanted)
        if not len(chosen):
            return
        rows, known = awaited.rows[chosen], awaited.positions[chosen] + came[chosen]
        ids = [
            drawn.tokens[spans[at]] + (drawn.drafts[spans[at]] if drawn.drafts else [])
            for at in chosen.tolist()
        ]
        counts = np.array(list(map(len, ids)), np.int64)
        columns, width = states.columns, states.columns.tokens.shape[1]
        firsts = rows * width + awaited.positions[chosen]
        places = np.repeat(firsts - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
        tokens = np.array([token for row in ids for token in row], np.int64)
        computed = awaited.before[chosen] + np.array(drawn.advanced)[awaited.spans[chosen]]
        if states.states is not None:
            states.states.take_back(rows, states.computed[rows] - computed)
        states.known[rows], states.computed[rows] = known, computed
        lengths = (columns.known, known), (columns.computed, computed)
        changes = [ColumnChange(column, rows, length) for column, length in lengths]
        states.ops.scatter([ColumnChange(columns.tokens, places, tokens), *changes])

    def needs_tokens(self, spans: Spans) -> bool:
        return False

    def landed(self, drawn: TokensByRow, *, at_once: bool) -> TokensByRow:
        """Nobody here wants to hear it."""
        return {}

    def why_stuck(self, row: int) -> tuple[int, str] | None:
        return None

    def read(self, step: StepInput, spans: Spans, hidden: Tensor) -> StepOutput:
        final = spans.final
        firsts = np.flatnonzero(np.diff(final, prepend=-1))
        drawing = final[firsts]
        drafts = 0 if spans.drafts is None else spans.drafts[drawing]
        rows = spans.rows[drawing]
        self._awaited[self._number] = AwaitedTokens(
            spans=drawing,
            rows=rows,
            joined=self._rows.joined[rows],
            before=spans.before[drawing],
            positions=spans.before[drawing] + spans.counts[drawing] - drafts,
        )
        bad_tokens = self._ops.bad_tokens(hidden)
        bad_spans = find_bad_spans(spans, bad_tokens)
        return StepOutput(
            drawn=final,
            tokens=torch.zeros(len(final), dtype=torch.int64, device=bad_tokens.device),
            stays=~bad_spans.index_select(0, upload(final, bad_tokens.device)),
            bad_spans=bad_spans,
            bad_tokens=bad_tokens,
        )
