"""The ranks of one engine: processes that it starts, and that die with it."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import msgspec
from msgspec.structs import replace

from vivace.config.child_process import (
    adopt_orphans,
    block_signals,
    child_environment,
    describe_exit,
    python_module,
)
from vivace.config.serialize import encode
from vivace.engine.executor import StepWorker
from vivace.engine.process_group import ProcessGroupExecutor, RankDeath, end_start
from vivace.errors import CannotStart, RankLost
from vivace.launch.forked_processes import AdoptedProcess, TemplateProcess
from vivace.launch.node_messages import Address
from vivace.launch.node_sockets import open_sockets
from vivace.launch.nodes import Broadcasts, RemoteRank, other_nodes
from vivace.launch.rank_inbox import RankInbox, find_failure
from vivace.launch.rank_progress import AllRanks
from vivace.platforms.rendezvous import NodeSockets, RankMemory, Rendezvous
from vivace.protocol.message_socket import MessageSocket, SocketClosed
from vivace.protocol.ranks import (
    ON_SOCKET,
    FromRank,
    JoinRanks,
    NodeSocketSetup,
    RankAnswer,
    RankFailure,
    RankHere,
    RankProgress,
    RankReady,
    RankSetup,
    StepDone,
    StepRefusal,
)
from vivace.protocol.shm_broadcast import BroadcastWriter
from vivace.protocol.step import StepPlan, StepResult
from vivace.protocol.workers import WorkerCommand, WorkerState

if TYPE_CHECKING:
    from vivace.checkpoint.weights import ReportProgress
    from vivace.config.config import Config
    from vivace.config.parallelism import Parallelism

T = TypeVar("T", RankHere, RankReady)
EXIT_SECONDS = 5.0
COMING_SECONDS = 300.0
"""until a rank has imported what it needs"""
ANSWER_SECONDS = 0.1
"""after which we look whether who does not answer has died"""

log = logging.getLogger(__name__)


def start_process_group(
    config: Config,
    sizes: Parallelism,
    build: Callable[[Rendezvous, ReportProgress], StepWorker],
    report: ReportProgress,
    place: EnginePlace | None = None,
) -> ProcessGroupExecutor:
    """Start the other ranks, build the first one here, wait until all are ready. What one of them
    dies of ends the start, with its name. `place`: among engines that share layers."""
    links: list[RankProcess | RemoteRank] = []
    with rank_files(place) as (memory, meeting), ExitStack() as started, file_of_ranks() as plans:
        members = sizes.engine_members(place.index if place else 0)
        first, count = members[0], len(members) * (place.engines if place else 1)
        report("Starting ranks", 0.0)
        others = other_nodes(config)
        try:
            numbers = others.ranks_here(members)
            here = RankBroadcast(plans, len(numbers) - 1)
            everybody = Broadcasts((here, others))
            started.push(everybody.tell_failure)
            files = meeting, memory, plans
            processes = spawn_ranks(config, numbers[1:], count, files, here, others.sockets)
            links += processes
            sockets = open_sockets(others.sockets(first), first)
            links += others.gather(report)
            for link in links:
                started.callback(link.close)
            addresses = introduce(sockets.address, links, report)
            shared = RankMemory(memory)
            rendezvous = meet_ranks(first, count, meeting, shared, sockets.meet(addresses, shared))
            for link in links:
                link.wake_with(shared.abandon)
            worker = build(rendezvous, AllRanks(report, processes))
            for link in links:
                link.expect(RankReady)
            others.serve(shared)
        except CannotStart:
            raise  # every rank says the same
        except Exception as error:
            end_start(links, error, EXIT_SECONDS)
        started.pop_all()
    return ProcessGroupExecutor(
        worker,
        links,
        everybody,
        companions=place is not None,
        reporting=sizes.reporting_rank,
    )


def introduce(
    own: Address, links: Sequence[RankProcess | RemoteRank], report: ReportProgress
) -> list[Address]:
    """Wait until all ranks are there, and tell them where the others are."""
    for done, link in enumerate(links):
        link.arrive()
        report("Starting ranks", (done + 1) / len(links))
    addresses = [own, *(link.address for link in links)]
    for link in links:
        link.begin(addresses)
    return addresses


@dataclass(frozen=True, kw_only=True)
class EnginePlace:
    """Of an engine among those that share layers with it; files without names, which all their
    ranks inherit."""

    index: int
    engines: int
    memory: int
    meeting: int


@contextmanager
def rank_files(place: EnginePlace | None) -> Iterator[tuple[int, int]]:
    """(shared memory, where torch's groups meet): those of `place`, or own ones."""
    if place is not None:
        yield place.memory, place.meeting
        return
    with file_of_ranks() as memory, file_of_ranks() as meeting:
        yield memory, meeting


@contextmanager
def file_of_ranks() -> Iterator[int]:
    """A file without a name, which ranks inherit, there while they start."""
    descriptor = os.memfd_create("vivace-ranks")
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def meet_ranks(
    rank: int, ranks: int, meeting: int, memory: RankMemory, sockets: NodeSockets
) -> Rendezvous:
    """`meeting`: descriptor, open until the group has come together, as the memory's is."""
    place = f"file:///proc/self/fd/{meeting}"
    return Rendezvous(rank=rank, size=ranks, meeting=place, memory=memory, sockets=sockets)


class RankBroadcast:
    """A `Broadcast` to processes of this machine, encoded once and written once, and what they
    answer. `plans`: descriptor of a file that only they have."""

    def __init__(self, plans: int, readers: int) -> None:
        self._writer = BroadcastWriter(plans, readers)
        self._encoder = msgspec.msgpack.Encoder()
        self.answer = self._writer.answer
        self.leave = self._writer.leave

    def send(self, message: StepPlan | WorkerCommand) -> None:
        self._writer.send(self._encoder.encode(message))

    def close(self, cause: str = "") -> None:
        self._writer.close()


def spawn_ranks(
    config: Config,
    numbers: Sequence[int],
    ranks: int,
    files: tuple[int, int, int],
    broadcast: RankBroadcast,
    sockets: Callable[[int], NodeSocketSetup | None] = lambda rank: None,
) -> list[RankProcess]:
    """One process that becomes all of them: ranks `numbers` of `ranks`. `files`: descriptors for
    `RankSetup`: meeting, memory, plans; `sockets`: what it has of each rank."""
    if not numbers:
        return []
    adopt_orphans()
    pairs = [socket.socketpair() for _ in numbers]
    theirs = [end.fileno() for _, end in pairs]
    command = [
        *python_module("vivace.launch.child"),
        "rank",
        *("--parent", str(os.getpid()), "--control", *map(str, theirs)),
    ]
    with block_signals():
        template = subprocess.Popen(
            command,
            pass_fds=[*theirs, *files],
            stdin=subprocess.DEVNULL,
            env=child_environment(),
        )
    links: list[RankProcess] = []
    meeting, memory, plans = files
    setup = RankSetup(
        config=encode(config),
        rank=0,
        ranks=ranks,
        meeting=meeting,
        memory=memory,
        plans=plans,
        readers=len(numbers),
        reader=0,
    )
    for reader, (number, (ours, end)) in enumerate(zip(numbers, pairs, strict=True)):
        end.close()
        links.append(RankProcess(f"rank {number}", template, ours, broadcast, reader))
        own = replace(setup, rank=number, reader=reader, sockets=sockets(number))
        links[-1].control.send(own)
    return links


class RankProcess:
    """A `RankLink` to a process of ours. Its socket closes the moment it dies. `process`: the one
    that becomes the ranks, until this one has said which it is. It is `reader` of `broadcast`."""

    def __init__(
        self,
        name: str,
        process: subprocess.Popen[bytes],
        ours: socket.socket,
        broadcast: RankBroadcast,
        reader: int,
    ) -> None:
        self._rank = name
        self._broadcast = broadcast
        self._reader = reader
        self._answers = 0
        self.name = f"{name} (process {process.pid})"
        self.control = MessageSocket(ours, msgspec.msgpack.Decoder(FromRank))
        self._incoming: MessageSocket[FromRank] | RankInbox = self.control
        self._process: TemplateProcess | AdoptedProcess = TemplateProcess(process, ours)
        self._template = process
        self._watched = False
        self._gone = threading.Event()
        self._failure: RankFailure | None = None
        self.address: Address = "", 0
        """where it expects ranks of other nodes"""

    @property
    def pid(self) -> int:
        return self._process.pid

    def arrive(self) -> None:
        """Wait until it is there. Raises RankLost."""
        message = self.expect(RankHere, COMING_SECONDS)
        self._template.wait(EXIT_SECONDS)
        self._process, self.address = AdoptedProcess(message.pid), message.address
        self.name = f"{self._rank} (process {message.pid})"

    def begin(self, addresses: Sequence[Address]) -> None:
        self.control.send(JoinRanks(list(addresses)))

    def wait(self) -> RankAnswer:
        self._answers += 1
        while (
            number := self._broadcast.answer(self._reader, self._answers, ANSWER_SECONDS)
        ) is None:
            if death := self.death():
                raise RankLost(death.text)
        if number != ON_SOCKET:
            return StepDone(number)
        message = self._wait()
        if isinstance(message, StepDone | StepResult | StepRefusal | WorkerState):
            return message
        raise RankLost(f"{self.name} says {type(message).__name__}, which nobody asked")

    def expect(self, kind: type[T], timeout: float | None = None) -> T:
        """While it starts. Raises RankLost."""
        while isinstance(message := self._wait(timeout), RankProgress):
            pass
        if not isinstance(message, kind):
            raise RankLost(f"{self.name} says {type(message).__name__}, not {kind.__name__}")
        if kind is RankReady:
            self._incoming = RankInbox(self._rank, self.control)
        return message

    def progress(self) -> list[RankProgress]:
        """What it has said of its loading since the last time. Raises RankLost."""
        try:
            messages = self.control.receive()
        except SocketClosed:
            raise self._lost() from None
        self._failure = find_failure(messages)
        if self._failure:
            raise self._lost()
        return [message for message in messages if isinstance(message, RankProgress)]

    def _wait(self, timeout: float | None = None) -> FromRank:
        try:
            message = self._incoming.wait(timeout)
            if not isinstance(message, RankFailure):
                return message
            self._failure = message
        except SocketClosed:
            pass
        except TimeoutError:
            raise RankLost(f"{self.name} has said nothing for {timeout:g} s") from None
        raise self._lost()

    def _lost(self) -> RankLost:
        death = self.death(EXIT_SECONDS)
        return RankLost(death.text if death else f"{self.name} has closed its socket")

    def death(self, wait: float = 0.0) -> RankDeath | None:
        if self._watched and not (self._gone.is_set() or (wait and self._gone.wait(wait))):
            return None
        try:
            code = self._process.wait(wait)
        except subprocess.TimeoutExpired:
            return None
        failure = self._failure = self._failure or self._last_failure()
        if failure is None:
            return RankDeath(self.name, self._process.describe(code), reported=False)
        return RankDeath(
            self.name,
            f"{failure.text} ({describe_exit(code)})" if code else failure.text,
            reported=True,
            noticed=failure.noticed,
            refused=failure.refused,
            trace=failure.trace,
        )

    def _last_failure(self) -> RankFailure | None:
        """Of one that has ended: whatever else it has sent is of no use any more."""
        try:
            return find_failure(self._incoming.receive())
        except SocketClosed:
            return None

    def wake_with(self, ring: Callable[[], None]) -> None:
        def watch() -> None:
            self._process.wait()
            self._gone.set()
            self._broadcast.leave(self._reader)
            ring()

        self._watched = True
        threading.Thread(target=watch, name=self.name, daemon=True).start()

    def kill(self) -> None:
        """Whatever it does."""
        self._process.kill()

    def close(self) -> None:
        """It ends when its socket does."""
        self.control.shutdown()
        try:
            self._process.wait(EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self.control.close()
