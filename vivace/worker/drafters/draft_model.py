"""Drafts of a smaller model (speculative decoding; Leviathan et al. 2023): what it says is most
probable, one pass for each token of a chain, or for each depth of a tree.

What it keeps of a token lies in the same page as what the model keeps, in layers of its own: prefix
cache, retraction and copies of pages are about both. Of prompts it computes what a step computed,
behind it, unless the plan says that nobody wants drafts (`StepPlan.undrafted`); of decoded tokens
when drafts are next wanted: with none it costs nothing. Rows that lack many by then get none yet,
and catch up behind the next steps, some tokens in each. Where something is missing or stale, drafts
are worse, and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from vivace.models.causal_lm import CausalLM
from vivace.platforms.cache import CacheLayer
from vivace.platforms.host import download
from vivace.platforms.rows import RowColumns, Spans
from vivace.protocol.step import Join, StepPlan
from vivace.worker.drafter import NoDrafter
from vivace.worker.drafters.passes import DraftPasses
from vivace.worker.drafters.place import DrafterPlace
from vivace.worker.drafters.searches import DraftSearch, SearchPlace
from vivace.worker.rows import RowStates
from vivace.worker.step_input import StepInput

MOST_MISSED = 256
"""tokens of all rows that are computed in one step because there were no drafts before"""


class DraftedPages:
    """Which pages hold the draft's KV of all their tokens. Of a prefix that somebody computed while
    nobody wanted drafts none does, and who shares it must not take that for the draft's."""

    def __init__(self, rows: RowStates) -> None:
        self._size = rows.page_size
        self._filled = np.zeros(rows.pool_pages[0], np.bool_)
        self._pages = [list[int]() for _ in range(rows.rows)]
        self._counts = np.zeros(rows.rows, np.int64)
        """[rows]: of a row's first pages those that are filled"""

    def update(self, plan: StepPlan) -> None:
        """Behind its joins. Whoever gets a page writes it anew."""
        for grant in plan.grants:
            if not grant.group:
                self._pages[grant.row] += grant.pages
                self._filled[grant.pages] = False
        for copy in plan.copies:
            if not copy.group:
                self._filled[copy.target] = self._filled[copy.source]

    def join(self, join: Join) -> int:
        """How many of the tokens that have KV have the draft's, too."""
        shared, count = join.pages[: -(-join.cached // self._size)], 0
        self._filled[join.pages[len(shared) :]] = False
        for page in shared:
            if not self._filled[page]:
                break
            count += 1
        self._pages[join.row] = list(join.pages)
        done = min(join.cached, count * self._size)
        self._counts[join.row] = done // self._size
        return done

    def fill(self, rows: np.ndarray, ends: np.ndarray) -> None:
        """The draft has KV of these rows' first `ends` tokens."""
        counts = ends // self._size
        for index in np.flatnonzero(counts > self._counts[rows]).tolist():
            row, count = int(rows[index]), int(counts[index])
            self._filled[self._pages[row][self._counts[row] : count]] = True
            self._counts[row] = count


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
        search: DraftSearch,
        vocabulary: int,
        ids: int,
    ) -> None:
        """`layers`: the draft's, with indexes behind the served model's; `ids`: those that it has
        an embedding of"""
        self.width = width
        self.layers = layers
        self.trees = search.trees
        self._search = search
        self._model = model
        self._vocabulary = vocabulary
        self._last_id = ids - 1 if ids < vocabulary else None

    def attach(self, place: DrafterPlace) -> None:
        self._passes = DraftPasses(
            self._model, self.layers, place, row_tokens=self._search.row_tokens
        )
        ops, parents = place.platform.sampling(), place.rows.columns.parents
        self._search.attach(SearchPlace(self._passes, self._compute, ops, None, parents))
        self.nbytes = self._passes.nbytes
        self._done = np.zeros(place.rows.rows, np.int64)
        """[rows]: of how many of a row's first tokens the draft has KV; of drafts among them only
        those that were accepted count"""

        self._pages = DraftedPages(place.rows)
        self._unread: set[int] = set()
        """rows of which the step's prompt need not be computed"""
        self._lacking = np.zeros(place.rows.rows, np.bool_)
        """[rows]: wanted drafts, and lacked too much; it has to catch up"""
        self._told = np.zeros(place.rows.rows, np.int64)
        """[rows]: how many drafts each was last said to have. Of a request that comes back the
        engine may still know 0"""
        self._known = place.rows.columns.known

    def update(self, plan: StepPlan) -> None:
        self._lacking[plan.leaves] = False
        self._unread = set(plan.undrafted)
        for join in plan.joins:
            self._done[join.row] = self._pages.join(join)
            self._lacking[join.row], self._told[join.row] = False, 0
        self._pages.update(plan)

    def propose(self, columns: RowColumns, rows: np.ndarray, counts: np.ndarray) -> None:
        known = download(columns.known)[rows].astype(np.int64)
        computed = np.minimum(self._done[rows], known - 1)
        waiting = known - computed
        missed = np.where((waiting > self._search.row_tokens) & (counts > 0), waiting, 0)
        lacking = (np.cumsum(missed) > MOST_MISSED) & (missed > 0)
        self._lacking[rows] |= lacking
        able = (counts > 0) & ~lacking
        if not able.any():
            return
        rows, counts, known, computed = rows[able], counts[able], known[able], computed[able]
        self._passes.begin(rows, known, computed)
        step, spans = self._passes.gather(rows, waiting[able])
        drawn = self._compute(step, step.input_ids)
        self._pages.fill(rows, known)
        self._done[rows] = known + self._search.propose(rows, counts, spans, *drawn)

    def follow(self, step: StepInput, spans: Spans, hidden: Tensor, taps: Sequence[Tensor]) -> None:
        prompts = spans.known
        if not spans.flat and not self._unread.issuperset(spans.rows[prompts > 1].tolist()):
            self._passes.follow(step, self._own_ids(step.input_ids))
            whole = self._done[spans.rows] >= spans.before
            rows, ends = spans.rows[whole], (spans.before + prompts)[whole]
            self._done[rows] = ends
            self._pages.fill(rows, ends)
        if self._lacking.any():
            self._catch_up(np.flatnonzero(self._lacking))

    def _catch_up(self, rows: np.ndarray) -> None:
        """Some tokens of these, the first ones first; the last one that is known is left for a
        pass that says what follows."""
        known = download(self._known)[rows].astype(np.int64)
        waiting = np.maximum(known - 1 - self._done[rows], 0)
        room = MOST_MISSED - (np.cumsum(waiting) - waiting)
        counts = np.clip(room, 0, waiting)
        self._lacking[rows[counts == waiting]] = False
        some = counts > 0
        rows, counts, known = rows[some], counts[some], known[some]
        if not len(rows):
            return
        self._passes.begin(rows, known, self._done[rows])
        step, _ = self._passes.gather(rows, counts)
        self._run(step)
        self._done[rows] += counts
        self._pages.fill(rows, self._done[rows])

    def ready(self, rows: list[int]) -> list[int]:
        """Only told where it is news."""
        ready = np.where(self._lacking[rows], 0, self.width)
        if not (self._lacking.any() or (self._told[rows] == 0).any()):
            return []
        self._told[rows] = ready
        return ready.tolist()

    def _compute(self, step: StepInput, states: Tensor) -> tuple[Tensor, Tensor]:
        """A `DraftPass` that needs no states."""
        hidden = self._run(step)
        if len(step.logits_indices) < hidden.shape[0]:
            hidden = hidden.index_select(0, step.logits_indices)
        logits = self._model.lm_head(hidden)
        if logits.shape[1] > self._vocabulary:
            logits = logits[:, : self._vocabulary].contiguous()
        return logits, hidden

    def _run(self, step: StepInput) -> Tensor:
        if self._last_id is not None:
            step.input_ids.clamp_(max=self._last_id)
        return self._passes.run(step)

    def _own_ids(self, ids: Tensor) -> Tensor:
        """Those that the draft has no embedding of become another."""
        return ids if self._last_id is None else ids.clamp(max=self._last_id)
