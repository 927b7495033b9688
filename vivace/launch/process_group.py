"""How an engine of several ranks starts, on this machine and others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING

from vivace.config.parallelism import requested_sizes
from vivace.engine.executor import ExecutorDied, StepWorker
from vivace.engine.process_group import Broadcast, ProcessGroupExecutor, end_start, find_cause
from vivace.engine.remote_worker import RemoteWorker
from vivace.errors import CannotStart, NodeGone, RankLost
from vivace.launch.engine_place import EnginePlace
from vivace.launch.node_messages import Address
from vivace.launch.node_sockets import open_sockets
from vivace.launch.other_nodes import ONE_MACHINE, OtherNodes
from vivace.launch.rank_progress import AllRanks
from vivace.launch.ranks import (
    EXIT_SECONDS,
    RankBroadcast,
    RankProcess,
    file_of_ranks,
    meet_ranks,
    spawn_ranks,
)
from vivace.platforms.rendezvous import RankMemory, Rendezvous
from vivace.protocol.ranks import RankReady
from vivace.protocol.step import StepPlan
from vivace.protocol.workers import WorkerCommand

if TYPE_CHECKING:
    from vivace.checkpoint.weights import ReportProgress
    from vivace.config.config import Config
    from vivace.launch.node_link import RemoteRank


class Broadcasts:
    """A `Broadcast` to the ranks here, then to those elsewhere."""

    def __init__(self, parts: Sequence[Broadcast]) -> None:
        self._parts = parts

    def send(self, message: StepPlan | WorkerCommand) -> None:
        for part in self._parts:
            part.send(message)

    def close(self, cause: str = "") -> None:
        for part in self._parts:
            part.close(cause)


def start_process_group(
    config: Config,
    build: Callable[[Rendezvous, ReportProgress], StepWorker],
    wrap: Callable[[StepWorker], StepWorker],
    report: ReportProgress,
    place: EnginePlace | None = None,
    others: OtherNodes = ONE_MACHINE,
) -> ProcessGroupExecutor:
    """Start the other ranks, build the first one if it is this machine's, wait until all are ready.
    What one dies of ends the start, named. `wrap`: what steps pass; `place`: of this engine."""
    sizes = requested_sizes(config)
    links: list[RankProcess | RemoteRank] = []
    members = sizes.engine_members(place.index if place is not None else 0)
    count = len(members) * (place.engines if place is not None else 1)
    with rank_files(place) as (memory, meeting), ExitStack() as failed, file_of_ranks() as plans:
        report("Starting ranks", 0.0)
        with blame_ranks(links, others, companions=place is not None):
            numbers = others.ranks_here(members)
            first, behind = numbers[:1], numbers[1:]
            here = RankBroadcast(plans, len(behind))
            everybody = Broadcasts((here, others))
            shared, processes = RankMemory(memory), list[RankProcess]()
            failed.push(partial(end_together, processes, everybody, shared))
            seats = [(rank, here, reader) for reader, rank in enumerate(behind)]
            processes += spawn_ranks(config, seats, count, (memory, meeting), others.sockets)
            links += processes
            sockets = [open_sockets(others.sockets(rank), rank) for rank in first]
            links += others.gather(report)
            addresses = introduce(members, [one.address for one in sockets], links, others, report)
            for link in links:
                link.wake_with(shared.abandon)
            workers: list[StepWorker] = []
            for rank, one in zip(first, sockets, strict=True):
                met = meet_ranks(rank, count, meeting, shared, one.meet(addresses, shared))
                workers.append(build(met, AllRanks(report, processes)))
                one.close()
            ready = [link.expect(RankReady) for link in links]
            others.serve(shared)
        failed.pop_all()
    remote = None if workers else links.pop(0)
    return ProcessGroupExecutor(
        wrap(workers[0] if remote is None else RemoteWorker(remote, ready[0].capacity)),
        links,
        everybody,
        companions=place is not None,
        reporting=sizes.reporting_rank,
        remote=remote,
        local_ranks=processes,
    )


def introduce(
    ranks: Sequence[int],
    first: Sequence[Address],
    links: Sequence[RankProcess | RemoteRank],
    others: OtherNodes,
    report: ReportProgress,
) -> Sequence[Address]:
    """Wait until all ranks of an engine are there, of which `first` is in this process, and tell
    them where every rank of all engines that share layers expects those of other nodes. Raises
    RankLost."""
    for done, link in enumerate(links):
        link.arrive()
        report("Starting ranks", (done + 1) / len(links))

    def look() -> None:
        if cause := find_cause(links):
            raise RankLost(cause)

    found = [*first, *(link.address for link in links)]
    addresses = others.meet(dict(zip(ranks, found, strict=True)), look)
    for link in links:
        link.begin(addresses)
    return addresses


def end_together(
    processes: Sequence[RankProcess],
    everybody: Broadcasts,
    shared: RankMemory,
    kind: object,
    error: BaseException | None,
    trace: object,
) -> None:
    """A start that has failed over `error` ends at once, on all nodes: ranks have nothing to
    save."""
    everybody.close(str(error))
    shared.abandon()
    for process in processes:
        process.kill()
    for process in processes:
        process.close()


@contextmanager
def blame_ranks(
    links: Sequence[RankProcess | RemoteRank], others: OtherNodes, *, companions: bool
) -> Iterator[None]:
    """What goes wrong while these start is named. Raises CannotStart, NodeGone, ExecutorDied."""
    try:
        yield
    except CannotStart:
        raise  # every rank says the same
    except Exception as error:
        known = bool(others.gone())
        try:
            wait = 0.0 if known else EXIT_SECONDS
            end_start(links, error, wait, companions=companions and not known)
        except ExecutorDied:
            if gone := others.gone():
                raise NodeGone(gone) from error
            raise


@contextmanager
def rank_files(place: EnginePlace | None) -> Iterator[tuple[int, int]]:
    """(shared memory, where torch's groups meet): those of `place`, or own ones."""
    if place is not None:
        yield place.link.memory, place.link.meeting
        return
    with file_of_ranks() as memory, file_of_ranks() as meeting:
        yield memory, meeting
