"""The process of a rank behind the first: it runs the plans that the engine sends it."""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import time

import msgspec

from vivace.config.child_process import die_with, no_process
from vivace.config.environment import switched_on
from vivace.config.parallelism import requested_sizes
from vivace.config.serialize import decode
from vivace.engine.process_group import RankWorker
from vivace.errors import FAILED
from vivace.launch.faults import with_rank_fault
from vivace.launch.grammars import grammar_compiler, grammar_processors
from vivace.launch.node_sockets import open_sockets
from vivace.launch.rank_progress import report_to_engine
from vivace.launch.ranks import meet_ranks
from vivace.observability import log as log_lines
from vivace.observability.awaited_processes import name_process
from vivace.platforms.rendezvous import RankMemory
from vivace.protocol.message_socket import MessageSocket
from vivace.protocol.ranks import (
    ON_SOCKET,
    JoinRanks,
    RankForked,
    RankHere,
    RankReady,
    RankSetup,
    StepDone,
    ToRank,
    ToRanks,
)
from vivace.protocol.shm_broadcast import BroadcastClosed, BroadcastReader

BROADCAST = msgspec.msgpack.Decoder(ToRanks)
PLAN_SECONDS = 1.0
"""without a plan; then a rank looks whether its engine is still there"""
ADOPTION_SECONDS = 10.0
"""in which the process between a rank and its engine ends"""


def fork_ranks(sockets: list[socket.socket], engine: int) -> None:
    """Become the ranks of an engine, one for each control socket: returns in each of them, and its
    own is left in the list. Forked behind the imports, they start at once and share the memory of
    what was imported. Each is left to the engine (`adopt_orphans`), which sees how it ends. Raises
    CannotStart where the system has no room for one; the sockets that are left have no rank."""
    gc.freeze()  # a collection would write to all that is shared
    while sockets:
        if fork_orphan(sockets[0]):
            for other in sockets[1:]:  # an open end would hide that its process is gone
                other.close()
            del sockets[1:]
            wait_for_parent(engine)
            return
        sockets.pop(0).close()
    os._exit(0)


def fork_orphan(sock: socket.socket) -> bool:
    """True in a child of a child that has ended; which one says `sock`. Raises CannotStart."""
    try:
        if between := os.fork():
            if failed := os.waitstatus_to_exitcode(os.waitpid(between, 0)[1]):
                raise OSError(failed, os.strerror(failed))
            return False
    except OSError as error:
        raise no_process("a rank", error) from error
    try:
        if pid := os.fork():
            rank_end(sock).send(RankForked(pid))
            os._exit(0)
    except OSError as error:
        os._exit(error.errno or FAILED)
    return True


def wait_for_parent(engine: int) -> None:
    deadline = time.monotonic() + ADOPTION_SECONDS
    while os.getppid() != engine and time.monotonic() < deadline:
        time.sleep(0.001)
    die_with(engine)


def rank_end(sock: socket.socket) -> MessageSocket[ToRank]:
    return MessageSocket(sock, msgspec.msgpack.Decoder(ToRank))


def run_rank(control: MessageSocket[ToRank]) -> None:
    """Until the engine's end of the socket closes (SocketClosed). Raises what ends the rank."""
    from vivace.worker.build import build_worker

    setup = control.wait()
    if not isinstance(setup, RankSetup):
        raise TypeError(f"the first message is {type(setup).__name__}, not RankSetup")
    config = decode(setup.config)
    log_lines.setup(config.logging.log_level, f"rank {setup.rank}")
    name_process(f"rank {setup.rank}")
    sockets = open_sockets(setup.sockets, setup.rank)
    control.send(RankHere(sockets.address))
    join = control.wait()
    if not isinstance(join, JoinRanks):
        raise TypeError("a message before the ranks have met")
    memory = RankMemory(setup.memory)
    met = sockets.meet(join.addresses, memory)
    rendezvous = meet_ranks(setup.rank, setup.ranks, setup.meeting, memory, met)
    report, told = report_to_engine(control.send), config.environment
    grammars = grammar_compiler(config, checked=True)
    processors = grammar_processors(config, grammars)
    built = build_worker(config, report, rendezvous, owns_process=True, processors=processors)
    if grammars is not None:
        grammars.prepare()
    runner = with_rank_fault(built, told.get("VIVACE_TEST_FAULT", ""), setup.rank)
    sizes = requested_sizes(config)
    place = sizes.place_in_engine(setup.rank)
    worker = RankWorker(
        runner,
        reports=place == sizes.reporting_rank,
        tells_counts=sizes.leads_stage(setup.rank),
        tells_tokens=place > sizes.reporting_rank and switched_on(told, "VIVACE_COMPARE_RANKS"),
    )
    gc.collect()
    gc.freeze()
    gc.enable()
    plans = BroadcastReader(setup.plans, setup.readers, setup.reader)
    os.close(setup.plans)
    sockets.close()
    control.send(RankReady(runner.capacity))
    with contextlib.suppress(BroadcastClosed):
        while True:
            answer_next(plans, control, worker)


def answer_next(plans: BroadcastReader, control: MessageSocket[ToRank], worker: RankWorker) -> None:
    """What the engine says next. Raises BroadcastClosed, SocketClosed once it has gone."""
    data = plans.receive(PLAN_SECONDS)
    if data is None:
        control.receive()
        return
    answer = worker.answer(BROADCAST.decode(data))
    if isinstance(answer, StepDone) and answer.brief:
        plans.answer(answer.number)
        return
    control.send(answer)
    plans.answer(ON_SOCKET)
