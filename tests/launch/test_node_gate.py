"""How the first node waits for the others, and what these do, the other side of which is played."""

from __future__ import annotations

import queue
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from served_toy import free_port, write_toy_llama

from vivace.config.config import Config
from vivace.config.parsing import parse
from vivace.config.serialize import encode
from vivace.errors import CannotStart
from vivace.launch import nodes
from vivace.launch.configure import configure
from vivace.launch.engine_place import EnginePlace
from vivace.launch.farewell import tell_nodes
from vivace.launch.handshake import Intent, call
from vivace.launch.node import JoinedEngine, NodeLife, follow_engines
from vivace.launch.node_hello import cluster_key, hello
from vivace.launch.node_join import ServerHasEnded
from vivace.launch.node_messages import (
    FromNode,
    LookAtRanks,
    NodeEnd,
    NodeHello,
    NodeLeaves,
    NodeRankDied,
    NodeRankStates,
    NodeRefusal,
    NodeSetup,
    ServerEnd,
    ToNode,
)
from vivace.launch.other_nodes import other_nodes
from vivace.launch.ranks import RankProcess
from vivace.observability.awaited_processes import is_stopped
from vivace.platforms.cpu.library import LIBRARY
from vivace.protocol.engine_link import new_engine_link
from vivace.protocol.message_socket import MessageSocket, SocketClosed
from vivace.protocol.ranks import NodePresence, RankStates
from vivace.protocol.shm_broadcast import RING_BYTES, BroadcastReader
from vivace.protocol.step import StepPlan
from vivace.system_calls import open_memory
from vivace.version import __version__

pytestmark = pytest.mark.skipif(not LIBRARY.is_file(), reason="nodes need the native kernels")
KEY = "k" * 32
TWO_ENGINES = ("--dp-size", "2", "--enable-dp-attention")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy_llama(tmp_path_factory.mktemp("toy"))


def wait_until(found: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5
    while not found():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def make_config(folder: Path, *flags: str) -> Config:
    where = f"127.0.0.1:{free_port()}"
    words = ("--model-path", str(folder), "--dist-init-addr", where, *flags)
    return configure(parse([*words, "--skip-tokenizer-init"], {"VIVACE_CLUSTER_KEY": KEY}))


def join(config: Config, node: int) -> MessageSocket[ToNode]:
    where = str(config.parallel.dist_init_addr).split(":")
    sock = call((where[0], int(where[1])), cluster_key(config), Intent(0, 0, node))
    control = MessageSocket(sock, msgspec.msgpack.Decoder(ToNode))
    control.send(hello(config))
    assert isinstance(control.wait(10), NodeSetup)
    return control


def test_a_node_whose_rank_dies_while_another_is_awaited_joins_again(folder: Path) -> None:
    """And the first one says why, where nobody came in time."""
    config = make_config(folder, "--tp-size", "4", "--nnodes", "4", "--dist-timeout", "4")
    gate, said = other_nodes(config), list[str]()
    with ThreadPoolExecutor(1) as pool:
        gathered = pool.submit(gate.gather, lambda stage, part: said.append(stage))
        first = join(config, 1)
        first.send(NodeRankDied(1, "killed by SIGKILL", reported=False, noticed=False))
        end = first.wait(3)
        assert isinstance(end, NodeEnd)
        assert "killed by SIGKILL" in end.cause
        again = join(config, 1)
        again.send(NodeRankDied(1, "killed by SIGSEGV", reported=False, noticed=False))
        with pytest.raises(CannotStart, match="SIGSEGV"):
            gathered.result(20)
    assert said[0] in ("Waiting for nodes 1, 2, 3", "Waiting for nodes 2, 3")
    for control in (first, again):
        control.close()


def test_the_supervisor_hears_of_nodes_and_of_whom_they_wait_for(folder: Path) -> None:
    """A node that has gone may come back; one that this engine has sent away calls again."""
    config = make_config(folder, "--tp-size", "4", "--nnodes", "4", "--dist-timeout", "20")
    told: queue.SimpleQueue[NodePresence | RankStates] = queue.SimpleQueue()
    gate = other_nodes(config, None, told.put)
    joined = [join(config, node) for node in (1, 2, 3)]
    assert {told.get(timeout=5) for _ in joined} == {NodePresence(node, True) for node in (1, 2, 3)}
    gate.ask()
    assert isinstance(joined[0].wait(5), LookAtRanks)
    joined[0].send(NodeRankStates([7], [1], waits=False))
    found = told.get(timeout=5)
    assert found == RankStates([], ["rank 1 (node 1)"], waits=False)
    joined[1].send(NodeLeaves("SIGTERM"))
    assert told.get(timeout=5) == NodePresence(2, here=False)
    assert gate.gone() == "node 2 (127.0.0.1): was stopped: SIGTERM"
    gate.close("no memory for the KV pool")
    assert joined[2].wait(5) == LookAtRanks()
    assert joined[2].wait(5) == NodeEnd("no memory for the KV pool")
    for node in joined:
        node.close()
    with pytest.raises(queue.Empty):
        told.get(timeout=0.5)


@pytest.mark.parametrize("cause", ["", "it died too often"])
def test_who_calls_again_hears_that_the_server_has_ended(folder: Path, cause: str) -> None:
    config = make_config(folder, "--tp-size", "2", "--nnodes", "2", "--dist-timeout", "20")
    other = replace(config, parallel=replace(config.parallel, node_rank=1))
    with ThreadPoolExecutor(1) as pool:
        joining = pool.submit(follow_engines, other)
        time.sleep(0.6)  # it calls before anybody answers
        began = time.monotonic()
        tell_nodes(config, {1}, ServerEnd(cause, len(cause)))
        assert time.monotonic() - began < 4.0
        with pytest.raises(ServerHasEnded) as ended:
            joining.result(5)
    assert ended.value.end == ServerEnd(cause, len(cause))


def test_a_node_says_how_its_node_rank_states(folder: Path) -> None:
    config = make_config(folder, "--tp-size", "2", "--nnodes", "2", "--node-rank", "1")
    life, told, engine = node_life(config)
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        links: Any = life._links
        links[1] = SimpleNamespace(pid=sleeper.pid)
        life._obey(engine, LookAtRanks())
        assert told.wait(5) == NodeRankStates([], [1], waits=False)
        sleeper.send_signal(signal.SIGSTOP)
        wait_until(lambda: is_stopped(sleeper.pid))
        life._obey(engine, LookAtRanks())
        assert told.wait(5) == NodeRankStates([1], [], waits=False)
        sleeper.kill()
    told.close()


def node_life(config: Config) -> tuple[NodeLife, MessageSocket[FromNode], JoinedEngine]:
    """Of a node whose rank 1 is to be played, the engine's end, and the engine as it knows it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        theirs = socket.create_connection(server.getsockname())
        ours, _ = server.accept()
    engine = MessageSocket(ours, msgspec.msgpack.Decoder(FromNode))
    control = MessageSocket(theirs, msgspec.msgpack.Decoder(ToNode))
    setup = NodeSetup(config=encode(config), session=1)
    life = NodeLife(config, [(control, setup)], threading.Event())
    return life, engine, JoinedEngine(0, control, [1], open_memory("plans"))


class LinkThatFails(RankProcess):
    def __init__(self, error: Exception) -> None:
        self._error = error

    def arrive(self) -> None:
        raise self._error

    def death(self, wait: float = 0.0) -> None:
        return None


@pytest.mark.parametrize(
    "error", [subprocess.TimeoutExpired("rank", 5.0), PermissionError(1, "pidfd_open")]
)
def test_whatever_a_rank_cannot_be_followed_for_is_told(folder: Path, error: Exception) -> None:
    config = make_config(folder, "--tp-size", "2", "--nnodes", "2", "--node-rank", "1")
    life, told, engine = node_life(config)
    life._follow(engine, LinkThatFails(error), 1)
    died = told.wait(5)
    assert isinstance(died, NodeRankDied)
    assert type(error).__name__ in died.reason
    told.close()


def test_a_rank_that_is_behind_does_not_hold_up_its_node(folder: Path) -> None:
    """Plans of more than a ring come while it computes: its node beats, and hears signals."""
    config = make_config(folder, "--tp-size", "2", "--nnodes", "2", "--node-rank", "1")
    life, told, engine = node_life(config)
    plans = [StepPlan(number=number, rows=list(range(RING_BYTES // 4))) for number in range(3)]
    with ThreadPoolExecutor(1) as pool:
        obeyed = [pool.submit(life._obey, engine, plan) for plan in plans]
        obeyed[-1].result(5)
        reader = BroadcastReader(engine.broadcast.plans, 1, 0)
        decode = msgspec.msgpack.Decoder(StepPlan).decode
        assert [decode(reader.receive(5) or b"") for _ in plans] == plans
    engine.close()
    told.close()


def knock(config: Config, node: int, engine: int = 0) -> MessageSocket[ToNode]:
    """Of somebody who has the key, and has not said what it is."""
    host, port = str(config.parallel.dist_init_addr).split(":")
    sock = call((host, int(port)), cluster_key(config), Intent(0, engine, node))
    return MessageSocket(sock, msgspec.msgpack.Decoder(ToNode))


def is_closed(control: MessageSocket[ToNode], seconds: float) -> bool:
    try:
        control.wait(seconds)
    except SocketClosed:
        return True
    except TimeoutError:
        return False
    raise AssertionError("a message")


def test_who_has_the_key_does_not_take_all_places(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever says nothing, or says it a byte at a time, is sent away, and others are let in."""
    monkeypatch.setattr(nodes, "MOST_GUESTS", 3)
    monkeypatch.setattr(nodes, "HELLO_SECONDS", 1.0)
    config = make_config(folder, "--tp-size", "2", "--nnodes", "2")
    other_nodes(config)
    slow = [knock(config, 1) for _ in range(6)]
    deadline = time.monotonic() + 5.0
    while not all(is_closed(one, 0.1) for one in slow) and time.monotonic() < deadline:
        pass
    assert all(is_closed(one, 0.1) for one in slow)
    time.sleep(0.2)  # a place is free a moment behind the end of who had it
    join(config, 1).close()


@pytest.mark.parametrize(
    ("owner", "name", "error"),
    [
        (nodes, "notice_silence", OSError("no room")),
        (threading.Thread, "start", RuntimeError("can't start new thread")),
    ],
)
def test_a_place_is_free_again_whatever_went_wrong(
    folder: Path, monkeypatch: pytest.MonkeyPatch, owner: object, name: str, error: Exception
) -> None:
    """More calls fail than there are places, and nodes join."""
    monkeypatch.setattr(nodes, "MOST_GUESTS", 2)
    config = make_config(folder, "--tp-size", "2", "--nnodes", "2")
    other_nodes(config)

    def fail(*_: object) -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(owner, name, fail)
        for _ in range(4):
            one = knock(config, 1)
            assert is_closed(one, 10.0)
            one.close()
    join(config, 1).close()


def test_the_first_engine_alone_looks_at_clocks(folder: Path) -> None:
    """All are of one machine. Another one may read what a node said when it came in minutes ago."""
    config = make_config(folder, *("--tp-size", "2", "--nnodes", "2"), *TWO_ENGINES)
    link = new_engine_link(2, nodes=True)
    for index in range(2):
        other_nodes(config, EnginePlace(index=index, engines=2, link=link))
    late = msgspec.structs.replace(hello(config), clock=time.time() - 40)
    calls = [knock(config, 1, engine) for engine in range(2)]
    for one in calls:
        one.send(late)
    refusal = calls[0].wait(10.0)
    assert isinstance(refusal, NodeRefusal) and "clock" in refusal.reasons[0]
    assert isinstance(calls[1].wait(10.0), NodeSetup)
    for one in calls:
        one.close()


def test_a_first_word_has_a_limit(folder: Path) -> None:
    config = make_config(folder, "--tp-size", "2", "--nnodes", "2")
    other_nodes(config)
    loud = knock(config, 1)
    loud.send(NodeHello(**{**msgspec.structs.asdict(hello(config)), "version": "x" * (2 << 20)}))
    assert is_closed(loud, 10.0)
    join(config, 1).close()


def test_a_refusal_is_logged_in_a_line_of_some_length(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = make_config(folder, "--tp-size", "2", "--nnodes", "2")
    other_nodes(config)
    loud = knock(config, 1)
    loud.send(NodeHello(**{**msgspec.structs.asdict(hello(config)), "version": "x" * 100_000}))
    assert isinstance(loud.wait(10.0), NodeRefusal)
    refused = [record for record in caplog.records if "refused" in record.getMessage()]
    assert refused and all(len(record.getMessage()) < 3000 for record in refused)


def test_a_node_of_another_version_is_told(folder: Path) -> None:
    """Its first word may have other fields."""
    config = make_config(folder, "--tp-size", "2", "--nnodes", "2", "--dist-timeout", "1")
    gate = other_nodes(config)
    old = knock(config, 1)
    old.send({"type": "node_hello", "version": "0.0.1"})
    refusal = old.wait(10.0)
    assert isinstance(refusal, NodeRefusal) and __version__ in refusal.reasons[0]
    with pytest.raises(CannotStart, match="version"):
        gate.gather(lambda stage, part: None)
