"""The process of a node behind the first: it joins the engine, starts the ranks of this machine,
and passes on what they hear and say. It computes nothing, so it always answers."""

from __future__ import annotations

import contextlib
import logging
import selectors
import signal
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from vivace.config.nodes import MAKE_A_KEY, address
from vivace.config.serialize import decode
from vivace.errors import CannotStart, RankLost, why_no_answer
from vivace.launch.handshake import (
    Intent,
    NoHandshake,
    WrongKey,
    call,
    notice_silence,
    send_at_once,
)
from vivace.launch.node_hello import cluster_key, hello, node_ranks, socket_setup
from vivace.launch.node_link import BEAT_SECONDS, BROKEN
from vivace.launch.node_messages import (
    Address,
    JoinNodes,
    NodeBeat,
    NodeEnd,
    NodeLeaves,
    NodeRankDied,
    NodeRankHere,
    NodeRankSays,
    NodeRefusal,
    NodeServes,
    NodeSetup,
    ToNode,
)
from vivace.launch.ranks import EXIT_SECONDS, RankBroadcast, RankProcess, file_of_ranks, spawn_ranks
from vivace.observability import log as log_lines
from vivace.observability.log import protect_standard_streams
from vivace.platforms.rendezvous import RankMemory
from vivace.protocol.message_socket import MessageSocket, SocketClosed
from vivace.protocol.ranks import RankReady
from vivace.protocol.step import StepPlan
from vivace.supervisor.signals import handle_signals

if TYPE_CHECKING:
    from vivace.config.config import Config

RETRY_SECONDS = 0.5
ANSWER_SECONDS = 30.0
"""of the engine, to what a node says of itself"""

log = logging.getLogger(__name__)


def run_node(config: Config) -> int:
    """Serve with node 0 until that is stopped or this process is told to end; returns the exit
    code. When the engine dies, its successor is joined. Raises CannotStart."""
    protect_standard_streams()
    node, where = config.parallel.node_rank, config.parallel.dist_init_addr
    log_lines.setup(config.logging.log_level, f"node {node}")
    ranks = node_ranks(config)[node]
    log.info(
        "Node %d of %d has ranks %s; it joins node 0 at %s",
        node,
        config.parallel.nnodes,
        ", ".join(map(str, ranks)),
        where,
    )
    while True:
        control, setup = join_engine(config)
        code = NodeLife(config, control, setup).run()
        if code is not None:
            return code


def join_engine(config: Config) -> tuple[MessageSocket[ToNode], NodeSetup]:
    """Call until node 0 answers, for --dist-timeout. Raises CannotStart."""
    parallel, told = config.parallel, ""
    deadline = time.monotonic() + parallel.dist_timeout
    while True:
        try:
            return introduce(config)
        except WrongKey:
            raise CannotStart(
                f"node 0 at {parallel.dist_init_addr} has another key: {MAKE_A_KEY}"
            ) from None
        except (OSError, NoHandshake, SocketClosed) as error:
            why = "it has closed the connection"
            why = why if isinstance(error, SocketClosed) else why_no_answer(error)
        if time.monotonic() >= deadline:
            raise CannotStart(
                f"node 0 did not answer at {parallel.dist_init_addr} within "
                f"{parallel.dist_timeout} s (--dist-timeout): {why}. Start it with this "
                "command and --node-rank 0, and see that this machine reaches it"
            )
        if why != told:
            log.info("Node 0 does not answer at %s yet: %s", parallel.dist_init_addr, why)
            told = why
        time.sleep(RETRY_SECONDS)


def introduce(config: Config) -> tuple[MessageSocket[ToNode], NodeSetup]:
    """Raises CannotStart where node 0 refuses; WrongKey, NoHandshake, SocketClosed, OSError."""
    node = config.parallel.node_rank
    where = address(str(config.parallel.dist_init_addr))
    sock = call(where, cluster_key(config), Intent(0, 0, node))
    notice_silence(sock)
    send_at_once(sock)
    control = MessageSocket(sock, msgspec.msgpack.Decoder(ToNode))
    control.send(hello(config))
    try:
        answer = control.wait(ANSWER_SECONDS)
    except TimeoutError:
        raise NoHandshake("it does not answer what this node said of itself") from None
    if isinstance(answer, NodeRefusal):
        raise CannotStart(f"node 0 refuses node {node}: {'; '.join(answer.reasons)}")
    if not isinstance(answer, NodeSetup):
        raise NoHandshake(f"it says {type(answer).__name__} first")
    return control, answer


def own_config(mine: Config, data: bytes) -> Config:
    """What the engine resolved, with this machine's files, device and addresses."""
    config = decode(data)
    return replace(
        config,
        source=mine.source,
        platform=mine.platform,
        logging=mine.logging,
        parallel=mine.parallel,
        runtime=replace(config.runtime, cpu_threads=mine.runtime.cpu_threads),
    )


class NodeLife:
    """The ranks of this node, from joining an engine until either ends. A thread for each rank
    waits for what that says."""

    def __init__(self, config: Config, control: MessageSocket[ToNode], setup: NodeSetup) -> None:
        self._config = own_config(config, setup.config)
        self._control = control
        self._session = setup.session
        self._host = control.local_host()
        self._selector = selectors.DefaultSelector()
        self._joining = threading.Event()
        self._addresses: list[Address] = []
        self._code: int | None = None
        self._ended = ""
        """why; empty: it has not"""

    def run(self) -> int | None:
        """The exit code of this process; None: the engine has died, and another one follows."""
        node = self._config.parallel.node_rank
        numbers = node_ranks(self._config)[node]
        with contextlib.ExitStack() as stack:
            meeting, memory, plans = (stack.enter_context(file_of_ranks()) for _ in range(3))
            self._memory = RankMemory(memory)
            self._broadcast = RankBroadcast(plans, len(numbers))
            links = spawn_ranks(
                self._config,
                numbers,
                sum(map(len, node_ranks(self._config))),
                (meeting, memory, plans),
                self._broadcast,
                lambda rank: socket_setup(self._config, rank, self._host, self._session),
            )
            stack.callback(self._end, links)
            followers = [
                threading.Thread(target=self._follow, args=pair, daemon=True)
                for pair in zip(links, numbers, strict=True)
            ]
            for follower in followers:
                follower.start()
            with handle_signals(self._selector, self._on_signal):
                self._listen()
        for follower in followers:
            follower.join(EXIT_SECONDS)
        self._control.close()
        return self._code

    def _listen(self) -> None:
        self._selector.register(self._control, selectors.EVENT_READ, self._hear)
        beat = time.monotonic()
        while not self._ended:
            for key, _ in self._selector.select(max(0.0, beat - time.monotonic())):
                key.data()
            if time.monotonic() >= beat:
                self._control.send(NodeBeat())
                beat = time.monotonic() + BEAT_SECONDS

    def _hear(self) -> None:
        try:
            messages = self._control.receive()
        except SocketClosed as closed:
            why = str(closed) or "the connection was closed: its engine has ended"
            self._rejoin(f"node 0: {why}")
            return
        for message in messages:
            self._obey(message)

    def _obey(self, message: ToNode) -> None:
        match message:
            case StepPlan():
                self._broadcast.send(message)
            case JoinNodes():
                self._addresses = message.addresses
                self._joining.set()
            case NodeServes():
                log.info("All ranks are ready; node 0 serves")
            case NodeEnd() if message.cause:
                self._rejoin(message.cause)
            case NodeEnd():
                log.info("Node 0 was stopped, and so is this node")
                self._ended, self._code = "stopped", 0
            case NodeSetup() | NodeRefusal():
                log.error("node 0 says %s again", type(message).__name__)
            case _:
                self._broadcast.send(message)

    def _rejoin(self, cause: str) -> None:
        self._ended = cause
        log.error("The ranks of this node end: %s. It joins node 0 again", cause)

    def _on_signal(self, number: int) -> None:
        name = signal.Signals(number).name
        log.warning("%s: the ranks of this node end, and node 0's engine with them", name)
        self._control.send(NodeLeaves(name))
        self._ended, self._code = name, 128 + number

    def _follow(self, link: RankProcess, rank: int) -> None:
        """In a thread: what a rank says, to its end."""
        try:
            link.arrive()
            link.wake_with(self._memory.abandon)
            here = self._host, link.address[1]
            self._control.send(NodeRankHere(rank, link.pid, here))
            self._joining.wait()
            link.begin(self._addresses)
            link.expect(RankReady)
            self._control.send(NodeRankSays(rank, RankReady()))
            while True:
                answer = link.wait()
                if self._memory.abandoned:
                    raise RankLost(BROKEN)
                self._control.send(NodeRankSays(rank, answer))
        except RankLost as lost:
            self._tell_death(link, rank, str(lost))

    def _tell_death(self, link: RankProcess, rank: int, lost: str) -> None:
        death = link.death(EXIT_SECONDS)
        if self._ended:
            return
        if death is None:
            died = NodeRankDied(rank, lost, reported=True, noticed=lost == BROKEN)
        else:
            if death.trace:
                log.error("%s", death.trace.rstrip())
            died = NodeRankDied(rank, death.reason, death.reported, death.noticed)
        log.error("Rank %d has died: %s", rank, died.reason)
        self._control.send(died)

    def _end(self, links: list[RankProcess]) -> None:
        """They have nothing to save."""
        self._memory.abandon()
        self._joining.set()
        for link in links:
            link.kill()
