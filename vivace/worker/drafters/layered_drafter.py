"""Drafts of several heads, each of which says one token further than the one before it (multi-token
prediction with a layer for each token; DeepSeek-V3, 2024).

At position i the input of head k is the token i + 1 + k and the state that head k - 1 left there,
of the first head the model's. So all of them pass the same positions, each with KV of its own; the
last of these, whose tokens were drafts, they pass again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from vivace.platforms.cache import CacheLayer
from vivace.platforms.host import download, upload
from vivace.platforms.rows import RowColumns, Spans
from vivace.protocol.step import StepPlan
from vivace.worker.drafter import NoDrafter
from vivace.worker.drafters.features import KeptFeatures
from vivace.worker.drafters.heads import DraftHead
from vivace.worker.drafters.passes import DraftPasses
from vivace.worker.drafters.place import DrafterPlace
from vivace.worker.step_input import StepInput


class LayeredDrafter(NoDrafter):
    """`layers`: those of each head, with indexes behind the model's; `feature`: width of the
    model's hidden states."""

    reads_tokens = True

    def __init__(
        self, heads: Sequence[DraftHead], layers: Sequence[Sequence[CacheLayer]], feature: int
    ) -> None:
        self.width = len(heads)
        self.layers: Sequence[CacheLayer] = [layer for each in layers for layer in each]
        self._heads = heads
        self.row_numbers = 2 * self.width * feature
        self._own_layers = layers
        self._feature = feature

    def attach(self, place: DrafterPlace) -> None:
        rows, device = place.rows, place.rows.columns.known.device
        for head in self._heads:
            head.reserve(max(place.captures.sizes, default=0))
        self._passes = [
            DraftPasses(head, layers, place, shift=1 + index, row_tokens=1 + self.width)
            for index, (head, layers) in enumerate(zip(self._heads, self._own_layers, strict=True))
        ]
        self._ops = place.platform.sampling()
        self._rows, self._tokens = rows, rows.columns.tokens
        self.nbytes = sum(each.nbytes for each in self._passes)
        self._kept = KeptFeatures(rows.rows, 2 * self.width, [self._feature], place.dtype, device)
        self._done = np.zeros(rows.rows, np.int64)
        """[rows]: in front of which position all heads have computed all that they will"""

    def update(self, plan: StepPlan) -> None:
        for join in plan.joins:
            self._kept.clear(join.row)
            self._done[join.row] = join.cached

    def propose(self, columns: RowColumns, rows: np.ndarray, counts: np.ndarray) -> None:
        """All heads pass, also where fewer drafts are wanted: each needs KV of every position."""
        known = download(columns.known)[rows].astype(np.int64) - 1  # of the model's states
        able, computed = self._kept.choose(rows, counts, known, self._done[rows])
        if not (counts[able] > 0).any():
            return
        rows, known, computed = rows[able], known[able], computed[able]
        waiting = known - computed
        states = self._kept.find(rows, computed, waiting)[0]
        for head, passes in zip(self._heads, self._passes, strict=True):
            passes.begin(rows, known, computed)
            step, spans = passes.gather(rows, waiting)
            head.give(states)
            hidden = passes.run(step)
            (states,) = passes.taps
            if len(step.logits_indices) < hidden.shape[0]:
                hidden = hidden.index_select(0, step.logits_indices)
            tokens, _ = self._ops.argmax(head.lm_head(hidden))
            ids = head.words.ids
            passes.record(spans, tokens if ids is None else ids[tokens])
        self._done[rows] = known + 1 - self.width

    def follow(self, step: StepInput, spans: Spans, hidden: Tensor, taps: Sequence[Tensor]) -> None:
        rows, before, counts = spans.rows, spans.before, spans.counts
        prompts = spans.known
        ends = np.bincount(spans.final, minlength=len(rows)) > 0
        if int(prompts.max()) > 1 or not ends.all():  # also a chunk of one token
            of_tokens = upload(np.repeat(rows, counts), hidden.device)
            states = hidden
            for ahead, (head, passes) in enumerate(zip(self._heads, self._passes, strict=True), 1):
                head.give(states)
                passes.follow(step, self._tokens[of_tokens, step.positions + ahead].long())
                (states,) = head.taps
            known = self._rows.known[rows]
            if spans.drafts is not None:  # some of these may be refused
                known = np.where(spans.drafts > 0, before + prompts + 1, known)
            end = np.minimum(before + prompts, known - self.width)
            self._done[rows] = np.where(self._done[rows] >= before, end, self._done[rows])
        self._kept.keep(spans, [hidden])
