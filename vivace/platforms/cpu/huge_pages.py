"""Memory for weights in pages of 2 MiB: read from end to end at every step, in pages of 4 KiB they
would cost one table look-up for every 64 lines."""

from __future__ import annotations

import contextlib
import mmap
import sys

import numpy as np
import torch
from torch import Tensor

PAGE = 2 << 20
"""bytes"""
SEGMENT = 32 << 20
"""bytes asked for at once; what is never written takes no memory"""
ALIGNMENT = 64
"""bytes, of each tensor"""


class HugePages:
    """Tensors one behind the other in segments of its own. A segment is given back when the last
    tensor in it is gone. Where the system has no huge pages it is ordinary memory."""

    def __init__(self) -> None:
        self._segment = np.empty(0, np.uint8)  # no tensor: what is not used belongs to no model
        self._used = 0

    def empty(self, nbytes: int) -> Tensor:
        """uint8[nbytes], aligned to a cache line"""
        if self._used + nbytes > len(self._segment):
            self._segment, self._used = allocate_segment(max(nbytes, SEGMENT)), 0
        found = self._segment[self._used : self._used + nbytes]
        self._used += -(-nbytes // ALIGNMENT) * ALIGNMENT
        return torch.from_numpy(found)


def allocate_segment(nbytes: int) -> np.ndarray:
    """uint8[nbytes or a little more], beginning with a page"""
    if not sys.platform.startswith("linux"):
        return np.empty(nbytes, np.uint8)
    pages = -(-nbytes // PAGE) * PAGE
    memory = mmap.mmap(-1, pages + PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(memory, np.uint8)
    before = -whole.ctypes.data % PAGE
    return whole[before : before + pages]
