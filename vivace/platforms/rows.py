"""Rows on the device: where every sequence stands, in columns whose addresses never change.

The token a step draws is known here first, and the next step reads it from here, so that a step can
be prepared before the host has seen what the one before it drew. `RowOps` is everything that
reads or writes the columns; the host keeps only upper bounds of what stands in them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from vivace.platforms.trees import DraftTrees


TokensByRow = Mapping[int, list[int]]


@dataclass(frozen=True, kw_only=True)
class RowColumns:
    """Row r knows `tokens[r, : known[r]]`, and KV of `computed[r]` of these is valid."""

    tokens: Tensor
    """[rows, context + 1 + drafts] int32; what stands behind `known` is scratch"""
    known: Tensor
    """[rows] int64"""
    computed: Tensor
    """[rows] int64"""
    prompt: Tensor
    """[rows] int64: how many of the known tokens are prompt"""
    pages: tuple[Tensor, ...]
    """of each cache group [rows, most] int32: page ids"""
    page_size: int
    empty_pages: tuple[int, ...]
    """of each cache group: the page that nobody owns"""
    reaches: tuple[int | None, ...]
    """of each cache group: how many positions before its own a query sees; None: all"""
    parents: Tensor | None = None
    """[rows, drafts] int32, where drafts may be trees: of each draft behind `known` the one that it
    follows, which comes before it; -1: it follows the last known token"""


@dataclass(frozen=True, slots=True)
class ColumnChange:
    """New values of a column, which is flattened."""

    column: Tensor
    places: np.ndarray
    """[n] int64, each once"""
    values: np.ndarray
    """[n] of any type that can become the column's"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Spans:
    """A step as far as the host knows it: S spans of T tokens, and N tokens that are drawn."""

    rows: np.ndarray
    """[S] int64"""
    counts: np.ndarray
    """[S] int64"""
    starts: np.ndarray
    """[S + 1] int64 token offsets"""
    before: np.ndarray
    """[S] int64: upper bound of the positions computed before this step; exact while a prompt is
    computed"""
    final: np.ndarray
    """[N] int64: the span of each token whose logits are wanted: of the last known one and of the
    drafts behind it, where a span reaches it"""
    last: np.ndarray
    """[N] int64: those tokens"""
    ahead: np.ndarray | None
    """[N] int64: how far behind the first of its span each is; None: all 0"""
    entry_rows: Tensor
    """[N] int64 `rows[final]` on the device"""
    positions: Tensor
    """[N] int64 on the device: of the tokens that are drawn; `RowOps.gather` fills it"""
    drafts: np.ndarray | None = None
    """[S] int64: how many of a span's tokens are drafts; None: there are none"""
    flat: bool = False
    """every token is laid out as a span that ends with itself"""
    trees: DraftTrees | None = None
    """None: drafts are chains"""
    places: np.ndarray | None = None
    """[T] int64, of spans of one token, which several may have in a row: how far behind the known
    tokens each stands. None: tokens follow what is computed"""

    @property
    def decode(self) -> bool:
        """Every span is one token."""
        return len(self.rows) == self.starts[-1]

    @property
    def known(self) -> np.ndarray:
        """[S] int64: how many of a span's tokens are no drafts"""
        return self.counts if self.drafts is None else self.counts - self.drafts


@dataclass(frozen=True, slots=True)
class DraftPaths:
    """From the last known token of a row to each of n tokens behind it."""

    depths: Tensor
    """[n] int64: drafts on the way, its own among them; 0: the token is known"""
    drafts: Tensor
    """[n, W] int64: which drafts of the row these are, in their order; behind them 0"""

    @property
    def width(self) -> int:
        return self.drafts.shape[1]

    def select(self, index: Tensor) -> DraftPaths:
        return DraftPaths(self.depths[index], self.drafts[index])

    def read_tokens(self, tokens: Tensor, rows: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """(found[n, any], its rows): tokens[rows[n]] as each of n tokens has them in front of what
        follows it at `positions[n]`, those on its way in the place of all drafts."""
        found, places = tokens.index_select(0, rows), torch.arange(self.width, device=rows.device)
        known = (positions - self.depths).unsqueeze(1)
        drafts, behind = found.gather(1, known + self.drafts), known + places
        drafts = torch.where(places < self.depths.unsqueeze(1), drafts, found.gather(1, behind))
        return found.scatter_(1, behind, drafts), torch.arange(len(rows), device=rows.device)


@dataclass(frozen=True, kw_only=True, slots=True)
class GatherBuffers:
    """Where `RowOps.gather` writes a step of T tokens, laid out as L spans."""

    input_ids: Tensor
    """[T] int64"""
    positions: Tensor
    """[T] int64"""
    slots: tuple[Tensor, ...]
    """of each cache group [T] int64"""
    tables: tuple[Tensor, ...]
    """of each cache group [>= L, most] int64: pages of each span, the empty page behind them and
    in front of what a window sees"""
    query_starts: Tensor
    """[L + 1] int64"""
    context_lens: Tensor
    """[L] int64"""
    logits_indices: Tensor
    """[N] int64"""
    paths: tuple[Tensor, ...] | None = None
    """of each cache group [T, 1 + W] int64: `StepPages.paths`; None: drafts are chains always, or
    spans are not single tokens"""


@dataclass(frozen=True, slots=True)
class StepLayout:
    """What the host has to know of a step in order to launch it."""

    rows: np.ndarray
    """[L] int64"""
    starts: np.ndarray
    """[L + 1] int64"""
    context_lens: np.ndarray
    """[L] int64: exact where rows lie in host memory, elsewhere upper bounds"""
    width: int
    """pages of the longest span"""


class SampledTokens(Protocol):
    """What a step drew (`worker.heads.StepOutput` is one)."""

    tokens: Tensor
    """[N] int64"""
    stays: Tensor
    """[N] bool: the tokens that become known; those of a span follow each other from its first"""
    bad_spans: Tensor
    """[S] bool: these did not move on"""


class RowOps(Protocol):
    """What happens to the columns of one worker. Nothing waits for the device."""

    def scatter(self, changes: list[ColumnChange]) -> None:
        """Rows leave, join and receive pages."""
        ...

    def gather(self, spans: Spans, out: GatherBuffers) -> StepLayout:
        """Fill `out` and `spans.positions`; changes no column."""
        ...

    def record(self, spans: Spans, draws: SampledTokens) -> None:
        """Enter a step: rows moved on, and tokens are known, too. Cannot fail half-way on the
        host."""
        ...
