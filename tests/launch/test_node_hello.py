"""What nodes say of themselves and to each other, whatever comes over the wire."""

from __future__ import annotations

import mmap
import socket
import time
from collections.abc import Iterator

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from vivace.errors import CannotStart, RankLost
from vivace.launch import node_link
from vivace.launch.handshake import Guest, Intent
from vivace.launch.node_hello import differences
from vivace.launch.node_link import NodeLink
from vivace.launch.node_messages import (
    FromNode,
    JoinNodes,
    NodeBeat,
    NodeEnd,
    NodeHello,
    NodeLeaves,
    NodeRankDied,
    NodeRankHere,
    NodeRankSays,
    ToNode,
)
from vivace.launch.nodes import check_reachable
from vivace.platforms.cpu.library import LIBRARY
from vivace.platforms.cpu.native import Kernels
from vivace.platforms.platform import describe_arithmetic, detect
from vivace.protocol.message_socket import LARGEST_MESSAGE, LENGTH, MessageSocket, SocketClosed
from vivace.protocol.messages import Capacity
from vivace.protocol.ranks import RankReady, StepDone
from vivace.protocol.step import StepPlan

ARITHMETIC = {"instruction set": "avx512vnni", "torch": "2.13.0"}
OURS = NodeHello(
    version="1.0",
    asked={"dtype": '"auto"'},
    files={"config.json": "a"},
    arithmetic=ARITHMETIC,
    clock=0.0,
)


def said(**changes: object) -> list[str]:
    now = time.time()
    hello = replace(OURS, **{"clock": now, **changes})
    return differences(1, hello, replace(OURS, clock=now), now)


def test_all_differences_are_told_at_once() -> None:
    assert said() == []
    assert said(version="1.1") == ["vivace 1.1 on node 1, 1.0 on node 0"]
    assert said(clock=time.time() - 29) == []
    (slow,) = said(clock=time.time() - 100)
    assert "100 s behind" in slow
    (fast,) = said(clock=time.time() + 100)
    assert "100 s ahead" in fast
    flags, files = said(
        asked={"dtype": '"float32"'}, files={"config.json": "a", "model.safetensors": "b"}
    )
    assert flags == '--dtype: "float32" on node 1, "auto" on node 0'
    assert "model.safetensors differ" in files


def test_nodes_that_compute_other_numbers_do_not_join() -> None:
    """Ranks that choose experts by different bits would compute some twice and some never."""
    (other,) = said(arithmetic={**ARITHMETIC, "instruction set": "avx2"})
    assert other.startswith("its instruction set is avx2, node 0's avx512vnni")
    assert len(said(arithmetic={})) == len(ARITHMETIC)


@pytest.mark.skipif(not LIBRARY.is_file(), reason="the native kernels were not built")
def test_what_is_compared_is_what_computes() -> None:
    found = describe_arithmetic(detect("cpu"))
    assert found["instruction set"] == Kernels(1).isa
    assert torch.__version__.partition("+")[0] == found["torch"].partition("+")[0]
    assert found["page of memory"] == f"{mmap.PAGESIZE} bytes"


CAPACITY = Capacity(pages=4, page_size=16, rows=2, context=64, vocabulary=100)


class Pair:
    """A node's link, and the node, played here."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            theirs = socket.create_connection(server.getsockname())
            ours, _ = server.accept()
        self.wire = theirs
        self.node = MessageSocket(theirs, msgspec.msgpack.Decoder(ToNode))
        control = MessageSocket(ours, msgspec.msgpack.Decoder(FromNode))
        guest = Guest(ours, Intent(0, 0, 1), "10.0.0.2")
        self.link = NodeLink(1, guest, control, [2, 3], 2, lambda news: None)


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.node.close()


def test_ranks_of_a_node_are_links_like_others(pair: Pair) -> None:
    first, second = pair.link.ranks
    for rank in (3, 2):
        pair.node.send(NodeRankHere(rank, 70 + rank, ("10.0.0.2", 4000 + rank)))
    for link in (first, second):
        link.arrive()
    assert [link.address[1] for link in (first, second)] == [4002, 4003]
    assert "process 73" in second.name
    addresses = [("0.0.0.0", 1), ("0.0.0.0", 2), first.address, second.address]
    for link in (first, second):
        link.begin(addresses)
    (join,) = [pair.node.wait(5)]
    assert isinstance(join, JoinNodes)
    assert join.addresses[0] == ("127.0.0.1", 1)  # as the node reaches it
    assert join.addresses[3] == ("10.0.0.2", 4003)
    for rank in (2, 3):
        pair.node.send(NodeRankSays(rank, RankReady(CAPACITY)))
        pair.node.send(NodeRankSays(rank, StepDone(7)))
    for link in (first, second):
        link.expect(RankReady)
        assert link.wait() == StepDone(7)
    pair.link.send(StepPlan(number=8))
    assert isinstance(pair.node.wait(5), StepPlan)  # once for both
    pair.link.close("rank 1 has gone")
    pair.link.close("")
    assert pair.node.wait(5) == NodeEnd("rank 1 has gone")


def test_deaths_come_with_their_cause(pair: Pair) -> None:
    first, second = pair.link.ranks
    rung: list[int] = []
    first.wake_with(lambda: rung.append(1))
    pair.node.send(NodeRankDied(2, "killed by SIGKILL", reported=False, noticed=False))
    with pytest.raises(RankLost, match="SIGKILL"):
        first.wait()
    assert rung == [1]
    assert second.death() is None
    pair.node.send(NodeLeaves("SIGTERM"))
    death = second.death(5)
    assert death is not None
    assert death.text == "node 1 (10.0.0.2): was stopped: SIGTERM"
    second.wake_with(lambda: rung.append(2))  # too late, so at once
    assert rung == [1, 2]
    assert first.death() != death  # what came first counts


def test_ranks_that_are_stopped_are_named(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    pair.node.send(NodeRankHere(2, 72, ("10.0.0.2", 4002)))
    pair.link.ranks[0].arrive()
    for stopped in ([], [2], [2], [], [3, 2]):
        pair.node.send(NodeBeat(stopped))
    pair.node.send(NodeLeaves("SIGTERM"))
    assert pair.link.ranks[0].death(5)
    assert caplog.text.count("rank 2 (node 1, process 72) is stopped") == 2
    assert caplog.text.count("rank 3 (node 1) is stopped") == 1


def test_results_behind_a_broken_connection_do_not_count(pair: Pair) -> None:
    """The ranks here have stopped waiting, and computed nonsense."""
    pair.link.broken = lambda: True
    pair.node.send(NodeRankSays(2, StepDone(1)))
    with pytest.raises(RankLost, match="whole"):
        pair.link.ranks[0].wait()


def test_a_node_that_says_nothing_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_link, "BEAT_SECONDS", 0.1)
    pair = Pair()
    for _ in range(8):
        pair.node.send(NodeBeat([]))
        time.sleep(0.1)
    assert not pair.link.lost
    death = pair.link.ranks[0].death(5)
    assert death is not None
    assert "nothing" in death.text
    pair.node.close()


def test_a_node_that_cannot_be_read_is_lost(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(seconds: float) -> FromNode:
        raise MemoryError

    monkeypatch.setattr(pair.link._control, "wait", fail)
    pair.node.send(NodeBeat([]))
    death = pair.link.ranks[0].death(5)
    assert death is not None and "MemoryError" in death.text
    assert "Node 1" in caplog.text


def test_a_message_that_is_too_large_is_why_a_node_is_lost(pair: Pair) -> None:
    pair.wire.sendall(LENGTH.pack(LARGEST_MESSAGE + 1))
    death = pair.link.ranks[0].death(5)
    assert death is not None and f"{LARGEST_MESSAGE + 1:,} bytes" in death.text


@settings(max_examples=60, deadline=None)
@given(data=st.binary(max_size=300), framed=st.booleans())
def test_whatever_comes_ends_the_node_and_nothing_else(data: bytes, framed: bool) -> None:
    pair = Pair()
    pair.wire.sendall((len(data).to_bytes(4, "little") if framed else b"") + data)
    pair.wire.shutdown(socket.SHUT_WR)
    death = pair.link.ranks[1].death(5)
    assert death is not None
    assert not death.reported
    pair.node.close()


@settings(max_examples=60, deadline=None)
@given(data=st.binary(max_size=300), cuts=st.lists(st.integers(0, 300), max_size=5))
def test_frames_are_read_however_they_are_cut(data: bytes, cuts: list[int]) -> None:
    """Of arbitrary bytes: messages, and then an end of a known kind."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        reader = MessageSocket(ours, msgspec.msgpack.Decoder(FromNode))
        for begin, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(data)], strict=True):
            theirs.sendall(data[begin:end])
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises((SocketClosed, msgspec.MsgspecError)):
            while True:
                reader.wait(5)


def test_a_name_that_only_this_machine_knows_is_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Debian and Ubuntu give a machine's own name 127.0.1.1 in /etc/hosts."""
    with pytest.raises(CannotStart, match="hosts"):
        check_reachable("head.cluster", "127.0.1.1")
    for host, found in (("localhost", "::1"), ("127.0.0.2", "127.0.0.2"), ("10.0.0.1", "10.0.0.1")):
        check_reachable(host, found)
    caplog.set_level("INFO")
    check_reachable("head.cluster", "10.0.0.1")
    assert "which is 10.0.0.1" in caplog.text
