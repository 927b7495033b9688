"""The reference for rows, in torch's operations: it runs on any device and waits for none."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from vivace.platforms.host import upload
from vivace.platforms.rows import (
    ColumnChange,
    GatherBuffers,
    RowColumns,
    SampledTokens,
    Spans,
    StepLayout,
)
from vivace.platforms.trees import DraftTrees


class TorchRows:
    """RowOps by torch."""

    def __init__(self, columns: RowColumns) -> None:
        self._columns = columns
        self._device = columns.known.device

    def scatter(self, changes: list[ColumnChange]) -> None:
        """In one block, so that one copy brings it to the device."""
        if not changes:
            return
        parts = [part for change in changes for part in (change.places, change.values)]
        block = upload(np.concatenate(parts, dtype=np.int64, casting="unsafe"), self._device)
        pieces = block.split([len(part) for part in parts])
        for change, places, values in zip(changes, pieces[::2], pieces[1::2], strict=True):
            change.column.view(-1).index_copy_(0, places, values.to(change.column.dtype))

    def gather(self, spans: Spans, out: GatherBuffers) -> StepLayout:
        columns = self._columns
        rows, places = self._token_places(spans)
        out.positions.copy_(places)
        out.input_ids.copy_(columns.tokens[rows, places])
        for pages, slots in zip(columns.pages, out.slots, strict=True):
            page = pages[rows, places // columns.page_size]
            torch.add(page * columns.page_size, places % columns.page_size, out=slots)
        if out.paths is not None:
            places = self._gather_paths(rows, places, spans.trees, out)
        shape = self._shape_on_host(spans)
        laid_rows = rows if spans.flat else upload(spans.rows, self._device)
        counts = upload(np.diff(shape.starts), self._device)
        lengths = columns.computed[laid_rows] + counts if not spans.flat else places + 1
        out.context_lens.copy_(lengths)
        out.query_starts.copy_(upload(shape.starts, self._device))
        out.logits_indices.copy_(upload(spans.last, self._device))
        self._gather_tables(laid_rows, lengths, counts, shape.width, out)
        drawn = columns.known[spans.entry_rows]
        if spans.trees is not None:
            drawn += spans.trees.entries.depths
        elif spans.ahead is not None:
            drawn += upload(spans.ahead, self._device)
        spans.positions.copy_(drawn)
        return shape

    def record(self, spans: Spans, draws: SampledTokens) -> None:
        columns = self._columns
        rows, final = upload(spans.rows, self._device), upload(spans.final, self._device)
        positions = spans.positions
        if spans.trees is not None:  # several are drawn for one position, and some for none
            positions = torch.where(draws.stays, positions, columns.tokens.shape[1] - 1)
        columns.tokens[spans.entry_rows, positions] = draws.tokens.int()
        drawn = torch.zeros_like(rows).index_add_(0, final, draws.stays.long())
        moved = upload(spans.counts, self._device)
        if spans.drafts is not None:  # a draft was computed for good where a token stands behind it
            moved = moved - upload(spans.drafts, self._device) + (drawn - 1).clamp_min(0)
        columns.computed.index_add_(0, rows, moved.masked_fill(draws.bad_spans, 0))
        columns.known.index_add_(0, rows, drawn)

    def _gather_paths(
        self, rows: Tensor, places: Tensor, trees: DraftTrees | None, out: GatherBuffers
    ) -> Tensor:
        """Fill the paths of tokens that stand at `places`; returns their positions."""
        assert out.paths is not None
        if trees is None:
            for paths in out.paths:
                paths[:, 0] = 0
            return places
        positions, size = places - trees.skipped, self._columns.page_size
        out.positions.copy_(positions)
        along = (positions - trees.tokens.depths + 1).unsqueeze(1) + trees.tokens.drafts
        for pages, paths in zip(self._columns.pages, out.paths, strict=True):
            paths[:, 0] = trees.tokens.depths
            paths[:, 1:] = pages[rows.unsqueeze(1), along // size] * size + along % size
        return positions

    def _token_places(self, spans: Spans) -> tuple[Tensor, Tensor]:
        """(row, position) of every token, each [T]"""
        rows = np.repeat(spans.rows, spans.counts)
        on_device = upload(rows, self._device)
        if spans.places is not None:
            return on_device, self._columns.known[on_device] + upload(spans.places, self._device)
        offsets = np.arange(len(rows)) - np.repeat(spans.starts[:-1], spans.counts)
        return on_device, self._columns.computed[on_device] + upload(offsets, self._device)

    def _shape_on_host(self, spans: Spans) -> StepLayout:
        ends = spans.before + spans.counts
        if spans.flat:
            total = int(spans.starts[-1])
            rows, starts = np.repeat(spans.rows, spans.counts), np.arange(total + 1)
            ends = 1 + np.arange(total) + np.repeat(spans.before - spans.starts[:-1], spans.counts)
        else:
            rows, starts = spans.rows, spans.starts
        width = -(-int(ends.max()) // self._columns.page_size)
        return StepLayout(rows, starts, ends, width)

    def _gather_tables(
        self, rows: Tensor, lengths: Tensor, counts: Tensor, width: int, out: GatherBuffers
    ) -> None:
        columns = self._columns
        size, places = columns.page_size, torch.arange(width, device=self._device)
        behind = places >= ((lengths + size - 1) // size).unsqueeze(1)
        for pages, table, empty, reach in zip(
            columns.pages, out.tables, columns.empty_pages, columns.reaches, strict=True
        ):
            unread = behind
            if reach is not None:
                first = (lengths - counts - reach).clamp_min(0) // size
                unread = behind | (places < first.unsqueeze(1))
            found = pages[rows, :width].long()
            table[: len(rows), :width] = found.masked_fill(unread, empty)
