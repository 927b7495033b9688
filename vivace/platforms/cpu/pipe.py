"""A pipe between two ranks, by kernels: of one machine a ring of slots in memory that both map.

The memory is a region of `RankMemory`: a page with two lines (slots that the sender has filled, and
that the receiver has emptied; each written by one of them only), then `SLOTS` slots. A slot is one
message: a line that begins with the bytes of its rows (int64; who expects others ends the group),
then the rows, float32 without gaps. To a rank on another node it is a connection, over which go the
bytes of the rows, then the rows.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from vivace.platforms.cpu.native import F32, Kernels, matrix, require, sizes
from vivace.platforms.errors import CaptureError
from vivace.platforms.rendezvous import NodeSocket, RankMemory, pages

LINE = 64
"""bytes of a cache line"""
SLOTS = 4
"""messages that a sender is ahead before it waits"""
SLOT_BYTES = 32 << 20
"""of a message with its line; longer ones come in pieces"""
FIRST_SLOT = pages(2 * LINE)
REGION_BYTES = FIRST_SLOT + SLOTS * SLOT_BYTES


class SharedMemoryPipe:
    """One of its two ends. Captured steps may send and receive."""

    def __init__(self, kernels: Kernels, memory: RankMemory) -> None:
        self._kernels = kernels
        self._memory = memory
        region = memory.take(REGION_BYTES)
        self._mapped = np.frombuffer(region, np.uint8), np.frombuffer(memory.first, np.uint8)
        self._own = np.zeros(1, np.int64)
        """messages that went through this end"""
        lines, group = (mapped.ctypes.data for mapped in self._mapped)
        ring = group, lines, lines + FIRST_SLOT, SLOT_BYTES, SLOTS, self._own.ctypes.data
        self._ring = ring
        self._send = kernels.operation("send_rows", "q" * 10)
        self._receive = kernels.operation("receive_rows", "q" * 9)

    def send(self, x: Tensor) -> None:
        rows, columns = sizes("send_rows", "x", x)
        for first, last in self._pieces(rows, columns):
            part = x[first:last]
            address, stride = matrix("send_rows", "x", part, columns)
            self._send(last - first, address, stride, columns, *self._ring)
            self._check()

    def receive(self, rows: int, columns: int, dtype: torch.dtype) -> Tensor:
        require("receive_rows", dtype is F32, f"numbers of {dtype}")
        out = self._kernels.empty(rows, columns)
        for first, last in self._pieces(rows, columns):
            self._receive(last - first, out[first:last].data_ptr(), columns, *self._ring)
            self._check()
        return out

    def _pieces(self, rows: int, columns: int) -> list[tuple[int, int]]:
        """Ranges of rows that fit a slot; the same at both ends."""
        each = (SLOT_BYTES - LINE) // (4 * max(1, columns))
        require("send_rows", each > 0, f"rows of {columns} numbers")
        if rows > each and self._kernels.capturing:
            raise CaptureError(
                f"stages hand on at most {each} rows of {columns} numbers at once: give "
                f"--cuda-graph-max-bs {each} or less"
            )
        return [(first, min(first + each, rows)) for first in range(0, rows, each)]

    def _check(self) -> None:
        if not self._kernels.capturing:
            self._memory.check()


class NodePipe:
    """One of its two ends, where they are on different nodes: a connection. Who sends waits when
    the other is so far behind that the system keeps no more. Captured steps may send and
    receive."""

    def __init__(self, kernels: Kernels, memory: RankMemory, end: NodeSocket) -> None:
        self._kernels = kernels
        self._memory = memory
        self._mapped = np.frombuffer(memory.first, np.uint8)
        self._end = np.array([end.socket, end.first, end.count], np.int64)
        self._place = self._mapped.ctypes.data, self._end.ctypes.data
        self._send = kernels.operation("send_to_node", "q" * 6)
        self._receive = kernels.operation("receive_from_node", "q" * 5)

    def send(self, x: Tensor) -> None:
        rows, columns = sizes("send_to_node", "x", x)
        address, stride = matrix("send_to_node", "x", x, columns)
        self._send(rows, address, stride, columns, *self._place)
        self._check()

    def receive(self, rows: int, columns: int, dtype: torch.dtype) -> Tensor:
        require("receive_from_node", dtype is F32, f"numbers of {dtype}")
        out = self._kernels.empty(rows, columns)
        self._receive(rows, out.data_ptr(), columns, *self._place)
        self._check()
        return out

    def _check(self) -> None:
        if not self._kernels.capturing:
            self._memory.check()
