"""The process of a rank behind the first: it runs the plans that the engine sends it."""

from __future__ import annotations

import gc
import socket

import msgspec

from vivace.config.serialize import decode
from vivace.engine.process_group import RankWorker
from vivace.launch.ranks import meet_ranks
from vivace.observability import log as log_lines
from vivace.protocol.message_socket import MessageSocket
from vivace.protocol.ranks import JoinRanks, RankHere, RankReady, RankSetup, ToRank
from vivace.protocol.step import StepPlan
from vivace.protocol.workers import GetWorkerState


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
    control.send(RankHere())
    if not isinstance(control.wait(), JoinRanks):
        raise TypeError("a message before the ranks have met")
    rendezvous = meet_ranks(setup.rank, setup.ranks, setup.meeting, setup.memory)
    worker = RankWorker(
        build_worker(config, lambda stage, fraction: None, rendezvous, owns_process=True)
    )
    gc.collect()
    gc.freeze()
    gc.enable()
    control.send(RankReady())
    while True:
        message = control.wait()
        if not isinstance(message, StepPlan | GetWorkerState):
            return
        control.send(worker.answer(message))
