"""Stages of a pipeline before the last one have no head: what rows drew they hear later."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vivace.platforms.host import upload
from vivace.platforms.ops.sampling import SamplingOps
from vivace.platforms.rows import ColumnChange, Spans
from vivace.protocol.step import DrawnTokens, StepPlan
from vivace.worker.heads import StepOutput, find_bad_spans
from vivace.worker.rows import RowStates
from vivace.worker.step_input import StepInput


@dataclass(frozen=True, slots=True)
class AwaitedTokens:
    """Of a step: for each token that it draws its span, its row, how often the row had been joined,
    and the position, [n] int64 each."""

    spans: np.ndarray
    rows: np.ndarray
    joined: np.ndarray
    positions: np.ndarray


class HeadsElsewhere:
    """`Heads` of a stage before the last. Rows move on as if each drew a token, which is entered
    when a later plan brings it: before it does, no plan computes behind it (`sequence_depth` 1)."""

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
        same = self._rows.joined[awaited.rows] == awaited.joined
        came = np.array([bool(drawn.tokens[span]) for span in awaited.spans.tolist()], np.bool_)
        chosen = np.flatnonzero(same & came)
        if not len(chosen):
            return
        tokens = [drawn.tokens[span][0] for span in awaited.spans[chosen].tolist()]
        column = self._rows.columns.tokens
        places = awaited.rows[chosen] * column.shape[1] + awaited.positions[chosen]
        self._rows.ops.scatter([ColumnChange(column, places, np.array(tokens, np.int64))])

    def needs_tokens(self, spans: Spans) -> bool:
        return False

    def landed(self, row: int, tokens: list[int]) -> None:
        """Nobody here wants to hear it."""

    def read(self, step: StepInput, spans: Spans, hidden: Tensor) -> StepOutput:
        rows = spans.rows[spans.final]
        self._awaited[self._number] = AwaitedTokens(
            spans=spans.final,
            rows=rows,
            joined=self._rows.joined[rows],
            positions=spans.before[spans.final] + spans.counts[spans.final],
        )
        bad_tokens = self._ops.bad_tokens(hidden)
        bad_spans = find_bad_spans(spans, bad_tokens)
        return StepOutput(
            drawn=spans.final,
            tokens=torch.zeros(len(rows), dtype=torch.int64, device=bad_tokens.device),
            stays=~bad_spans.index_select(0, upload(spans.final, bad_tokens.device)),
            bad_spans=bad_spans,
            bad_tokens=bad_tokens,
        )
