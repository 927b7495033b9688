"""The engine's end of another node: what its ranks hear and say."""

from __future__ import annotations

import logging
import os
import select
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from vivace.engine.process_group import RankDeath
from vivace.errors import RankLost, say
from vivace.launch.forked_processes import poll
from vivace.launch.handshake import Guest
from vivace.launch.node_messages import (
    Address,
    FromNode,
    JoinNodes,
    LookAtRanks,
    NodeBeat,
    NodeEnd,
    NodeHello,
    NodeLeaves,
    NodeRankDied,
    NodeRankHere,
    NodeRankSays,
    NodeRankStates,
    NodeServes,
)
from vivace.protocol.message_socket import MessageSocket, SocketClosed
from vivace.protocol.ranks import COMING_SECONDS, NodePresence, RankAnswer, RankReady, RankStates
from vivace.protocol.step import StepPlan
from vivace.protocol.workers import WorkerCommand

T = TypeVar("T", NodeRankHere, RankReady)
Said = NodeRankHere | RankReady | RankAnswer | RankDeath
Tell = Callable[[NodePresence | RankStates], None]
"""what the supervisor is to know"""
BEAT_SECONDS = 1.0
MISSED_BEATS = 4
"""A node whose process has said nothing for so many is stuck; of a machine that has gone the
connection tells earlier."""
BROKEN = "a connection between nodes broke, so what it computed is not whole"


log = logging.getLogger(__name__)


class RemoteInbox:
    """What a rank of another node has said. Who waits here waits for a descriptor: so whoever looks
    (`awaited_processes`) sees that it waits for somebody, and is not the one who is awaited."""

    def __init__(self) -> None:
        self._messages: deque[Said] = deque()
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_SEMAPHORE)
        weakref.finalize(self, os.close, self._bell)

    def put(self, message: Said) -> None:
        """From any thread."""
        self._messages.append(message)
        os.eventfd_write(self._bell, 1)

    def get(self, timeout: float | None = None) -> Said:
        """From one thread. Raises TimeoutError."""
        if not poll(self._bell, select.POLLIN, timeout):
            raise TimeoutError
        os.eventfd_read(self._bell)
        return self._messages.popleft()


class RemoteRank:
    """A `RankLink` to a rank of another node."""

    def __init__(self, node: NodeLink, rank: int) -> None:
        self.name = f"rank {rank} (node {node.node})"
        self.rank = rank
        self._node = node
        self._said = RemoteInbox()
        self._lock = threading.Lock()
        self._rings: list[Callable[[], None]] = []
        self._death: RankDeath | None = None
        self._dead = threading.Event()
        self.address: Address = "", 0
        """where it expects ranks of other nodes"""

    def hear(self, message: Said) -> None:
        """From the node's thread."""
        self._said.put(message)

    def die(self, death: RankDeath) -> None:
        """From the node's thread; what comes first counts."""
        with self._lock:
            if self._death is not None:
                return
            self._death = death
            rings = list(self._rings)
        self._dead.set()
        for ring in rings:
            ring()
        self._said.put(death)

    def arrive(self) -> None:
        """Wait until it is there. Raises RankLost."""
        here = self.expect(NodeRankHere, COMING_SECONDS)
        self.name = f"rank {self.rank} (node {self._node.node}, process {here.pid})"
        self.address = here.address

    def begin(self, addresses: Sequence[Address]) -> None:
        self._node.begin(addresses)

    def expect(self, kind: type[T], timeout: float | None = None) -> T:
        """While it starts. Raises RankLost."""
        try:
            message = self._said.get(timeout=timeout)
        except TimeoutError:
            raise RankLost(f"{self.name} has said nothing for {timeout:g} s") from None
        if isinstance(message, RankDeath):
            self._said.put(message)
            raise RankLost(message.text)
        if not isinstance(message, kind):
            raise RankLost(f"{self.name} says {type(message).__name__}, not {kind.__name__}")
        return message

    def wait(self) -> RankAnswer:
        message = self._said.get()
        if isinstance(message, RankDeath):
            self._said.put(message)
            raise RankLost(message.text)
        if self._node.broken():
            raise RankLost(f"{self.name}: {BROKEN}")
        if isinstance(message, NodeRankHere | RankReady):
            raise RankLost(f"{self.name} says {type(message).__name__}, which nobody asked")
        return message

    def death(self, wait: float = 0.0) -> RankDeath | None:
        if wait:
            self._dead.wait(wait)
        return self._death

    def wake_with(self, ring: Callable[[], None]) -> None:
        with self._lock:
            self._rings.append(ring)
            dead = self._death is not None
        if dead:
            ring()

    def close(self) -> None:
        """Its node ends it, when that is told so (`NodeGate.close`)."""


class NodeLink:
    """To the process of another node: it passes on what its ranks hear and say."""

    def __init__(
        self,
        node: int,
        guest: Guest,
        control: MessageSocket[FromNode],
        ranks: Sequence[int],
        ranks_of_first: int,
        tell: Tell,
    ) -> None:
        """`ranks`: of this engine, on that node; `ranks_of_first`: those of all engines on node
        0."""
        tell(NodePresence(node, here=True))
        self.node = node
        self.host = guest.host
        self.ranks = [RemoteRank(self, rank) for rank in ranks]
        self._ranks_here = ranks_of_first
        self._here = guest.sock.getsockname()[0]
        """this machine's address, as the node reaches it"""
        self._tell = tell
        self._begun = False
        self.gone = ""
        """why this node, not only a rank of it, does not answer any more; empty: it does"""
        self.broken: Callable[[], bool] = lambda: False
        """whether ranks here wait for nobody any more"""
        self._control = control
        self._closed = False
        self._stopped: set[int] = set()
        """its ranks that were, as far as known"""
        threading.Thread(target=self._listen, name=f"node {node}", daemon=True).start()

    @property
    def lost(self) -> bool:
        return bool(self.gone) or any(rank.death() for rank in self.ranks)

    def send(self, message: StepPlan | WorkerCommand | NodeServes | LookAtRanks) -> None:
        self._control.send(message)

    def begin(self, addresses: Sequence[Address]) -> None:
        """All its ranks join, when it has heard this once."""
        if self._begun:
            return
        self._begun = True
        near = [(self._here, port) for _, port in addresses[: self._ranks_here]]
        self._control.send(JoinNodes([*near, *addresses[self._ranks_here :]]))

    def close(self, cause: str) -> None:
        if not self._closed:
            self._closed = True
            self._control.send(NodeEnd(cause))

    def _listen(self) -> None:
        try:
            self._lose(self._follow())
        except Exception as error:  # whatever it is, somebody waits for its ranks
            log.exception("Node %d cannot be followed", self.node)
            self._lose(f"cannot be followed here: {say(error)}")

    def _follow(self) -> str:
        """To its end; why."""
        missed = 0
        while missed < MISSED_BEATS:
            try:
                message = self._control.wait(BEAT_SECONDS)
            except TimeoutError:
                missed += 1
                continue
            except SocketClosed as closed:
                return str(closed) or "the connection was closed: its process has ended"
            except msgspec.MsgspecError:
                return "says what is not understood here"
            missed = 0
            self._hear(message)
        return f"its process has said nothing for {MISSED_BEATS * BEAT_SECONDS:g} s"

    def _hear(self, message: FromNode) -> None:
        match message:
            case NodeHello():
                pass
            case NodeBeat():
                self._tell_stopped(set(message.stopped))
            case NodeLeaves():
                self._lose(f"was stopped: {message.reason}")
            case NodeRankStates():
                self._tell(self._describe(message))
            case NodeRankHere() | NodeRankSays() | NodeRankDied():
                for rank in self.ranks:
                    if rank.rank == message.rank:
                        self._pass_on(rank, message)

    def _tell_stopped(self, ranks: set[int]) -> None:
        for rank in self.ranks:
            if rank.rank in ranks - self._stopped:
                log.warning("%s is stopped, and all other ranks wait for it", rank.name)
        self._stopped = ranks

    def _pass_on(
        self, rank: RemoteRank, message: NodeRankHere | NodeRankSays | NodeRankDied
    ) -> None:
        match message:
            case NodeRankHere():
                rank.hear(message)
            case NodeRankSays():
                rank.hear(message.message)
            case NodeRankDied():
                death = RankDeath(
                    rank.name,
                    message.reason,
                    reported=message.reported,
                    noticed=message.noticed,
                    refused=message.refused,
                )
                rank.die(death)

    def _describe(self, found: NodeRankStates) -> RankStates:
        return RankStates(
            stopped=[rank.name for rank in self.ranks if rank.rank in found.stopped],
            missing=[rank.name for rank in self.ranks if rank.rank in found.missing],
            waits=found.waits,
        )

    def _lose(self, reason: str) -> None:
        death = RankDeath(f"node {self.node} ({self.host})", reason, reported=False)
        self.gone = self.gone or death.text
        if not self._closed:  # otherwise it calls again
            self._tell(NodePresence(self.node, here=False))
        for rank in self.ranks:
            rank.die(death)
