"""What engines that share layers inherit together, from whoever starts them."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
from collections.abc import Iterator

import msgspec

from vivace.protocol.bells import Bells, new_bells
from vivace.system_calls import open_memory


class NodesLink(msgspec.Struct, frozen=True, kw_only=True):
    """How engines that share layers meet the nodes of their ranks (launch/engine_place.py)."""

    session: int
    """of this life of the engines; connections of another one are not theirs"""
    addresses: int
    """file: where each rank expects those of other nodes"""
    doors: list[tuple[int, int]]
    """of each engine behind the first: the end of a socket by which that one passes on who has
    called, and the end where this one gets them"""


class EngineLink(msgspec.Struct, frozen=True, kw_only=True):
    """What the engines that share layers have together: file descriptors."""

    memory: int
    """what their ranks exchange goes through this file"""
    meeting: int
    """where groups of torch.distributed meet"""
    steps: int
    """two numbers of 8 bytes for each engine (engine/lockstep.py)"""
    bells: list[Bells]
    """of each engine"""
    nodes: NodesLink | None = None
    """where some of their ranks are on other machines"""

    def descriptors(self) -> Iterator[int]:
        yield from (self.memory, self.meeting, self.steps)
        for bells in self.bells:
            yield from (bells.awaited, bells.arrived)
        if self.nodes is not None:
            yield self.nodes.addresses
            for door in self.nodes.doors:
                yield from door


def new_engine_link(engines: int, *, nodes: bool) -> EngineLink:
    """`nodes`: some of their ranks are on other machines. Raises OSError; then nothing of it stays
    open."""
    with contextlib.ExitStack() as opened:

        def keep(number: int) -> int:
            opened.callback(os.close, number)
            return number

        found = EngineLink(
            memory=keep(new_file()),
            meeting=keep(new_file()),
            steps=keep(new_file()),
            bells=[new_bells(keep) for _ in range(engines)],
            nodes=new_nodes_link(engines) if nodes else None,
        )
        opened.pop_all()
    return found


def new_nodes_link(engines: int) -> NodesLink:
    """Raises OSError."""
    doors = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(1, engines)]
    return NodesLink(
        session=secrets.randbits(63),
        addresses=new_file(),
        doors=[(first.detach(), other.detach()) for first, other in doors],
    )


def new_file() -> int:
    """Without a name, and empty."""
    return open_memory("vivace-ranks")
