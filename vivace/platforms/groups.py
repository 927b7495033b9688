"""Ranks that share a layer, and what they do together.

`Group` is what layers see. With one rank everything is the identity, and layers leave it out.
"""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch import distributed as dist

from vivace.errors import RankLost, say


class Group(Protocol):
    """Every rank of it calls the same of these in the same order. RankLost where one does not."""

    @property
    def rank(self) -> int:
        """0 .. size - 1"""
        ...

    @property
    def size(self) -> int: ...

    def sum(self, x: Tensor) -> Tensor:
        """x of every rank, added up, in x's memory"""
        ...

    def gather(self, x: Tensor, widths: Sequence[int]) -> Tensor:
        """x[n, widths[rank]] of each rank -> [n, sum of widths]"""
        ...

    def minimum(self, numbers: Sequence[int]) -> list[int]:
        """The least of each number that any rank has"""
        ...


class SingleRank:
    """The only rank of its group."""

    rank, size = 0, 1

    def sum(self, x: Tensor) -> Tensor:
        return x

    def gather(self, x: Tensor, widths: Sequence[int]) -> Tensor:
        return x

    def minimum(self, numbers: Sequence[int]) -> list[int]:
        return list(numbers)


SINGLE_RANK = SingleRank()


class RankMemory:
    """A file without a name that all ranks of a machine have inherited, to be mapped by those whose
    platform exchanges that way; it begins with a word that says whether anybody is still awaited
    (0)."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        """while they start"""
        os.posix_fallocate(descriptor, 0, mmap.PAGESIZE)  # as others do: it never cuts
        self._first = mmap.mmap(descriptor, mmap.PAGESIZE)

    def abandon(self) -> None:
        """A rank has died: nobody waits for another one any more. From any thread."""
        self._first[:4] = (1).to_bytes(4, sys.byteorder)


class TorchGroup:
    """By torch.distributed (gloo on CPUs). `group` None: the default group of the process;
    `memory`: where the ranks can exchange, too."""

    def __init__(
        self, group: dist.ProcessGroup | None = None, memory: RankMemory | None = None
    ) -> None:
        self._group = group
        self.memory = memory
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)

    def sum(self, x: Tensor) -> Tensor:
        self._together(dist.all_reduce, x)
        return x

    def gather(self, x: Tensor, widths: Sequence[int]) -> Tensor:
        """gloo wants equal shapes: narrower ones are filled up."""
        widest = max(widths)
        mine = x.new_zeros(x.shape[0], widest)
        mine[:, : x.shape[1]] = x
        parts = [torch.empty_like(mine) for _ in widths]
        self._together(dist.all_gather, parts, mine)
        return torch.cat([part[:, :n] for part, n in zip(parts, widths, strict=True)], 1)

    def minimum(self, numbers: Sequence[int]) -> list[int]:
        found = torch.tensor(numbers, dtype=torch.int64)
        self._together(dist.all_reduce, found, dist.ReduceOp.MIN)
        return found.tolist()

    def _together(self, collective: Callable[..., Any], *operands: Any) -> None:
        try:
            collective(*operands, group=self._group)
        except RuntimeError as error:
            raise RankLost(f"other ranks do not answer any more ({say(error)})") from error
