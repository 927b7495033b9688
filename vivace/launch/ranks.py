"""Ranks of engines: processes that an engine or a node's process starts, and that die with it."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import msgspec

from vivace.config.child_process import (
    adopt_orphans,
    block_signals,
    child_environment,
    describe_exit,
    no_process,
    python_module,
)
from vivace.config.serialize import encode
from vivace.engine.process_group import RankDeath
from vivace.errors import RankLost
from vivace.launch.forked_processes import AdoptedProcess, TemplateProcess
from vivace.launch.node_messages import Address
from vivace.launch.rank_inbox import RankInbox, find_failure
from vivace.platforms.rendezvous import NodeSockets, RankMemory, Rendezvous
from vivace.protocol.message_socket import MessageSocket, SocketClosed
from vivace.protocol.ranks import (
    COMING_SECONDS,
    ON_SOCKET,
    FromRank,
    JoinRanks,
    NodeSocketSetup,
    RankAnswer,
    RankFailure,
    RankForked,
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
from vivace.system_calls import open_memory

if TYPE_CHECKING:
    from vivace.config.config import Config

T = TypeVar("T", RankForked, RankHere, RankReady)
EXIT_SECONDS = 5.0
ANSWER_SECONDS = 0.1
"""after which we look whether who does not answer has died"""

log = logging.getLogger(__name__)


@contextmanager
def file_of_ranks() -> Iterator[int]:
    """A file without a name, which ranks inherit, there while they start."""
    descriptor = open_memory("vivace-ranks")
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def meet_ranks(
    rank: int, ranks: int, meeting: int, memory: RankMemory, sockets: NodeSockets
) -> Rendezvous:
    """`meeting`: descriptor, open until the group has come together, as the memory's is."""
    place = f"/proc/self/fd/{meeting}"
    return Rendezvous(rank=rank, size=ranks, meeting=place, memory=memory, sockets=sockets)


class RankBroadcast:
    """A `Broadcast` to processes of this machine, encoded once and written once, and what they
    answer. `plans`: descriptor of a file that only they have."""

    def __init__(self, plans: int, readers: int) -> None:
        self.plans, self.readers = plans, readers
        self._writer = BroadcastWriter(plans, readers)
        self._encoder = msgspec.msgpack.Encoder()
        self.answer = self._writer.answer
        self.leave = self._writer.leave

    def send(self, message: StepPlan | WorkerCommand) -> None:
        self._writer.send(self._encoder.encode(message))

    def close(self, cause: str = "") -> None:
        self._writer.close()


Seat = tuple[int, RankBroadcast, int]
"""A rank, and where it reads plans: as which reader"""


def spawn_ranks(
    config: Config,
    seats: Sequence[Seat],
    ranks: int,
    files: tuple[int, int],
    sockets: Callable[[int], NodeSocketSetup | None] = lambda rank: None,
) -> list[RankProcess]:
    """One process that becomes all of these, of `ranks`. `files`: descriptors for `RankSetup`:
    memory, meeting; `sockets`: what it has of each rank. Raises CannotStart."""
    if not seats:
        return []
    adopt_orphans()
    pairs = [socket.socketpair() for _ in seats]
    theirs = [end.fileno() for _, end in pairs]
    command = [
        *python_module("vivace.launch.child"),
        "rank",
        *("--parent", str(os.getpid()), "--control", *map(str, theirs)),
    ]
    try:
        with block_signals():
            template = subprocess.Popen(
                command,
                pass_fds=[*theirs, *files, *{broadcast.plans for _, broadcast, _ in seats}],
                stdin=subprocess.DEVNULL,
                env=child_environment(),
            )
    except OSError as error:
        raise no_process("ranks", error) from error
    links: list[RankProcess] = []
    (memory, meeting), encoded = files, encode(config)
    for (rank, broadcast, reader), (ours, end) in zip(seats, pairs, strict=True):
        end.close()
        links.append(RankProcess(f"rank {rank}", template, ours, broadcast, reader))
        setup = RankSetup(
            config=encoded,
            rank=rank,
            ranks=ranks,
            meeting=meeting,
            memory=memory,
            plans=broadcast.plans,
            readers=broadcast.readers,
            reader=reader,
            sockets=sockets(rank),
        )
        links[-1].control.send(setup)
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
        self._watchers: list[threading.Thread] = []
        self.name = f"{name} (process {process.pid})"
        self.control = MessageSocket(ours, msgspec.msgpack.Decoder(FromRank))
        self._incoming: MessageSocket[FromRank] | RankInbox = self.control
        self._process: TemplateProcess | AdoptedProcess = TemplateProcess(process, ours)
        self._template = process
        self._gone = threading.Event()
        self._failure: RankFailure | None = None
        self.address: Address = "", 0
        """where it expects ranks of other nodes"""

    @property
    def pid(self) -> int:
        return self._process.pid

    def arrive(self) -> None:
        """Wait until it is there. Raises RankLost."""
        forked = self.expect(RankForked, COMING_SECONDS)
        try:
            self._template.wait(COMING_SECONDS)  # it may have others to fork
        except subprocess.TimeoutExpired:
            raise RankLost(
                f"process {self._template.pid}, which forks the ranks, has not ended in "
                f"{COMING_SECONDS:g} s"
            ) from None
        self._process = AdoptedProcess(forked.pid)
        self.name = f"{self._rank} (process {forked.pid})"
        self.address = self.expect(RankHere, COMING_SECONDS).address

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
        # RankReady is none of these: a rank first agrees on sizes with the one that asks here.
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
        if self._watchers and not (self._gone.is_set() or (wait and self._gone.wait(wait))):
            return None
        try:
            self._process.wait(wait)
            self._read_rest()
            code = self._process.wait(wait)
        except subprocess.TimeoutExpired:
            return None
        failure = self._failure
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

    def _read_rest(self) -> None:
        """Of one that has ended: its last words and, where nobody has asked, which process this one
        has to reap. Raises subprocess.TimeoutExpired."""
        with contextlib.suppress(SocketClosed):
            for message in self._incoming.receive():
                if isinstance(message, RankFailure):
                    self._failure = self._failure or message
                elif isinstance(message, RankForked):
                    self._template.wait(EXIT_SECONDS)
                    self._process = AdoptedProcess(message.pid)

    def wake_with(self, ring: Callable[[], None]) -> None:
        def watch() -> None:
            self._process.wait()
            self._gone.set()
            self._broadcast.leave(self._reader)
            ring()

        self._watchers.append(threading.Thread(target=watch, name=self.name, daemon=True))
        self._watchers[-1].start()

    def kill(self) -> None:
        """Whatever it does."""
        self._process.kill()

    def close(self) -> None:
        """It ends when its socket does."""
        self.control.shutdown()
        try:
            if isinstance(self._process, TemplateProcess):
                self._read_rest()
            self._process.wait(EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            log.warning("%s is killed: it did not end in %g s", self.name, EXIT_SECONDS)
        finally:  # also where somebody does not want to wait
            self._process.kill()
            self.control.close()
            for watcher in self._watchers:
                watcher.join(EXIT_SECONDS)
