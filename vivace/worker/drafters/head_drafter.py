"""Drafts of a head (`heads.py`): its first pass is over what the model's last step has computed,
each further one over what it says itself.

Prompts pass the head behind the model, step by step; decoded tokens when drafts are next wanted. Of
those only the last features are kept. Where few requests run, the head computes those of requests
without drafts before they are lost; where many do, its KV gets a gap, and later drafts are worse.
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
from vivace.worker.drafters.features import FEW_ROWS, KeptFeatures
from vivace.worker.drafters.heads import DraftHead
from vivace.worker.drafters.passes import DraftPasses
from vivace.worker.drafters.place import DrafterPlace
from vivace.worker.drafters.searches import DraftSearch, SearchPlace
from vivace.worker.step_input import StepInput


class HeadDrafter(NoDrafter):
    """`layers`: the head's, with indexes behind the model's; `features`: widths of what the model
    hands out, [T, width] each."""

    reads_tokens = True

    def __init__(
        self,
        width: int,
        head: DraftHead,
        layers: Sequence[CacheLayer],
        features: Sequence[int],
        search: DraftSearch,
    ) -> None:
        self.width = width
        self.layers = layers
        self.trees = search.trees
        self._search = search
        self._head = head
        self._widths = features
        self.row_numbers = (1 + width) * sum(features)

    def attach(self, place: DrafterPlace) -> None:
        rows, device = place.rows, place.rows.columns.known.device
        self._head.reserve(max(place.captures.sizes, default=0))
        self._passes = DraftPasses(
            self._head, self.layers, place, shift=1, row_tokens=self._search.row_tokens
        )
        ops, columns = place.platform.sampling(), rows.columns
        self._search.attach(
            SearchPlace(self._passes, self._compute, ops, self._head.words.ids, columns.parents)
        )
        self._tokens = columns.tokens
        self.nbytes = self._passes.nbytes
        self._kept = KeptFeatures(rows.rows, 1 + self.width, self._widths, place.dtype, device)
        self._done = np.zeros(rows.rows, np.int64)
        """[rows]: in front of which position the head has computed all that it will"""

    def update(self, plan: StepPlan) -> None:
        for join in plan.joins:
            self._kept.clear(join.row)
            self._done[join.row] = join.cached

    def propose(self, columns: RowColumns, rows: np.ndarray, counts: np.ndarray) -> None:
        known = download(columns.known)[rows].astype(np.int64) - 1  # inputs are the next tokens
        able, computed = self._kept.choose(rows, counts, known, self._done[rows])
        if not (counts[able] > 0).any():
            return
        rows, counts, known, computed = rows[able], counts[able], known[able], computed[able]
        self._passes.begin(rows, known, computed)
        waiting = known - computed
        features = self._kept.find(rows, computed, waiting)
        step, spans = self._passes.gather(rows, waiting)
        drawn = self._compute(step, self._head.fuse(features, step))
        self._search.propose(rows, counts, spans, *drawn)
        self._done[rows] = known  # of its own drafts the model's features are better

    def _compute(self, step: StepInput, states: Tensor) -> tuple[Tensor, Tensor]:
        """A `DraftPass`"""
        self._head.give(states)
        hidden = self._passes.run(step)
        (states,) = self._passes.taps
        if len(step.logits_indices) < hidden.shape[0]:
            hidden = hidden.index_select(0, step.logits_indices)
            states = states.index_select(0, step.logits_indices)
        return self._head.lm_head(hidden), states

    def follow(self, step: StepInput, spans: Spans, hidden: Tensor, taps: Sequence[Tensor]) -> None:
        features = taps or [hidden]
        rows, before, counts = spans.rows, spans.before, spans.counts
        prompts = spans.known
        ends = np.bincount(spans.final, minlength=len(rows)) > 0
        if len(rows) <= FEW_ROWS:
            self._catch_up(rows, before, before + counts)
        if int(prompts.max()) > 1 or not ends.all():  # also a chunk of one token
            of_tokens = upload(np.repeat(rows, counts), hidden.device)
            ids = self._tokens[of_tokens, step.positions + 1].long()
            self._head.give(self._head.fuse(features, step))
            self._passes.follow(step, ids)
            whole = self._done[rows] >= before
            self._done[rows] = np.where(whole, before + prompts, self._done[rows])
        self._kept.keep(spans, features)

    def _catch_up(self, rows: np.ndarray, before: np.ndarray, ends: np.ndarray) -> None:
        """Compute what is kept in front of `before` where features up to `ends` would take its
        place."""
        done = self._done[rows]
        kept = (self._kept.first[rows] <= done) & (before <= self._kept.end[rows])
        full = kept & (done < np.minimum(before, ends - 1 - self.width))
        if not full.any():
            return
        rows, known, done = rows[full], before[full], done[full]
        self._passes.begin(rows, known, done)
        features = self._kept.find(rows, done, known - done)
        step, _ = self._passes.gather(rows, known - done)
        self._head.give(self._head.fuse(features, step))
        self._passes.run(step)
        self._done[rows] = known
