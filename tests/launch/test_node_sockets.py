"""Connections between ranks, whoever calls and gives up."""

from __future__ import annotations

import os
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from vivace.errors import RankLost
from vivace.launch.handshake import Intent, call
from vivace.launch.node_sockets import RankSockets
from vivace.platforms.rendezvous import RankMemory
from vivace.protocol.ranks import NodeSocketSetup
from vivace.system_calls import open_memory

SETUP = NodeSocketSetup(key=b"k" * 32, session=5, host="127.0.0.1", port=0, nodes=[[0], [1]])


def test_who_gave_up_before_it_was_awaited_is_not_used() -> None:
    sockets = RankSockets(SETUP, 0)
    sockets.meet([sockets.address, ("", 0)], RankMemory(open_memory("ranks")))

    def caller(group: int) -> socket.socket:
        return call(sockets.address, SETUP.key, Intent(SETUP.session, group, 1))

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(sockets.open, 1, [0, 1])
        caller(2).close()  # let in, while another group is awaited
        one = caller(1)
        assert first.result(10)
        second = pool.submit(sockets.open, 2, [0, 1])
        two = caller(2)
        (found,) = second.result(10) or []
    with one, two, socket.socket(fileno=os.dup(found.socket)) as ours:
        two.sendall(b"here")
        ours.settimeout(5)
        assert ours.recv(4) == b"here"


@pytest.mark.parametrize("address", [("127.0.0.1", 70000), ("127.0.0.1\0", 80), ("a" * 70, 80)])
def test_what_is_no_address_is_named(address: tuple[str, int]) -> None:
    """A node says where its ranks are."""
    sockets = RankSockets(SETUP, 1)
    sockets.meet([address, sockets.address], RankMemory(open_memory("ranks")))
    with pytest.raises(RankLost, match="reached"):
        sockets.open(1, [0, 1])
