"""Rows in host memory: numpy on the columns' own memory. Its lengths on the host are exact."""

from __future__ import annotations

import numpy as np

from vivace.platforms.rows import (
    ColumnChange,
    GatherBuffers,
    RowColumns,
    SampledTokens,
    Spans,
    StepLayout,
)
from vivace.platforms.trees import DraftTrees


class HostViews:
    """GatherBuffers as numpy sees them."""

    def __init__(self, out: GatherBuffers) -> None:
        self.input_ids = out.input_ids.numpy()
        self.positions = out.positions.numpy()
        self.slots = [slots.numpy() for slots in out.slots]
        self.tables = [table.numpy() for table in out.tables]
        self.query_starts = out.query_starts.numpy()
        self.context_lens = out.context_lens.numpy()
        self.logits_indices = out.logits_indices.numpy()
        self.paths = None if out.paths is None else [paths.numpy() for paths in out.paths]


class HostRows:
    """RowOps of the CPU."""

    def __init__(self, columns: RowColumns) -> None:
        self._columns = columns
        self._tokens = columns.tokens.numpy()
        self._known = columns.known.numpy()
        self._computed = columns.computed.numpy()
        self._pages = [pages.numpy() for pages in columns.pages]
        self._out: GatherBuffers | None = None

    def scatter(self, changes: list[ColumnChange]) -> None:
        for change in changes:
            change.column.numpy().reshape(-1)[change.places] = change.values

    def gather(self, spans: Spans, out: GatherBuffers) -> StepLayout:
        before = self._computed[spans.rows]
        rows, places = spans.rows, before
        if spans.places is not None:
            places = self._known[rows] + spans.places
        elif not spans.decode:
            rows = np.repeat(rows, spans.counts)
            places = np.arange(len(rows))
            places += np.repeat(before - spans.starts[:-1], spans.counts)
        if out is not self._out:
            self._out, self._views = out, HostViews(out)
        views = self._views
        self._gather_tokens(rows, places, views)
        if views.paths is not None:
            places = self._gather_paths(rows, places, spans.trees, views)
        if spans.flat:
            laid_rows, lengths, starts = rows, places + 1, np.arange(len(rows) + 1)
        else:
            laid_rows, lengths, starts = spans.rows, before + spans.counts, spans.starts
        width = self._gather_tables(laid_rows, lengths, starts, views)
        views.context_lens[:] = lengths
        views.query_starts[:] = starts
        views.logits_indices[:] = spans.last
        drawn = self._known[spans.rows[spans.final]]
        if spans.trees is not None:
            drawn += spans.trees.entries.depths.numpy()
        elif spans.ahead is not None:
            drawn += spans.ahead
        spans.positions.numpy()[:] = drawn
        return StepLayout(laid_rows, starts, lengths, width)

    def record(self, spans: Spans, draws: SampledTokens) -> None:
        rows, positions = spans.entry_rows.numpy(), spans.positions.numpy()
        stays, bad = draws.stays.numpy(), draws.bad_spans.numpy()
        if spans.trees is None:
            self._tokens[rows, positions] = draws.tokens.numpy()
        else:  # several are drawn for one position
            self._tokens[rows[stays], positions[stays]] = draws.tokens.numpy()[stays]
        if spans.drafts is None and not bad.any():
            self._computed[spans.rows] += spans.counts
            self._known[rows] = positions + 1
            return
        moved = spans.counts
        drawn = np.bincount(spans.final, stays, minlength=len(moved)).astype(np.int64)
        if spans.drafts is not None:  # a draft was computed for good where a token stands behind it
            moved = moved - spans.drafts + np.maximum(drawn - 1, 0)
        self._computed[spans.rows] += np.where(bad, 0, moved)
        self._known[spans.rows] += drawn

    def _gather_tokens(self, rows: np.ndarray, places: np.ndarray, views: HostViews) -> None:
        views.positions[:] = places
        views.input_ids[:] = self._tokens[rows, places]
        page, offset = np.divmod(places, self._columns.page_size)
        for pages, slots in zip(self._pages, views.slots, strict=True):
            slots[:] = pages[rows, page]
            slots *= self._columns.page_size
            slots += offset

    def _gather_paths(
        self, rows: np.ndarray, places: np.ndarray, trees: DraftTrees | None, views: HostViews
    ) -> np.ndarray:
        """Fill the paths of tokens that stand at `places`; returns their positions."""
        assert views.paths is not None
        if trees is None:
            for paths in views.paths:
                paths[:, 0] = 0
            return places
        depths, drafts = trees.tokens.depths.numpy(), trees.tokens.drafts.numpy()
        positions = places - trees.skipped.numpy()
        views.positions[:] = positions
        page, offset = np.divmod(
            (positions - depths)[:, None] + 1 + drafts, self._columns.page_size
        )
        for pages, paths in zip(self._pages, views.paths, strict=True):
            paths[:, 0] = depths
            paths[:, 1:] = pages[rows[:, None], page] * self._columns.page_size + offset
        return positions

    def _gather_tables(
        self, rows: np.ndarray, lengths: np.ndarray, starts: np.ndarray, views: HostViews
    ) -> int:
        """Fill the page tables; returns how many pages the longest span has."""
        columns, size = self._columns, self._columns.page_size
        used = -(-lengths // size)
        widest = int(used.max())
        uneven = len(rows) > 1 and int(used.min()) < widest
        for pages, whole, empty, reach in zip(
            self._pages, views.tables, columns.empty_pages, columns.reaches, strict=True
        ):
            table = whole[: len(rows), :widest]
            table[:] = pages[rows, :widest]
            if uneven:
                table[np.arange(widest) >= used[:, None]] = empty
            if reach is not None:
                before = lengths - (starts[1:] - starts[:-1])
                first = np.maximum(before - reach, 0) // size
                table[np.arange(widest) < first[:, None]] = empty
        return widest
