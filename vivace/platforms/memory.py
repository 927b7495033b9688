"""Large buffers of zeros whose memory can be given back to the system in parts."""

from __future__ import annotations

import contextlib
import mmap
import sys
from typing import Protocol

import torch
from torch import Tensor

from vivace.errors import CannotStart

HUGE_PAGE = 2 << 20
"""bytes"""


class Memory(Protocol):
    tensor: Tensor
    """uint8[nbytes], zeros at first"""
    lazy: bool
    """memory comes at the first touch and can be given back"""

    def give_back(self, start: int, end: int) -> None:
        """Nobody needs bytes start..end any more; they read as zeros or as they were."""
        ...


class WholeMemory:
    """Memory that is all there from the start, until the end."""

    lazy = False

    def __init__(self, nbytes: int, device: torch.device) -> None:
        self.tensor = torch.zeros(nbytes, dtype=torch.uint8, device=device)

    def give_back(self, start: int, end: int) -> None:
        pass


class LazyMemory:
    """Anonymous memory of Linux, beginning with a system page: what is never touched costs
    nothing.

    In huge pages but for the first one's length: many buffers (one for each layer) that hold a
    few kilobytes each would take 2 MiB each. Not `huge`: in none, where a little is touched here
    and there.
    """

    lazy = True

    def __init__(self, nbytes: int, *, huge: bool = True) -> None:
        length = max(1, -(-nbytes // mmap.PAGESIZE)) * mmap.PAGESIZE
        try:
            self._map = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise CannotStart(
                f"{nbytes} bytes of memory: {error.strerror} (`ulimit -v` or `-d`, or the "
                "system's overcommit rules); --max-total-tokens with a smaller number takes less"
            ) from error
        if length > HUGE_PAGE:
            advice = mmap.MADV_HUGEPAGE if huge else mmap.MADV_NOHUGEPAGE
            with contextlib.suppress(OSError):  # a kernel without huge pages
                self._map.madvise(advice, HUGE_PAGE)
        self.tensor = torch.frombuffer(self._map, dtype=torch.uint8)[:nbytes]

    def give_back(self, start: int, end: int) -> None:
        """Whole system pages inside of start..end read as zeros from now on."""
        first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
        length = end // mmap.PAGESIZE * mmap.PAGESIZE - first
        if length > 0:
            self._map.madvise(mmap.MADV_DONTNEED, first, length)


def zeroed_memory(nbytes: int, device: torch.device, *, huge: bool = True) -> Memory:
    if device.type == "cpu" and sys.platform.startswith("linux"):
        return LazyMemory(nbytes, huge=huge)
    return WholeMemory(nbytes, device)
