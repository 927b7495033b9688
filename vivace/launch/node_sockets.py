"""Connections of a rank to ranks on other nodes: each rank listens, and for each group that is on
several nodes the first rank on a node calls the first ones of the nodes before it."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from vivace.errors import CannotStart, RankLost, why_no_answer
from vivace.launch.handshake import Door, Intent, NoHandshake, WrongKey, call, send_at_once
from vivace.launch.node_messages import Address
from vivace.launch.silent_peers import PeerWatch
from vivace.platforms.rendezvous import ONE_NODE, NodeSocket, OneNode, RankMemory
from vivace.protocol.ranks import NodeSocketSetup

LOOK_SECONDS = 0.2
"""between looking whether who is awaited has died"""


class NoSockets:
    """Of a rank whose others are all on this node."""

    address = "", 0

    def meet(self, addresses: Sequence[Address], memory: RankMemory) -> OneNode:
        return ONE_NODE

    def close(self) -> None: ...


class RankSockets:
    """`NodeSockets` of one rank."""

    def __init__(self, setup: NodeSocketSetup, rank: int) -> None:
        self._setup = setup
        self._rank = rank
        self._listener = listen(setup.host, setup.port)
        self._door = Door(self._listener, setup.key)
        self._addresses: Sequence[Address] = ()
        self._memory: RankMemory | None = None
        self._early: dict[tuple[int, int], socket.socket] = {}
        """connections that nobody has asked for yet, by group and rank"""
        self._open: list[socket.socket] = []
        self._watch = PeerWatch()

    @property
    def address(self) -> Address:
        """where it listens"""
        host, port = self._listener.getsockname()[:2]
        return host, port

    def meet(self, addresses: Sequence[Address], memory: RankMemory) -> RankSockets:
        """`addresses`: of every rank; `memory`: it says whether one has died, so that nobody comes
        any more."""
        self._addresses, self._memory = addresses, memory
        return self

    def open(self, group: int, ranks: Sequence[int]) -> list[NodeSocket] | None:
        nodes = [[rank for rank in ranks if rank in node] for node in self._setup.nodes]
        parts = [part for part in nodes if part]
        if len(parts) == 1:
            return None
        mine = next(part for part in parts if self._rank in part)
        if mine[0] != self._rank:
            return []
        return [
            NodeSocket(
                socket=self._connect(group, part[0]).fileno(),
                first=ranks.index(part[0]),
                count=len(part),
            )
            for part in parts
            if part is not mine
        ]

    def close(self) -> None:
        """Nobody else is expected; what is open stays so."""
        self._door.close()
        for sock in self._early.values():
            sock.close()

    def _connect(self, group: int, rank: int) -> socket.socket:
        """To a rank before this one; one behind it calls us."""
        sock = self._call(group, rank) if rank < self._rank else self._await(group, rank)
        send_at_once(sock)
        self._watch.add(sock, f"rank {rank}")
        sock.setblocking(False)
        self._open.append(sock)
        return sock

    def _call(self, group: int, rank: int) -> socket.socket:
        """Again, while it has not come to that group yet."""
        address = self._addresses[rank]
        intent = Intent(self._setup.session, group, self._rank)
        while True:
            try:
                return call(address, self._setup.key, intent)
            except NoHandshake:
                self._look()
            except (OSError, OverflowError, ValueError, WrongKey) as error:  # also no address
                why = why_no_answer(error)
                break
        self._look()
        raise RankLost(
            f"rank {rank} cannot be reached at {address[0]} port {address[1]}: {why}; ranks of "
            "other nodes must reach it (--nccl-port says which ports are taken)"
        )

    def _await(self, group: int, rank: int) -> socket.socket:
        while True:
            sock = self._early.pop((group, rank), None)
            if sock is not None and is_open(sock):
                return sock
            for guest in self._door.wait(LOOK_SECONDS):
                if guest.intent.session == self._setup.session:
                    self._early[guest.intent.group, guest.intent.number] = guest.sock
                else:
                    guest.sock.close()
            self._look()

    def _look(self) -> None:
        if self._memory is not None and self._memory.abandoned:
            raise RankLost("other ranks do not answer any more")


def is_open(sock: socket.socket) -> bool:
    """Who called may have given up before it was let in, and calls again."""
    try:
        return sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def open_sockets(setup: NodeSocketSetup | None, rank: int) -> RankSockets | NoSockets:
    """`setup` None: there is one node. Raises CannotStart."""
    return NoSockets() if setup is None else RankSockets(setup, rank)


def listen(host: str, port: int) -> socket.socket:
    """For ranks of other nodes. Raises CannotStart."""
    try:
        return listening(host, port)
    except OSError as error:
        raise CannotStart(
            f"the ranks of this node cannot listen on {host} port {port}: "
            f"{error.strerror or error}; choose other ports with --nccl-port"
        ) from None


def listening(host: str, port: int) -> socket.socket:
    """Raises OSError."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen()
    except OSError:
        sock.close()
        raise
    return sock
