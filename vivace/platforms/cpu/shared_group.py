"""Ranks of one machine over memory that all of them map, by kernels: kernels/collectives.inc."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from vivace.platforms.cpu.native import Kernels, block, matrix, require, sizes
from vivace.platforms.groups import RankMemory, TorchGroup

LINE = 64
"""bytes of a cache line"""
SLOT_BYTES = 1 << 20
"""what a rank shares at once; longer rows come in pieces"""


def shared_bytes(ranks: int) -> int:
    """Memory of a group: a line for all, one of each rank, two slots of each."""
    return first_slot(ranks) + 2 * ranks * SLOT_BYTES


def first_slot(ranks: int) -> int:
    return -(-LINE * (1 + ranks) // mmap.PAGESIZE) * mmap.PAGESIZE


class SharedMemoryGroup:
    """Sums are added in the order of the ranks: every rank has the same bits, and they are the same
    in every run. `peers` are the same ranks by torch.distributed, for what is no step.

    A rank that waits for one that has died waits until `RankMemory.abandon`; what it gets then is
    nonsense, and nobody asks for it any more.
    """

    def __init__(self, kernels: Kernels, peers: TorchGroup, memory: RankMemory) -> None:
        os.ftruncate(memory.descriptor, shared_bytes(peers.size))  # every rank, to the same length
        self.rank, self.size = peers.rank, peers.size
        self._peers = peers
        self._kernels = kernels
        self._mapped = np.frombuffer(
            mmap.mmap(memory.descriptor, shared_bytes(self.size)), np.uint8
        )
        self._own = np.zeros(1, np.int64)
        """collectives that this rank has met the others in"""
        base = self._mapped.ctypes.data
        self._group, self._lines = base, base + LINE
        self._slots = base + first_slot(self.size), SLOT_BYTES
        self._share = kernels.operation("share_rows", "q" * 9)
        self._meet = kernels.operation("meet", "q" * 6)
        self._add = kernels.operation("add_shares", "q" * 7)
        self._gather = kernels.operation("gather_shares", "q" * 7)

    def sum(self, x: Tensor) -> Tensor:
        rows, columns = sizes("sum", "x", x)
        for first, last in pieces(rows, columns):
            part = x[first:last]
            self._exchange(part, columns)
            self._add(
                last - first,
                block("sum", "x", part, last - first, columns),
                columns,
                *self._slots,
                self.size,
                self._own.ctypes.data,
            )
        return x

    def gather(self, x: Tensor, widths: Sequence[int]) -> Tensor:
        rows, columns = sizes("gather", "x", x)
        require("gather", columns == widths[self.rank], f"{columns} of {list(widths)}")
        wide = torch.tensor(widths)
        out = self._kernels.empty(rows, sum(widths))
        for first, last in pieces(rows, max(widths)):
            self._exchange(x[first:last], columns)
            self._gather(
                last - first,
                out[first:last].data_ptr(),
                wide.data_ptr(),
                *self._slots,
                self.size,
                self._own.ctypes.data,
            )
        return out

    def _exchange(self, part: Tensor, columns: int) -> None:
        address, stride = matrix("share_rows", "x", part, columns)
        rows, own = part.shape[0], self._own.ctypes.data
        self._share(rows, address, stride, columns, *self._slots, self.rank, self.size, own)
        self._meet(rows, self._group, self._lines, self.rank, self.size, own)

    def minimum(self, numbers: Sequence[int]) -> list[int]:
        return self._peers.minimum(numbers)


def pieces(rows: int, columns: int) -> list[tuple[int, int]]:
    """Ranges of rows that fit a slot; the same on every rank."""
    require("share_rows", 4 * columns <= SLOT_BYTES, f"rows of {columns} numbers")
    each = SLOT_BYTES // (4 * max(1, columns))
    return [(first, min(first + each, rows)) for first in range(0, rows, each)]
