"""How a node behind the first joins the engines of node 0: it calls each of them."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from vivace.config.config import DraftModel
from vivace.config.nodes import COPY_THE_KEY, address
from vivace.config.parallelism import requested_sizes
from vivace.config.serialize import decode
from vivace.errors import CannotStart, NotJoined, why_no_answer
from vivace.launch.handshake import (
    Intent,
    NoHandshake,
    WrongKey,
    call,
    notice_silence,
    send_at_once,
)
from vivace.launch.node_hello import cluster_key, hello
from vivace.launch.node_link import BEAT_SECONDS
from vivace.launch.node_messages import (
    NodeBeat,
    NodeHello,
    NodeRefusal,
    NodeSetup,
    ServerEnd,
    ToNode,
)
from vivace.protocol.message_socket import MessageSocket, SocketClosed

if TYPE_CHECKING:
    from vivace.config.config import Config

RETRY_SECONDS = 0.5
ANSWER_SECONDS = 30.0
"""of the first engine, to what a node says of itself; the others may still be starting then"""
NOT_UNDERSTOOD = "it says what is not understood here"

Joined = tuple[MessageSocket[ToNode], NodeSetup]
log = logging.getLogger(__name__)


class ServerHasEnded(Exception):
    """Node 0 says that no engine follows."""

    def __init__(self, end: ServerEnd) -> None:
        super().__init__(end.cause)
        self.end = end


def join_engines(config: Config) -> list[Joined]:
    """Call until all answer, for --dist-timeout. Raises CannotStart, ServerHasEnded."""
    parallel, told = config.parallel, ""
    deadline = time.monotonic() + parallel.dist_timeout
    while True:
        try:
            return introduce(config, deadline)
        except WrongKey:
            raise CannotStart(
                f"node 0 at {parallel.dist_init_addr} has another key: {COPY_THE_KEY}"
            ) from None
        except msgspec.MsgspecError:
            why = NOT_UNDERSTOOD
        except (OSError, NoHandshake, SocketClosed) as error:
            why = "it has closed the connection"
            why = why if isinstance(error, SocketClosed) else why_no_answer(error)
        if time.monotonic() >= deadline:
            raise NotJoined(
                f"node 0 did not answer at {parallel.dist_init_addr} within "
                f"{parallel.dist_timeout} s (--dist-timeout): {why}. Start it with this "
                "command and --node-rank 0, and see that this machine reaches it"
            )
        if why != told:
            log.info("Node 0 does not answer at %s yet: %s", parallel.dist_init_addr, why)
            told = why
        time.sleep(RETRY_SECONDS)


def introduce(config: Config, deadline: float) -> list[Joined]:
    """To every engine, the first one before the others. Raises CannotStart where node 0 refuses;
    ServerHasEnded, WrongKey, NoHandshake, SocketClosed, OSError."""
    mine, joined = hello(config), list[Joined]()
    with contextlib.ExitStack() as opened:
        for engine in range(requested_sizes(config).attention_dp):
            control = open_control(config, engine)
            opened.callback(control.close)
            wait = max(ANSWER_SECONDS, deadline - time.monotonic()) if engine else ANSWER_SECONDS
            joined.append((control, await_setup(config, control, mine, joined, wait)))
        opened.pop_all()
    return joined


def open_control(config: Config, engine: int) -> MessageSocket[ToNode]:
    where = address(str(config.parallel.dist_init_addr))
    sock = call(where, cluster_key(config), Intent(0, engine, config.parallel.node_rank))
    notice_silence(sock)
    send_at_once(sock)
    return MessageSocket(sock, msgspec.msgpack.Decoder(ToNode))


def await_setup(
    config: Config,
    control: MessageSocket[ToNode],
    mine: NodeHello,
    joined: Sequence[Joined],
    seconds: float,
) -> NodeSetup:
    """Say what this node is; engines that it has `joined` hear meanwhile that it lives."""
    node, until = config.parallel.node_rank, time.monotonic() + seconds
    control.send(mine)
    while True:
        try:
            answer = control.wait(BEAT_SECONDS)
            break
        except TimeoutError:
            if time.monotonic() >= until:
                raise NoHandshake("it does not answer what this node said of itself") from None
        for other, _ in joined:
            other.send(NodeBeat([]))
    if isinstance(answer, ServerEnd):
        raise ServerHasEnded(answer)
    if isinstance(answer, NodeRefusal):
        raise CannotStart(f"node 0 refuses node {node}: {'; '.join(answer.reasons)}")
    if not isinstance(answer, NodeSetup):
        raise NoHandshake(f"it says {type(answer).__name__} first")
    return answer


def own_draft(mine: DraftModel | None, engine: DraftModel | None) -> DraftModel | None:
    """This machine's files; what the engine's says of its shape (a token map) holds for all."""
    if mine is None or engine is None:
        return engine
    return replace(mine, head=engine.head)


def own_config(mine: Config, data: bytes) -> Config:
    """What the engine resolved, with this machine's files, device and addresses."""
    try:
        config = decode(data)
    except (ValueError, RecursionError) as error:
        raise CannotStart(f"node 0 sends settings that are not understood here: {error}") from None
    return replace(
        config,
        source=mine.source,
        draft=own_draft(mine.draft, config.draft),
        platform=mine.platform,
        logging=mine.logging,
        parallel=mine.parallel,
        runtime=replace(config.runtime, cpu_threads=mine.runtime.cpu_threads),
    )
