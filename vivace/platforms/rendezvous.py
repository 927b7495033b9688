"""Where ranks find each other: memory of those of one machine, connections to those of others."""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from vivace.errors import CannotStart, RankLost, one_line_without_room

BLOCK = 512
"""bytes of `st_blocks`"""


class RankMemory:
    """A file without a name that all ranks of a machine have inherited, to be mapped by those whose
    platform exchanges that way. It begins with a word that says whether anybody is still awaited
    (0); regions behind it are taken in the same order by all ranks."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._length = 0
        self.first = self.take(mmap.PAGESIZE)

    def take(self, nbytes: int) -> mmap.mmap:
        """The next region, which costs memory as far as it is touched."""
        start = self._length
        self.skip(nbytes)
        # Others do the same, at other times: this makes the file longer, and never cuts it.
        with one_line_without_room("what ranks exchange", self._length):
            os.posix_fallocate(self._descriptor, self._length - 1, 1)
            self._check_room()
            return mmap.mmap(self._descriptor, self._length - start, offset=start)

    def _check_room(self) -> None:
        """A file may be longer than its folder has room for; who touches the rest is killed."""
        disk = os.fstatvfs(self._descriptor)
        free = disk.f_bavail * disk.f_frsize
        untouched = self._length - BLOCK * os.fstat(self._descriptor).st_blocks
        if disk.f_blocks and free < untouched:  # memory without a folder has no blocks
            raise CannotStart(
                f"ranks exchange through {self._length >> 20} MB of memory, and its folder "
                f"(/dev/shm, else that of temporary files) has {free >> 20} MB free: make it "
                "larger (docker run --shm-size 1g), or allow memfd_create"
            )

    def skip(self, nbytes: int) -> None:
        """Leave the next region to others."""
        self._length += pages(nbytes)

    def abandon(self) -> None:
        """A rank has died: nobody waits for another one any more. From any thread."""
        self.first[:4] = (1).to_bytes(4, sys.byteorder)

    def check(self) -> None:
        """What a rank computed with others is whole; RankLost where nobody waited any more."""
        if self.abandoned:
            raise RankLost("other ranks do not answer any more")

    @property
    def length(self) -> int:
        """bytes of all regions so far"""
        return self._length

    @property
    def abandoned(self) -> bool:
        return self.first[:4] != bytes(4)


def pages(nbytes: int) -> int:
    """Filled up to whole pages"""
    return -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE


@dataclass(frozen=True, kw_only=True)
class NodeSocket:
    """A connection to another node, which has `count` ranks of a group from place `first` on."""

    socket: int
    """descriptor; the other end is with the first of those ranks"""
    first: int
    count: int


class NodeSockets(Protocol):
    """How ranks on several nodes reach each other."""

    def open(self, group: int, ranks: Sequence[int]) -> Sequence[NodeSocket] | None:
        """Of a group of these ranks, in order: a connection to each other node. None where all of
        them are on this one; an empty list where this rank is not the first of them on its node.
        All call it, in the same order, with the same number of the group. Raises RankLost."""
        ...


class OneNode:
    """All ranks are on this node."""

    def open(self, group: int, ranks: Sequence[int]) -> None:
        return None


ONE_NODE = OneNode()


@dataclass(frozen=True, kw_only=True)
class Rendezvous:
    """Where a rank of several finds the others."""

    rank: int
    size: int
    meeting: str
    """path of a file for torch.distributed, which is there until all have come"""
    memory: RankMemory
    """of the ranks of this node"""
    sockets: NodeSockets = ONE_NODE
