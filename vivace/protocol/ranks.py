"""What an engine and the processes of its ranks say to each other."""

from __future__ import annotations

import msgspec

from vivace.protocol.messages import Capacity
from vivace.protocol.step import StepPlan, StepResult
from vivace.protocol.workers import WorkerCommand, WorkerState

COMING_SECONDS = 300.0
"""until a rank has imported what it needs"""
MOST_RANKS = 64
"""of a server: those of all its engines, on all its nodes"""


class NodeSocketSetup(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank needs to reach those of other nodes."""

    key: bytes
    """of this session"""
    session: int
    host: str
    port: int
    """where it listens; port 0: a free one"""
    nodes: list[list[int]]
    """ranks of each node"""


class RankSetup(msgspec.Struct, frozen=True, kw_only=True, tag="rank_setup"):
    """The first message to a rank, from the engine that started it: it computes what that does."""

    config: bytes
    """`config.encode` of the engine's own: nothing is decided twice"""
    rank: int
    ranks: int
    meeting: int
    """descriptor of a file that only these processes have, where they find each other"""
    memory: int
    """of another one, which they may map"""
    plans: int
    """of that in which the engine tells its ranks what to do (protocol/shm_broadcast.py)"""
    readers: int
    """ranks that read there"""
    reader: int
    """which of them this one is"""
    sockets: NodeSocketSetup | None = None
    """where there are several nodes"""


class JoinRanks(msgspec.Struct, frozen=True, tag="join_ranks"):
    """Engine -> ranks, once all are there: meet the others and load."""

    addresses: list[tuple[str, int]] = []
    """of every rank, where there are several nodes"""


class RankForked(msgspec.Struct, frozen=True, tag="rank_forked"):
    """The process between -> engine, before anything of the rank itself: this is its process."""

    pid: int


class RankHere(msgspec.Struct, frozen=True, tag="rank_here"):
    """Rank -> engine: what it needs is imported."""

    address: tuple[str, int] = ("", 0)
    """where it expects ranks of other nodes"""


class RankProgress(msgspec.Struct, frozen=True, tag="rank_progress"):
    """Rank -> engine: what it has read of the model's files, 0..1, and whether that was all that
    it needs."""

    fraction: float
    done: bool = False


class RankReady(msgspec.Struct, frozen=True, tag="rank_ready"):
    """Rank -> engine: it is loaded and runs plans from now on."""

    capacity: Capacity
    """of this rank; what they have in common is the same on all"""


class StepDone(msgspec.Struct, frozen=True, tag="step_done"):
    """Rank -> engine: it has run this step."""

    number: int
    tokens: list[list[int]] | None = None
    """those that each span drew, where ranks are compared (VIVACE_COMPARE_RANKS)"""
    expert_counts: bytes = b""
    """`StepResult.expert_counts` of its stage's layers, of the first rank of a stage"""

    @property
    def brief(self) -> bool:
        """The number says all."""
        return self.tokens is None and not self.expert_counts


class StepRefusal(msgspec.Struct, frozen=True, tag="step_refusal"):
    """Rank -> engine: `StepRefused`, and nothing of it was run."""

    number: int
    reason: str


class RankFailure(msgspec.Struct, frozen=True, tag="failure"):
    """Rank -> engine: the exception that is about to end it."""

    text: str
    noticed: bool = False
    """it is only that another rank has gone"""
    refused: bool = False
    """it cannot start with what it was given (`CannotStart`)"""
    trace: str = ""
    """where it came from, of an exception that nobody has words for"""


class NodePresence(msgspec.Struct, frozen=True, tag="node_presence"):
    """Engine -> supervisor: a node behind the first has joined it, or has gone."""

    node: int
    here: bool


class RankStates(msgspec.Struct, frozen=True, tag="rank_states"):
    """Of an engine's processes on one machine, which meet in collectives."""

    stopped: list[str]
    """names of those that somebody has stopped (SIGSTOP, a debugger)"""
    missing: list[str]
    """of those that do not come where others wait"""
    waits: bool
    """one waits there"""


RankAnswer = StepDone | StepResult | StepRefusal | WorkerState
"""to a plan: a result where its rank is the one whose results count"""
ToRanks = StepPlan | WorkerCommand
"""what an engine tells all its ranks"""
ON_SOCKET = -(1 << 63)
"""where a rank answers a broadcast with the number of the step that it has run: its answer is
another one, and comes as a message"""
ToRank = RankSetup | JoinRanks
FromRank = RankForked | RankHere | RankProgress | RankReady | RankAnswer | RankFailure
