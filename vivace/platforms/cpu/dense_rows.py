"""A dense copy of the KV of decoding rows, so that they need not be gathered in every step.

Gathering the pages of 32 rows of 272 tokens costs as much as attending them. A row that decodes
step after step changes by one token, so its keys and values are kept a second time, side by side,
and only the new token is added. The pages stay the truth: a copy counts only while it was made
from exactly these pages with exactly this content (every write to a page changes its version).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from vivace.platforms.attention import HostStep
from vivace.platforms.cpu.attention_plan import Masks
from vivace.platforms.ops.paged_cache import PagedCache

LARGEST = 1 << 30
"""bytes for all copies; steps that would need more are gathered"""
FEWEST_ROWS = 2
LEAST_USE = 0.6
"""share of the buffer's part that a step attends which must be its own tokens"""
LENGTH_STEP = 256
"""tokens by which copies grow; growing starts them anew"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Refill:
    """A row whose copy is made anew from its pages."""

    row: int
    length: int
    pages: Tensor


@dataclass(kw_only=True, slots=True)
class DensePlan:
    """One decode step over the copies of rows 0..rows - 1."""

    rows: int
    keys: int
    capacity: int
    mask: Tensor | None
    refills: list[Refill]
    order: Tensor | None
    """[n] int64 row of each span; None when they are 0..n - 1"""
    spans: np.ndarray
    """[n] rows, for the places of the new tokens"""
    positions: np.ndarray
    """[n] positions of the new tokens"""
    places: dict[int, Tensor] = field(default_factory=dict)

    def targets(self, heads: int) -> Tensor:
        """[n * heads] int64: where each new token's heads go in [rows * heads * capacity]."""
        found = self.places.get(heads)
        if found is None:
            lines = self.spans[:, None] * heads + np.arange(heads)
            flat = lines * self.capacity + self.positions[:, None]
            found = self.places[heads] = torch.from_numpy(flat.reshape(-1))
        return found


class DenseRows:
    """The copies of all layers without a window, and when they hold."""

    def __init__(self, memory: PagedCache, dtype: torch.dtype, masks: Masks) -> None:
        self._memory = memory
        self._dtype = dtype
        self._masks = masks
        self._token_bytes = (
            sum(layer[0, 0].numel() for layer in memory.layers.values()) * dtype.itemsize
        )
        self._copies: dict[int, Tensor] = {}
        self._resize(0, 0)

    def plan(self, host: HostStep, pages: np.ndarray) -> DensePlan | None:
        """What to do for this step, with the first group's page table, before its
        tokens are written; None = gather instead."""
        if not host.decode or host.rows is None or len(host.rows) < FEWEST_ROWS:
            return None
        rows, lengths = host.rows, host.context_lens
        count, keys = int(rows.max()) + 1, int(lengths.max())
        if int(lengths.sum()) < LEAST_USE * count * keys or not self._fits(count, keys):
            return None
        stale = ~self._current(host, pages)
        self._remember(host, pages)
        in_order = count == len(rows) and bool((rows == np.arange(count)).all())
        return DensePlan(
            rows=count,
            keys=keys,
            capacity=self._capacity,
            mask=self._mask(rows, lengths, count, keys),
            refills=[self._refill(host, pages, int(i)) for i in np.flatnonzero(stale)],
            order=None if in_order else torch.from_numpy(rows.astype(np.int64)),
            spans=rows,
            positions=lengths - 1,
        )

    def copies(self, index: int, plan: DensePlan, both: Tensor) -> Tensor:
        """The layer's copies [rows, 2, Hk, capacity, D], with this step's both[n, 2 * Hk, D]."""
        kv = self._memory.layers[index]
        copy = self._copies.get(index)
        if copy is None:
            shape = (self._rows, 2 * kv.shape[3], self._capacity, kv.shape[4])
            copy = self._copies[index] = torch.zeros(shape, dtype=self._dtype)
        for refill in plan.refills:
            fresh = kv.index_select(0, refill.pages).flatten(0, 1)[: refill.length]
            target = copy[refill.row]
            target[:, refill.length :].zero_()
            target[:, : refill.length].copy_(fresh.flatten(1, 2).transpose(0, 1))
        heads = both.shape[1]
        flat = copy.view(-1, copy.shape[-1])
        flat.index_copy_(0, plan.targets(heads), both.reshape(-1, both.shape[-1]))
        return copy[: plan.rows].unflatten(1, (2, -1))

    def _fits(self, count: int, keys: int) -> bool:
        """Room for so many rows and keys, growing (and starting anew) within LARGEST."""
        if count <= self._rows and keys <= self._capacity:
            return True
        rows = max(self._rows, 1 << (count - 1).bit_length())
        capacity = max(self._capacity, -(-(keys + 1) // LENGTH_STEP) * LENGTH_STEP)
        if rows * capacity * self._token_bytes > LARGEST:
            return False
        self._resize(rows, capacity)
        return True

    def _resize(self, rows: int, capacity: int) -> None:
        self._rows, self._capacity = rows, capacity
        self._copies.clear()
        width = -(-capacity // self._memory.page_size)
        self._filled = np.zeros(rows, np.int64)
        self._pages = np.full((rows, width), -1, np.int64)
        self._versions = np.zeros((rows, width), np.int64)

    def _current(self, host: HostStep, pages: np.ndarray) -> np.ndarray:
        """[n] bool: the copy holds everything but this step's token."""
        rows, width = host.rows, pages.shape[1]
        assert rows is not None
        before = host.context_lens - 1
        used = -(-before // self._memory.page_size)
        same = (self._pages[rows, :width] == pages) & (
            self._versions[rows, :width] == self._memory.versions[pages]
        )
        same |= np.arange(width) >= used[:, None]
        return (self._filled[rows] == before) & same.all(axis=1)

    def _remember(self, host: HostStep, pages: np.ndarray) -> None:
        """Note what the copies will hold after this step, whose writes are counted here."""
        rows, width, size = host.rows, pages.shape[1], self._memory.page_size
        written = pages[np.arange(len(host.context_lens)), (host.context_lens - 1) // size]
        self._memory.versions[written] += 1
        self._filled[rows] = host.context_lens
        self._pages[rows, :width] = pages
        self._versions[rows, :width] = self._memory.versions[pages]

    def _refill(self, host: HostStep, pages: np.ndarray, span: int) -> Refill:
        assert host.rows is not None
        length = int(host.context_lens[span])
        used = -(-length // self._memory.page_size)
        return Refill(
            row=int(host.rows[span]),
            length=length,
            pages=torch.from_numpy(pages[span, :used].copy()),
        )

    def _mask(self, rows: np.ndarray, lengths: np.ndarray, count: int, keys: int) -> Tensor | None:
        """Rows that take no part see one key, whatever it is: nobody reads their result."""
        ends = np.ones(count, np.int64)
        ends[rows] = lengths
        return self._masks.rows(keys, np.zeros_like(ends), ends)
