"""Trees of drafts: what several drafts stand behind the same token, and which of them stay.

The tokens of a span stand in its row's pages in their order, which is not that of their positions:
position follows depth. So attention finds the last keys of such a token by its path, and what was
accepted moves to the places of a chain behind the step. To attention the keys of a path are those
of a chain, one after the other: its numbers are the same to the bit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vivace.platforms.attention import StepPages
from vivace.platforms.host import upload
from vivace.platforms.rows import DraftPaths, RowColumns, Spans


def accept_drafts(spans: Spans, drafts: Tensor, drawn: Tensor, wrong: Tensor) -> Tensor:
    """[N] bool: which of the `drawn[N]` tokens stand. The first of a span does, unless its numbers
    are `wrong[N]`; each other one where its own token, of drafts[N], is what was drawn at the one
    before it, as for all before."""
    if spans.trees is not None:
        return spans.trees.accept(drafts, drawn, wrong)
    assert spans.ahead is not None
    first = upload(np.arange(len(spans.ahead)) - spans.ahead, drawn.device)
    follows = upload(spans.ahead > 0, drawn.device)
    fails = wrong | (follows & (drafts != drawn.roll(1)))
    so_far = fails.cumsum(0)
    before = so_far - fails.long()
    return so_far == before.index_select(0, first)


@dataclass(frozen=True, kw_only=True, slots=True)
class DraftTrees:
    """Of a step of T tokens, N of which draw, with at most W drafts in a span."""

    tokens: DraftPaths
    """of its T tokens"""
    entries: DraftPaths
    """of those that draw"""
    skipped: Tensor
    """[T] int64: how many places each token stands behind that of its position"""
    last: Tensor
    """[N] int64: the token of each entry"""
    parents: Tensor
    """[N] int64: the entry that draws what each entry's token has to be; its own where the token is
    known"""

    def accept(self, drafts: Tensor, drawn: Tensor, wrong: Tensor) -> Tensor:
        """[N] bool: which of the `drawn[N]` tokens stand. Of the entries whose tokens are drafts[N]
        those on one way from each span's known token, where every draft is what was drawn in front
        of it, up to one whose numbers are `wrong[N]`. Of equal drafts the first counts."""
        places, above = torch.arange(len(drawn), device=drawn.device), self.parents
        known = above == places
        agrees = (drafts == drawn[above]) & ~known
        chosen = torch.full_like(places, len(places)).scatter_reduce_(
            0, above, torch.where(agrees, places, len(places)), "amin"
        )
        good = ~wrong & (known | (chosen[above] == places))
        for _ in range(self.entries.width.bit_length()):
            good, above = good & good[above], above[above]
        return good

    def straighten(self, stays: Tensor) -> Tensor:
        """[T] int64: the token that a chain has at each place, if those entries stay. Others stand
        where they stood, or nowhere."""
        places = torch.arange(len(self.skipped) + 1, device=stays.device)
        moved = self.last - self.skipped[self.last]
        places[torch.where(stays, moved, len(self.skipped))] = self.last
        return places[:-1]


def lay_out_trees(columns: RowColumns, spans: Spans) -> DraftTrees:
    """The trees that a drafter proposed in `columns.parents`. A parent that is none of the drafts
    before its child counts as the draft before it."""
    assert columns.parents is not None and spans.drafts is not None and spans.ahead is not None
    device = columns.known.device
    parents = columns.parents[upload(spans.rows, device)].long()
    before = torch.arange(parents.shape[1], device=device) - 1
    parents = torch.where((parents < -1) | (parents > before), before, parents) + 1
    depths, paths = _find_paths(parents)
    of_token = np.repeat(np.arange(len(spans.rows)), spans.counts)
    known = spans.known
    nodes = 1 + np.arange(len(of_token)) - np.repeat(spans.starts[:-1] + known, spans.counts)
    owner, node = upload(of_token, device), upload(np.maximum(nodes, 0), device)
    tokens = DraftPaths(depths[owner, node], paths[owner, node])
    last, firsts = upload(spans.last, device), np.arange(len(spans.last)) - spans.ahead
    drawing, ahead = upload(spans.final, device), upload(spans.ahead, device)
    above = parents[drawing, (ahead - 1).clamp_min(0)].masked_fill(ahead == 0, 0)
    return DraftTrees(
        tokens=tokens,
        entries=tokens.select(last),
        skipped=node - tokens.depths,
        last=last,
        parents=upload(firsts, device) + above,
    )


def lay_out_branches(places: np.ndarray, width: int, device: torch.device) -> DraftTrees:
    """Of n tokens at the ends of ways of equal length, of which `places`[n, depth] are those behind
    the known tokens. `width`: of the paths in the step's buffers."""
    count, depth = places.shape
    drafts = torch.zeros((count, width), dtype=torch.int64, device=device)
    drafts[:, :depth] = upload(places, device)
    each = torch.arange(count, device=device)
    paths = DraftPaths(torch.full_like(each, depth), drafts)
    skipped = upload(places[:, -1] + 1 - depth, device)
    return DraftTrees(tokens=paths, entries=paths, skipped=skipped, last=each, parents=each)


def _find_paths(parents: Tensor) -> tuple[Tensor, Tensor]:
    """(depths [S, 1 + W], paths [S, 1 + W, W] int64) of the last known token and the drafts behind
    it, from the parents[S, W] of these, 0: the known token."""
    spans, width = parents.shape
    depths = parents.new_zeros(spans, 1 + width)
    paths = parents.new_zeros(spans, 1 + width, width)
    each = torch.arange(spans, device=parents.device)
    for draft in range(width):
        above = parents[:, draft]
        depth = depths[each, above]
        paths[:, draft + 1] = paths[each, above]
        paths[each, draft + 1, depth] = draft
        depths[:, draft + 1] = depth + 1
    return depths, paths


def locate_context(where: StepPages, span: int, length: int, end: Tensor, page_size: int) -> Tensor:
    """[length] int64: the slots of a span's context, whose end on the device is `end`; for
    references."""
    places = torch.arange(length, device=end.device)
    slots = where.page_table[span, places // page_size] * page_size + places % page_size
    if where.paths is None:
        return slots
    count, path = where.paths[span, 0], where.paths[span, 1:]
    along = places - (end - count)
    apart = (along >= 0) & (along < count)
    return torch.where(apart, path[along.clamp(0, len(path) - 1)], slots)
