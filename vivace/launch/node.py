"""The process of a node behind the first: it joins the engines, starts the ranks of this machine,
and passes on what they hear and say. It computes nothing, and who waits for a rank is a thread of
its own, so it always answers."""

from __future__ import annotations

import contextlib
import logging
import queue
import selectors
import signal
import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from vivace.checkpoint.file_state import ModelFiles
from vivace.config.parallelism import requested_sizes
from vivace.errors import CannotStart, RankLost, say
from vivace.launch.node_hello import describe_share, node_ranks, socket_setup
from vivace.launch.node_join import (
    NOT_UNDERSTOOD,
    Joined,
    ServerHasEnded,
    join_engines,
    own_config,
)
from vivace.launch.node_link import BEAT_SECONDS, BROKEN
from vivace.launch.node_messages import (
    Address,
    JoinNodes,
    LookAtRanks,
    NodeBeat,
    NodeEnd,
    NodeLeaves,
    NodeRankDied,
    NodeRankHere,
    NodeRankSays,
    NodeRankStates,
    NodeRefusal,
    NodeServes,
    NodeSetup,
    ServerEnd,
    ToNode,
)
from vivace.launch.node_probes import answer_probes
from vivace.launch.ranks import (
    EXIT_SECONDS,
    RankBroadcast,
    RankProcess,
    Seat,
    file_of_ranks,
    spawn_ranks,
)
from vivace.observability import log as log_lines
from vivace.observability.awaited_processes import is_stopped, look_at
from vivace.observability.log import protect_standard_streams
from vivace.platforms.rendezvous import RankMemory
from vivace.protocol.message_socket import MessageSocket, SocketClosed, wait_for_any
from vivace.protocol.ranks import RankReady, ToRanks
from vivace.supervisor.signals import handle_signals

if TYPE_CHECKING:
    from vivace.config.config import Config

STOPPED = "Node 0 was stopped, and so is this node"
CAUSE_SECONDS = 1.0
"""between the end of one engine and that another one says why"""

log = logging.getLogger(__name__)


def run_node(config: Config) -> int:
    """Serve with node 0 until that is stopped or this process is told to end; returns the exit
    code. When the engines die, their successors are joined. Raises CannotStart."""
    protect_standard_streams()
    node, where = config.parallel.node_rank, config.parallel.dist_init_addr
    log_lines.setup(config.logging.log_level, f"node {node}")
    log.info("%s; it joins node 0 at %s", describe_share(node_ranks(config), node), where)
    try:
        return follow_engines(config)
    except ServerHasEnded as ended:
        if cause := ended.end.cause:
            log.error("The server has ended, and so does this node: %s", cause)
        else:
            log.info(STOPPED)
        return ended.end.code


def follow_engines(config: Config) -> int:
    """Raises ServerHasEnded, CannotStart."""
    files, serves, joined = ModelFiles(config.source), threading.Event(), join_engines(config)
    answer_probes(config, serves.is_set)  # node 0 of this machine has its port by now
    while True:
        code = NodeLife(config, joined, serves).run()
        serves.clear()
        if code is not None:
            return code
        if changed := files.changed():
            raise CannotStart(changed)
        joined = join_engines(config)


class JoinedEngine:
    """An engine, as this node knows it: `ranks` of it are here, and read in `plans` what it tells
    them."""

    def __init__(
        self, number: int, control: MessageSocket[ToNode], ranks: Sequence[int], plans: int
    ) -> None:
        self.number = number
        self.control = control
        self.ranks = ranks
        self.broadcast = RankBroadcast(plans, len(ranks))
        self._told: queue.SimpleQueue[ToRanks | None] = queue.SimpleQueue()
        self.joining = threading.Event()
        self.addresses: list[Address] = []
        self.serves = False
        self.stopped = False
        """it has said that the server ends"""
        threading.Thread(target=self._write, name=f"engine {number} says", daemon=True).start()

    def tell_ranks(self, message: ToRanks) -> None:
        """Whoever reads it, and when: a rank that computes may be a whole ring behind."""
        self._told.put(message)

    def close(self) -> None:
        """Its ranks have ended."""
        self._told.put(None)

    def _write(self) -> None:
        while (message := self._told.get()) is not None:
            self.broadcast.send(message)

    def seats(self) -> list[Seat]:
        return [(rank, self.broadcast, reader) for reader, rank in enumerate(self.ranks)]


class NodeLife:
    """The ranks of this node, from joining engines until one of these or of those ends. A thread
    for each rank waits for what that says."""

    def __init__(
        self, config: Config, joined: Sequence[Joined], all_serve: threading.Event
    ) -> None:
        """`all_serve` is set when they do."""
        (control, setup), *_ = joined
        self._config = own_config(config, setup.config)
        self._session = setup.session
        self._host = control.local_host()
        self._controls = [control for control, _ in joined]
        self._engines: list[JoinedEngine] = []
        self._selector = selectors.DefaultSelector()
        self._links: dict[int, RankProcess] = {}
        self._code: int | None = None
        self._all_serve = all_serve
        self._ended = ""
        """why; empty: it has not"""

    def run(self) -> int | None:
        """The exit code of this process; None: the engines have died, and others follow."""
        with contextlib.ExitStack() as stack:
            meeting, memory = (stack.enter_context(file_of_ranks()) for _ in range(2))
            self._memory = RankMemory(memory)
            sizes, nodes = requested_sizes(self._config), node_ranks(self._config)
            here = nodes[self._config.parallel.node_rank]
            for number, control in enumerate(self._controls):
                ranks = [rank for rank in sizes.engine_members(number) if rank in here]
                plans = stack.enter_context(file_of_ranks())
                engine = JoinedEngine(number, control, ranks, plans)
                stack.callback(engine.close)
                self._engines.append(engine)
            seats = [(engine, seat) for engine in self._engines for seat in engine.seats()]
            links = spawn_ranks(
                self._config,
                [seat for _, seat in seats],
                sum(map(len, nodes)),
                (memory, meeting),
                lambda rank: socket_setup(self._config, rank, self._host, self._session),
            )
            stack.callback(self._end, links)
            self._links = {seat[0]: link for link, (_, seat) in zip(links, seats, strict=True)}
            followers = [
                threading.Thread(target=self._follow, args=(engine, link, seat[0]), daemon=True)
                for link, (engine, seat) in zip(links, seats, strict=True)
            ]
            for follower in followers:
                follower.start()
            with handle_signals(self._selector, self._on_signal):
                self._listen()
        for follower in followers:
            follower.join(EXIT_SECONDS)
        for control in self._controls:
            control.close()
        return self._code

    def _listen(self) -> None:
        for engine in self._engines:
            self._selector.register(
                engine.control, selectors.EVENT_READ, partial(self._hear, engine)
            )
        beat = time.monotonic()
        while not self._ended:
            for key, _ in self._selector.select(max(0.0, beat - time.monotonic())):
                key.data()
            if time.monotonic() >= beat:
                self._tell_all(NodeBeat(self._find_stopped()))
                beat = time.monotonic() + BEAT_SECONDS

    def _find_stopped(self) -> list[int]:
        """Ranks that somebody has stopped."""
        return [rank for rank, link in self._links.items() if is_stopped(link.pid)]

    def _look_at(self, engine: JoinedEngine) -> NodeRankStates:
        found = look_at({self._links[rank].pid: str(rank) for rank in engine.ranks})
        stopped, missing = (
            [int(rank) for rank in ranks] for ranks in (found.stopped, found.missing)
        )
        return NodeRankStates(stopped, missing, found.waits)

    def _tell_all(self, message: NodeBeat | NodeLeaves) -> None:
        for engine in self._engines:
            engine.control.send(message)

    def _hear(self, engine: JoinedEngine) -> None:
        try:
            messages = engine.control.receive()
        except (SocketClosed, msgspec.MsgspecError) as closed:
            self._selector.unregister(engine.control)
            if not engine.stopped:
                lost = isinstance(closed, SocketClosed)
                self._lose(engine, str(closed) if lost else NOT_UNDERSTOOD)
            return
        for message in messages:
            self._obey(engine, message)

    def _lose(self, engine: JoinedEngine, closed: str) -> None:
        """Unless another one says why: of engines that share layers all end with one."""
        others = {one.control: one for one in self._engines if one is not engine}
        deadline = time.monotonic() + CAUSE_SECONDS
        while others and not self._ended and time.monotonic() < deadline:
            for control in wait_for_any(list(others), CAUSE_SECONDS):
                try:
                    for message in control.receive():
                        self._obey(others[control], message)
                except (SocketClosed, msgspec.MsgspecError):
                    del others[control]
        if not self._ended:
            self._rejoin(f"node 0: {closed or 'the connection was closed: its engine has ended'}")

    def _obey(self, engine: JoinedEngine, message: ToNode) -> None:
        match message:
            case JoinNodes():
                engine.addresses = message.addresses
                engine.joining.set()
            case NodeServes():
                engine.serves = True
                if all(one.serves for one in self._engines):
                    self._all_serve.set()
                    log.info("All ranks are ready; node 0 serves")
            case LookAtRanks():
                engine.control.send(self._look_at(engine))
            case NodeEnd() if message.cause:
                self._rejoin(message.cause)
            case NodeEnd():
                engine.stopped = True
                if all(one.stopped for one in self._engines):
                    log.info(STOPPED)
                    self._ended, self._code = "stopped", 0
            case NodeSetup() | NodeRefusal() | ServerEnd():
                log.error("node 0 says %s again", type(message).__name__)
            case _:
                engine.tell_ranks(message)

    def _rejoin(self, cause: str) -> None:
        self._all_serve.clear()
        self._ended = self._ended or cause
        log.error("The ranks of this node end: %s. It joins node 0 again", cause)

    def _on_signal(self, number: int) -> None:
        name = signal.Signals(number).name
        log.warning("%s: the ranks of this node end, and node 0's engine with them", name)
        self._tell_all(NodeLeaves(name))
        self._ended, self._code = name, 128 + number

    def _follow(self, engine: JoinedEngine, link: RankProcess, rank: int) -> None:
        """In a thread: what a rank says, to its end."""
        control = engine.control
        try:
            link.arrive()
            link.wake_with(self._memory.abandon)
            control.send(NodeRankHere(rank, link.pid, (self._host, link.address[1])))
            engine.joining.wait()
            link.begin(engine.addresses)
            control.send(NodeRankSays(rank, link.expect(RankReady)))
            while True:
                answer = link.wait()
                if self._memory.abandoned:
                    raise RankLost(BROKEN)
                control.send(NodeRankSays(rank, answer))
        except RankLost as lost:
            self._tell_death(engine, link, rank, str(lost))
        except Exception as error:  # whatever it is, the engine waits for this rank
            log.exception("Rank %d cannot be followed", rank)
            self._tell_death(engine, link, rank, f"its node cannot follow it: {say(error)}")

    def _tell_death(self, engine: JoinedEngine, link: RankProcess, rank: int, lost: str) -> None:
        death = link.death(EXIT_SECONDS)
        if self._ended:
            return
        if death is None:
            died = NodeRankDied(rank, lost, reported=True, noticed=lost == BROKEN)
        else:
            if death.trace:
                log.error("%s", death.trace.rstrip())
            died = NodeRankDied(rank, death.reason, death.reported, death.noticed, death.refused)
        log.error("Rank %d has died: %s", rank, died.reason)
        engine.control.send(died)

    def _end(self, links: list[RankProcess]) -> None:
        """They have nothing to save."""
        self._memory.abandon()
        for engine in self._engines:
            engine.joining.set()
        for link in links:
            link.kill()
