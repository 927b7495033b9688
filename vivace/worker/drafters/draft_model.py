"""Drafts of a smaller model (speculative decoding; Leviathan et al. 2023): its most probable
tokens, one pass for each.

What it keeps of a token lies in the same page as what the model keeps, in layers of its own: prefix
cache, retraction and copies of pages are about both. Of prompts it computes what a step computed,
behind it; of decoded tokens when drafts are next wanted: with none it costs nothing. Where
something is missing or stale, drafts are worse, and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from torch import Tensor

from vivace.models.causal_lm import CausalLM
from vivace.platforms.cache import CacheLayer
from vivace.platforms.host import download
from vivace.platforms.platform import Platform
from vivace.platforms.rows import ColumnChange, RowColumns, Spans
from vivace.protocol.step import StepPlan
from vivace.worker.captures import Captures, build_runner
from vivace.worker.drafter import NoDrafter
from vivace.worker.drafters.place import DrafterPlace
from vivace.worker.model_runner import EagerRunner
from vivace.worker.rows import RowStates
from vivace.worker.step_input import StepInput
from vivace.worker.step_inputs import StepInputs

ROW_TOKENS = 2
"""that the first pass has of a row whose drafts were all right: its last draft, and what was drawn
behind it"""


class ModelDrafter(NoDrafter):
    """Proposes what `model` would say. `vocabulary`: of the model that is served, whose ids the
    draft's are."""

    reads_tokens = True

    def __init__(
        self,
        width: int,
        model: CausalLM,
        layers: Sequence[CacheLayer],
        *,
        vocabulary: int,
        ids: int,
    ) -> None:
        """`layers`: the draft's, with indexes behind the served model's; `ids`: those that it has
        an embedding of"""
        self.width = width
        self.layers = layers
        self._model = model
        self._vocabulary = vocabulary
        self._last_id = ids - 1 if ids < vocabulary else None

    def attach(self, place: DrafterPlace) -> None:
        platform, rows = place.platform, draft_rows(place.rows, place.platform)
        self._attention = platform.attention_backend(
            self.layers, place.memory, place.dtype, rows.context + 1
        )
        captures = pass_captures(place.captures, rows.rows)
        recorder = platform.recorder() if captures.sizes else None
        single = 0 if recorder is None or captures.exact else max(captures.sizes)
        self._rows = rows
        self._inputs = StepInputs(rows, place.step_tokens, (single, 0))
        self._eager = EagerRunner(self._model, self._attention)
        self._runner = build_runner(
            recorder,
            self._model,
            self._attention,
            self._inputs,
            captures,
            lambda stage, done: place.report("Capturing passes of the draft model", done),
        )
        self._ops = platform.sampling()
        self.nbytes = self._runner.nbytes
        self._done = np.zeros(rows.rows, np.int64)
        """[rows]: of how many of a row's first tokens the draft has KV; of drafts among them only
        those that were accepted count"""

    def update(self, plan: StepPlan) -> None:
        for join in plan.joins:
            self._done[join.row] = join.cached

    def propose(self, columns: RowColumns, rows: np.ndarray, counts: np.ndarray) -> None:
        known = download(columns.known)[rows].astype(np.int64)
        computed = np.minimum(self._done[rows], known - 1)
        self._place_rows(rows, known, computed)
        waiting = known - computed
        for done in range(int(counts.max())):
            going = counts > done
            self._draw(rows[going], waiting[going])
            waiting = np.ones_like(waiting)
        self._done[rows] = known + np.maximum(counts, 1) - 1

    def follow(self, step: StepInput, spans: Spans, hidden: Tensor) -> None:
        prompts = spans.counts if spans.drafts is None else spans.counts - spans.drafts
        if spans.flat or int(prompts.max()) == 1:
            return
        self._eager.forward(self._own(step))
        rows, before = spans.rows, spans.before
        whole = self._done[rows] >= before
        self._done[rows] = np.where(whole, before + spans.counts, self._done[rows])

    def _place_rows(self, rows: np.ndarray, known: np.ndarray, computed: np.ndarray) -> None:
        columns = self._rows.columns
        self._rows.known[rows], self._rows.computed[rows] = known, computed
        self._rows.ops.scatter(
            [
                ColumnChange(columns.known, rows, known),
                ColumnChange(columns.computed, rows, computed),
            ]
        )

    def _draw(self, rows: np.ndarray, counts: np.ndarray) -> None:
        """One more token for each of these rows, of which so many are to be computed."""
        plan = StepPlan(number=-1, rows=rows.tolist(), counts=counts.tolist())
        step, spans = self._inputs.gather(plan, self._attention)
        if self._last_id is not None:
            step.input_ids.clamp_(max=self._last_id)
        hidden = self._runner.forward(step)
        if len(step.logits_indices) < hidden.shape[0]:
            hidden = hidden.index_select(0, step.logits_indices)
        logits = self._model.lm_head(hidden)
        if logits.shape[1] > self._vocabulary:
            logits = logits[:, : self._vocabulary].contiguous()
        tokens, _ = self._ops.argmax(logits)
        self._rows.record(spans, DraftTokens(tokens))

    def _own(self, step: StepInput) -> StepInput:
        """The same for the draft's layers."""
        ids = step.input_ids
        if self._last_id is not None:
            ids = ids.clamp(max=self._last_id)
        return replace(step, input_ids=ids, attention=self._attention, shape=None)


class DraftTokens:
    """SampledTokens that all stay."""

    def __init__(self, tokens: Tensor) -> None:
        self.tokens = tokens
        self.stays = tokens.new_ones(len(tokens), dtype=tokens.dtype).bool()
        self.bad_spans = ~self.stays


def draft_rows(rows: RowStates, platform: Platform) -> RowStates:
    """The same tokens and pages; what is known and computed of them is the draft's."""
    own = RowStates(
        rows.rows,
        rows.context,
        rows.page_size,
        rows.pool_pages[0],
        ROW_TOKENS - 1,
        [group for group in rows.others if not group.state],
        device=rows.columns.known.device,
        row_ops=platform.row_ops,
    )
    shared = rows.columns
    own.columns = replace(own.columns, tokens=shared.tokens, pages=shared.pages)
    own.ops = platform.row_ops(own.columns)
    own.page_counts = rows.page_counts
    return own


def pass_captures(captures: Captures, rows: int) -> Captures:
    """Of passes, which have few tokens of a row."""
    sizes = {min(size, ROW_TOKENS * rows) for size in captures.sizes}
    return replace(captures, sizes=tuple(sorted(sizes)))
