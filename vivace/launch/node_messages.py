"""What the engine and the nodes of its other ranks say to each other, over TCP, once both have
proved that they have the key (launch/handshake.py)."""

from __future__ import annotations

from typing import Annotated

import msgspec

from vivace.protocol.ranks import RankAnswer, RankReady
from vivace.protocol.step import StepPlan
from vivace.protocol.workers import WorkerCommand

Address = tuple[str, int]


class NodeHello(msgspec.Struct, frozen=True, kw_only=True, tag="node_hello"):
    """Node -> engine, first: what it was told to be."""

    version: str
    asked: dict[str, str]
    """option -> value, in words, of what all nodes must be told alike"""
    files: dict[str, str]
    """name -> digest of the model's files"""
    arithmetic: dict[str, str]
    """name -> value, in words, of what machines compute with (`describe_arithmetic`)"""
    clock: float
    """seconds since 1970"""


class NodeRefusal(msgspec.Struct, frozen=True, tag="node_refusal"):
    """Engine -> node: it cannot be a part of this server."""

    reasons: list[str]


class NodeSetup(msgspec.Struct, frozen=True, kw_only=True, tag="node_setup"):
    """Engine -> node: its ranks are to be started."""

    config: bytes
    """`config.encode` of the engine's own, without what is secret"""
    session: int
    """of this life of the engine"""


class NodeRankHere(msgspec.Struct, frozen=True, tag="node_rank_here"):
    """Node -> engine: this rank's process has imported what it needs."""

    rank: int
    pid: int
    address: Address
    """where it expects ranks of other nodes"""


class JoinNodes(msgspec.Struct, frozen=True, tag="join_nodes"):
    """Engine -> node, once all ranks are there: meet and load."""

    addresses: list[Address]
    """of every rank"""


class NodeRankSays(msgspec.Struct, frozen=True, tag="node_rank_says"):
    """Node -> engine."""

    rank: int
    message: RankReady | RankAnswer


class NodeRankDied(msgspec.Struct, frozen=True, tag="node_rank_died"):
    """Node -> engine. `reported`, `noticed`, `refused`: as in `RankDeath`."""

    rank: int
    reason: str
    reported: bool
    noticed: bool
    refused: bool = False


class NodeBeat(msgspec.Struct, frozen=True, tag="node_beat"):
    """Node -> engine, each second: its process is not stuck."""

    stopped: list[int]
    """ranks that somebody has stopped (SIGSTOP, a debugger), for which all others wait"""


class NodeLeaves(msgspec.Struct, frozen=True, tag="node_leaves"):
    """Node -> engine: it was told to end."""

    reason: str


class NodeServes(msgspec.Struct, frozen=True, tag="node_serves"):
    """Engine -> nodes: all ranks are ready."""


class LookAtRanks(msgspec.Struct, frozen=True, tag="look_at_ranks"):
    """Engine -> node: how do my ranks stand with you?"""


class NodeRankStates(msgspec.Struct, frozen=True, tag="node_rank_states"):
    """Node -> engine, the answer: ranks, as in `RankStates`."""

    stopped: list[int]
    missing: list[int]
    waits: bool


class NodeEnd(msgspec.Struct, frozen=True, tag="node_end"):
    """Engine -> nodes: it ends. `cause`: of its death, behind which they call again; empty: the
    server was stopped."""

    cause: str


class ServerEnd(msgspec.Struct, frozen=True, tag="server_end"):
    """Node 0 -> who calls: there is no engine any more, and none follows. `cause`: of that; empty:
    the server was stopped. `code`: which this node exits with."""

    cause: str
    code: Annotated[int, msgspec.Meta(ge=0, le=255)]


ToNode = (
    NodeRefusal
    | NodeSetup
    | JoinNodes
    | NodeServes
    | LookAtRanks
    | NodeEnd
    | ServerEnd
    | StepPlan
    | WorkerCommand
)
FromNode = (
    NodeHello | NodeRankHere | NodeRankSays | NodeRankDied | NodeBeat | NodeLeaves | NodeRankStates
)
