"""What is proposed of what a draft says: its most probable tokens one after the other, or a tree of
the likeliest ways (EAGLE-2; Li et al. 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from vivace.platforms.host import download, upload
from vivace.platforms.ops.sampling import SamplingOps
from vivace.platforms.rows import Spans
from vivace.worker.drafters.growing_trees import GrowingTrees
from vivace.worker.drafters.passes import DraftPasses
from vivace.worker.step_input import StepInput


class DraftPass(Protocol):
    """What computes a pass: (logits[n, draft vocabulary] float32 of the tokens that they are wanted
    of, these tokens' states[n, hidden] for the next pass). Given are the states of the step's
    tokens; drafts that have none are given and give any."""

    def __call__(self, step: StepInput, states: Tensor) -> tuple[Tensor, Tensor]: ...


@dataclass(frozen=True)
class SearchPlace:
    """What a search finds in a drafter. `ids`[draft vocabulary] int64: the model's of the draft's;
    None: they are the same. `parents`[rows, drafts]: of trees (`RowColumns`)"""

    passes: DraftPasses
    compute: DraftPass
    ops: SamplingOps
    ids: Tensor | None
    parents: Tensor | None

    def name(self, tokens: Tensor) -> Tensor:
        return tokens if self.ids is None else self.ids[tokens]


class DraftSearch(Protocol):
    """Further passes behind a first one."""

    trees: bool
    row_tokens: int
    """most tokens of a row in a usual pass"""

    def attach(self, place: SearchPlace) -> None: ...

    def propose(
        self, rows: np.ndarray, counts: np.ndarray, spans: Spans, logits: Tensor, states: Tensor
    ) -> np.ndarray:
        """Up to `counts`[n] drafts for each of n rows, whose last known tokens have these
        logits[n, V] and states[n, hidden] after a pass with `spans`. Returns for how many of a
        row's drafts, [n] int64, the draft has KV now if they are accepted."""
        ...


class ChainSearch:
    """The most probable token, and what is most probable behind it, one pass for each."""

    trees = False
    row_tokens = 2
    """where drafts were all right: the last one, and what was drawn behind it"""

    def attach(self, place: SearchPlace) -> None:
        self._place = place

    def propose(
        self, rows: np.ndarray, counts: np.ndarray, spans: Spans, logits: Tensor, states: Tensor
    ) -> np.ndarray:
        passes = self._place.passes
        self._draw(spans, logits)
        going = np.arange(len(rows))
        for done in range(1, int(counts.max())):
            left = counts[going] > done
            if not left.all():
                states = states.index_select(0, upload(np.flatnonzero(left), states.device))
                going = going[left]
            step, spans = passes.gather(rows[going], np.ones_like(going))
            logits, states = self._place.compute(step, states)
            self._draw(spans, logits)
        return np.maximum(counts - 1, 0)

    def _draw(self, spans: Spans, logits: Tensor) -> None:
        tokens, _ = self._place.ops.argmax(logits)
        self._place.passes.record(spans, self._place.name(tokens))


class TreeSearch:
    """The `topk` likeliest tokens, and of those behind each of these again the `topk` likeliest
    ways, one pass for each of `steps` depths; in the end the likeliest drafts of all."""

    trees = True

    def __init__(self, topk: int, steps: int, width: int) -> None:
        """`width`: most drafts"""
        self._topk = topk
        self._steps = steps
        self._width = width
        self.row_tokens = max(topk, steps + 1)

    def attach(self, place: SearchPlace) -> None:
        self._place = place

    def propose(
        self, rows: np.ndarray, counts: np.ndarray, spans: Spans, logits: Tensor, states: Tensor
    ) -> np.ndarray:
        place, most = self._place, min(self._steps, int(counts.max()))
        trees = GrowingTrees(counts, self._width, *self._rank(logits))
        for _ in range(1, most):
            branches = trees.branch()
            if not len(branches.tokens):
                break
            step = place.passes.gather_branches(
                rows[branches.rows], branches.tokens, branches.places
            )
            given = states.index_select(0, upload(branches.sources, states.device))
            logits, states = place.compute(step, given)
            trees.grow(branches, *self._rank(logits))
        tokens, parents = trees.choose()
        place.passes.write(rows, tokens)
        if place.parents is not None:
            width, device = tokens.shape[1], place.parents.device
            chosen = upload(rows, device)
            place.parents[chosen, :width] = upload(parents.astype(np.int32), device)
        return np.zeros_like(counts)  # its KV does not stand where that of a chain does

    def _rank(self, logits: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """(log-probabilities, the model's ids), [n, topk] both, of the likeliest."""
        ops, count = self._place.ops, min(self._topk, logits.shape[1])
        values, tokens = ops.topk(logits, count)
        total = ops.logsumexp(logits, torch.ones(len(logits), device=logits.device))
        ids = self._place.name(tokens.clamp_(0, logits.shape[1] - 1))
        scores = (values - total.unsqueeze(1)).nan_to_num_(nan=-torch.inf).clamp_(max=0.0)
        return download(scores), download(ids)
