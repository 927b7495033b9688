"""Passes of what drafts: steps of its own layers, over rows that know the same tokens and pages as
the model's, but stand elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from vivace.platforms.cache import CacheLayer
from vivace.platforms.host import upload
from vivace.platforms.platform import Platform
from vivace.platforms.rows import ColumnChange, Spans
from vivace.protocol.step import StepPlan
from vivace.worker.captures import Captures, build_runner
from vivace.worker.drafters.place import DrafterPlace
from vivace.worker.model_runner import EagerRunner, RunnableModel
from vivace.worker.rows import RowStates
from vivace.worker.step_input import StepInput
from vivace.worker.step_inputs import StepInputs


class DraftPasses:
    """`shift`: of the token that is the input at a position; 1: what the model said there.
    `row_tokens`: most tokens of a row in a usual pass."""

    def __init__(
        self,
        model: RunnableModel,
        layers: Sequence[CacheLayer],
        place: DrafterPlace,
        *,
        shift: int = 0,
        row_tokens: int,
    ) -> None:
        platform = place.platform
        self._rows = shifted_rows(place.rows, platform, shift, row_tokens - 1)
        self._attention = platform.attention_backend(
            layers, place.memory, place.dtype, place.rows.context + 1
        )
        captures = pass_captures(place.captures, row_tokens * place.rows.rows)
        recorder = platform.recorder() if captures.sizes else None
        single = 0 if recorder is None or captures.exact else max(captures.sizes)
        self._inputs = StepInputs(self._rows, place.step_tokens, (single, 0))
        self._eager = EagerRunner(model, self._attention)
        self._runner = build_runner(
            recorder,
            model,
            self._attention,
            self._inputs,
            captures,
            lambda stage, done: place.report("Capturing passes of the draft", done),
        )
        self.nbytes = self._runner.nbytes

    def begin(self, rows: np.ndarray, known: np.ndarray, computed: np.ndarray) -> None:
        """Where these rows stand: both [n] int64, in shifted tokens."""
        columns = self._rows.columns
        self._rows.known[rows], self._rows.computed[rows] = known, computed
        self._rows.ops.scatter(
            [
                ColumnChange(columns.known, rows, known),
                ColumnChange(columns.computed, rows, computed),
            ]
        )

    def gather(self, rows: np.ndarray, counts: np.ndarray) -> tuple[StepInput, Spans]:
        """The next pass, over so many tokens of each row, which reach what it knows."""
        plan = StepPlan(number=-1, rows=rows.tolist(), counts=counts.tolist())
        return self._inputs.gather(plan, self._attention)

    def gather_branches(
        self, rows: np.ndarray, tokens: np.ndarray, places: np.ndarray
    ) -> StepInput:
        """The next pass, over tokens[n] at the ends of ways of drafts: `StepInputs`"""
        columns = self._rows.columns
        chosen, ids = upload(rows, columns.tokens.device), upload(tokens, columns.tokens.device)
        at = columns.known[chosen] + upload(places[:, -1], columns.known.device)
        columns.tokens[chosen, at] = ids.int()
        return self._inputs.gather_branches(rows, places, self._attention)

    def write(self, rows: np.ndarray, tokens: np.ndarray) -> None:
        """tokens[n, drafts] are behind what these rows know."""
        columns = self._rows.columns
        chosen = upload(rows, columns.tokens.device).unsqueeze(1)
        ahead = torch.arange(tokens.shape[1], device=chosen.device)
        at = columns.known[chosen] + ahead
        columns.tokens[chosen, at] = upload(tokens, chosen.device).int()

    def run(self, step: StepInput) -> Tensor:
        """-> hidden[T, n]"""
        return self._runner.forward(step)

    @property
    def taps(self) -> Sequence[Tensor]:
        return self._runner.taps

    def record(self, spans: Spans, tokens: Tensor) -> None:
        """The rows know tokens[n] int64, too."""
        self._rows.record(spans, PassTokens(tokens))

    def follow(self, step: StepInput, ids: Tensor) -> Tensor:
        """The model's step with these ids[T], by the draft's layers."""
        own = replace(step, input_ids=ids, attention=self._attention, shape=None)
        return self._eager.forward(own)


class PassTokens:
    """SampledTokens that all stay."""

    def __init__(self, tokens: Tensor) -> None:
        self.tokens = tokens
        self.stays = tokens.new_ones(len(tokens)).bool()
        self.bad_spans = ~self.stays


def shifted_rows(rows: RowStates, platform: Platform, shift: int, drafts: int) -> RowStates:
    """The same tokens from `shift` on, and the same pages."""
    own = RowStates(
        rows.rows,
        rows.context,
        rows.page_size,
        rows.pool_pages[0],
        drafts,
        [group for group in rows.others if not group.state],
        device=rows.columns.known.device,
        row_ops=platform.row_ops,
        trees=rows.columns.parents is not None,
    )
    shared = rows.columns
    own.columns = replace(own.columns, tokens=shared.tokens[:, shift:], pages=shared.pages)
    own.ops = platform.row_ops(own.columns)
    own.page_counts = rows.page_counts
    return own


def pass_captures(captures: Captures, tokens: int) -> Captures:
    """Of passes, which have few tokens of a row."""
    sizes = {min(size, tokens) for size in captures.sizes}
    return replace(captures, sizes=tuple(sorted(sizes)))
