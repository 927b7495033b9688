"""Relaxed acceptance: what is drawn may become a draft that is likely enough.

SGLang's rule (`tree_speculative_sampling_target_only` of its sgl-kernel). With both thresholds at 1
its tokens would have the distribution of `ExactDraw`, though not be the same ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vivace.platforms.host import upload
from vivace.platforms.ops.sampling import SamplingOps, invert
from vivace.sampling.processors import Entries
from vivace.sampling.sampler import Draw, ExactDraw, SamplingRows

WEIGHTS = 1 << 24
"""elements of the largest temporary table of probabilities, unless one row has more"""
LEAST_DIVISOR = 1e-9


@dataclass(frozen=True, slots=True)
class AcceptThresholds:
    single: float = 1.0
    """a draft is accepted from this probability on"""
    acc: float = 1.0
    """what probabilities are divided by before the draw is compared with them"""

    @property
    def exact(self) -> bool:
        return self.single >= 1.0 and self.acc >= 1.0


EXACT = AcceptThresholds()


def choose_draw(ops: SamplingOps, tokens: Tensor, thresholds: AcceptThresholds) -> Draw:
    """`tokens`: column of the rows, in which drafts stand behind what is known."""
    if thresholds.exact:
        return ExactDraw(ops)
    return RelaxedDraw(ops, tokens, thresholds)


class RelaxedDraw:
    """Where drafts stand behind an entry they are tried in their order. Each adds its probability
    to that of those before it, and is what is drawn if the entry's uniform number is below this
    sum divided by `acc`, or if its own probability is at least `single`. If none is, what remains
    of the uniform number draws one of the other tokens.

    Probabilities are those after temperature, top-k, top-p and min-p, of which the sum is 1; what
    these exclude is never accepted. What is drawn depends on an entry's logits, seed, position and
    drafts, and on nothing else of the step.
    """

    def __init__(self, ops: SamplingOps, tokens: Tensor, thresholds: AcceptThresholds) -> None:
        self._ops, self._tokens, self._thresholds = ops, tokens, thresholds
        self._exact = ExactDraw(ops)

    def __call__(
        self, logits: Tensor, index: Tensor, entries: Entries, columns: SamplingRows
    ) -> Tensor:
        drawn = self._exact(logits, index, entries, columns)
        for chosen in _divide(entries.host_rows, logits.shape[1]):
            at = upload(chosen, index.device)
            some = entries.select(chosen, at)
            batch = columns.batch(some)
            weights = self._ops.weights(logits, index.index_select(0, at), batch)
            offers = find_offers(self._tokens, some)
            exact = drawn.index_select(0, at)
            drawn[at] = relax(weights, batch.uniform, exact, offers, self._thresholds)
        return drawn


def _divide(rows: np.ndarray, vocabulary: int) -> list[np.ndarray]:
    """The entries of rows[n] that have several, ascending, in parts that end with a row."""
    starts = np.flatnonzero(np.diff(rows, prepend=-1))
    counts = np.diff(starts, append=len(rows))
    ends = np.cumsum(np.where(counts > 1, counts, 0))
    several = np.flatnonzero(np.repeat(counts > 1, counts))
    part = np.repeat(ends // max(1, WEIGHTS // vocabulary), counts)[several]
    return [several[part == each] for each in np.unique(part)]


@dataclass(frozen=True, slots=True)
class DraftOffer:
    """Drafts that stand behind entries, at most one behind each."""

    entries: Tensor
    """[d] int64"""
    tokens: Tensor
    """[d] int64"""


def find_offers(tokens: Tensor, entries: Entries) -> list[DraftOffer]:
    """Of n entries of rows that have several, the first of which is that of the last known token:
    what may be drawn at each, in the order of the drafts."""
    places = np.arange(len(entries))
    firsts = np.maximum.accumulate(np.where(np.diff(entries.host_rows, prepend=-1), places, 0))
    ahead = places - firsts
    device = entries.positions.device
    known = entries.positions.index_select(0, upload(firsts, device))
    rounds = [ahead > 0]
    above = upload(np.maximum(places - 1, 0), device)
    if entries.paths is not None:  # one draft of each tree at a time: these are no siblings
        rounds = [ahead == draft for draft in range(1, int(ahead.max()) + 1)]
        depths = entries.paths.depths.unsqueeze(1)
        parents = entries.paths.drafts.gather(1, (depths - 2).clamp_min(0)).squeeze(1) + 1
        above = upload(firsts, device) + parents.masked_fill(depths.squeeze(1) < 2, 0)
    where = known + upload(np.maximum(ahead - 1, 0), device)
    drafts = tokens[entries.rows, where].long()
    chosen = [upload(np.flatnonzero(each), device) for each in rounds]
    return [DraftOffer(above.index_select(0, each), drafts[each]) for each in chosen]


def relax(
    weights: Tensor,
    uniform: Tensor,
    exact: Tensor,
    offers: list[DraftOffer],
    thresholds: AcceptThresholds,
) -> Tensor:
    """[n] int64: what is drawn of weights[n, V] float32 (overwritten) with uniform[n] float64;
    exact[n] where nothing is offered."""
    total = weights.cumsum(-1, dtype=torch.float64)[:, -1]
    reached = torch.zeros_like(total)
    """the probability of all drafts so far"""
    taken = torch.full_like(exact, -1)
    offered = torch.zeros_like(exact, dtype=torch.bool)
    for offer in offers:
        at, token = offer.entries, offer.tokens
        probability = weights[at, token].double() / total[at]
        weights[at, token] = 0.0
        reached[at] += probability
        below = uniform[at] * thresholds.acc < reached[at]
        accepted = (below | (probability >= thresholds.single)) & (probability > 0)
        taken[at] = torch.where(accepted & (taken[at] < 0), token, taken[at])
        offered[at] = True
    passed = (reached / max(thresholds.acc, LEAST_DIVISOR)).clamp_(max=1.0)
    others = invert(weights, (uniform - passed) / (1.0 - passed))
    rest = offered & (weights.amax(-1) > 0)
    return torch.where(taken >= 0, taken, torch.where(rest, others, exact))
