"""The other nodes of an engine: how they join it."""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from vivace.config.exposure import loopback
from vivace.config.nodes import COPY_THE_KEY, address
from vivace.config.parallelism import requested_sizes
from vivace.config.serialize import encode
from vivace.doctor.port import port_owner
from vivace.engine.process_group import find_cause
from vivace.errors import CannotStart, NotJoined, say
from vivace.launch.engine_place import AddressBook, find_entrance
from vivace.launch.handshake import Door, Guest, notice_silence, send_at_once
from vivace.launch.node_hello import (
    cluster_key,
    describe_share,
    differences,
    hello,
    node_ranks,
    numbered,
    socket_setup,
    without_keys,
)
from vivace.launch.node_link import NodeLink, RemoteRank, Tell
from vivace.launch.node_messages import (
    Address,
    FromNode,
    LookAtRanks,
    NodeHello,
    NodeRefusal,
    NodeServes,
    NodeSetup,
)
from vivace.launch.node_sockets import listening
from vivace.protocol.engine_link import NodesLink
from vivace.protocol.message_socket import LARGEST_MESSAGE, MessageSocket, SocketClosed
from vivace.protocol.ranks import NodeSocketSetup
from vivace.protocol.step import StepPlan
from vivace.protocol.workers import WorkerCommand
from vivace.version import __version__

if TYPE_CHECKING:
    from vivace.checkpoint.weights import ReportProgress
    from vivace.config.config import Config
    from vivace.platforms.rendezvous import RankMemory

HELLO_SECONDS = 10.0
LARGEST_HELLO = 1 << 20
"""bytes"""
MOST_GUESTS = 64
"""who have shown the key and not yet said what they are, at once"""
OTHER_VERSION = (
    f"node 0 does not understand what it says of itself: is it another version of vivace than "
    f"{__version__}?"
)
LONGEST_REASON = 2000
"""characters that are logged of why a node is refused"""

log = logging.getLogger(__name__)


class NodeGate:
    """Where nodes join an engine, while it lives. All do, also those that have none of its ranks:
    they hear how it ends. Of engines that share layers the first one speaks for all."""

    def __init__(
        self,
        config: Config,
        index: int,
        link: NodesLink,
        open_door: Callable[[], Door],
        tell: Tell,
    ) -> None:
        self._config = config
        self._index = index
        self._tell = tell
        self._session = session = link.session
        self._members = requested_sizes(config).engine_members(index)
        self._nodes = node_ranks(config)
        self._book = AddressBook(link.addresses, sum(map(len, self._nodes)))
        self._hello = hello(config)
        self._setup = NodeSetup(config=encode(without_keys(config)), session=session)
        self._entrance = find_entrance(index, link, open_door)
        self._level = logging.DEBUG if index else logging.INFO
        self._links: dict[int, NodeLink] = {}
        self._changed = threading.Condition()
        self._tried: dict[int, str] = {}
        self._seats = threading.Semaphore(MOST_GUESTS)
        threading.Thread(target=self._run, name="nodes", daemon=True).start()

    def ranks_here(self, ranks: Sequence[int]) -> Sequence[int]:
        return [rank for rank in ranks if rank in self._nodes[0]]

    def sockets(self, rank: int) -> NodeSocketSetup:
        host, _ = address(str(self._config.parallel.dist_init_addr))
        return socket_setup(self._config, rank, host, self._session)

    def gather(self, report: ReportProgress) -> Sequence[RemoteRank]:
        return [rank for link in self._wait_for_all(report) for rank in link.ranks]

    def meet(self, found: Mapping[int, Address], look: Callable[[], None]) -> Sequence[Address]:
        self._book.write(found)
        return self._book.read(look)

    def serve(self, memory: RankMemory) -> None:
        for link in self._links.values():
            link.broken = lambda: memory.abandoned
            link.send(NodeServes())

    def send(self, message: StepPlan | WorkerCommand) -> None:
        for link in self._links.values():
            if link.ranks:
                link.send(message)

    def ask(self) -> None:
        for link in list(self._links.values()):
            link.send(LookAtRanks())

    def gone(self) -> str:
        return ", ".join(link.gone for link in list(self._links.values()) if link.gone)

    def close(self, cause: str = "") -> None:
        for link in list(self._links.values()):
            link.close(cause)

    def _wait_for_all(self, report: ReportProgress) -> list[NodeLink]:
        timeout, others = self._config.parallel.dist_timeout, range(1, len(self._nodes))
        deadline = time.monotonic() + timeout
        log.log(
            self._level,
            "%s; it waits at %s for %s",
            describe_share(self._nodes, 0),
            self._config.parallel.dist_init_addr,
            numbered("node", others),
        )
        while True:
            with self._changed:
                self._drop_lost()
                missing = [node for node in others if node not in self._links]
                if not missing:
                    return [self._links[node] for node in others]
                report(
                    f"Waiting for {numbered('node', missing)}", len(self._links) / len(self._nodes)
                )
                self._changed.wait(min(1.0, max(0.0, deadline - time.monotonic())))
            if time.monotonic() >= deadline:
                raise NotJoined(self._why_missing(missing, timeout))

    def _drop_lost(self) -> None:
        """Of nodes that had joined, while others are awaited: they hear why, and join again."""
        for node in [node for node, link in self._links.items() if link.lost]:
            link = self._links.pop(node)
            cause = find_cause(link.ranks) or f"node {node} ({link.host}) has gone"
            log.warning("Node %d is to join again: %s", node, cause)
            self._tried[node] = f"had joined; then {cause}"
            link.close(cause)

    def _why_missing(self, missing: list[int], timeout: float) -> str:
        refused, strangers = list(self._tried.items()), list(self._entrance.strangers.items())
        tried = [f"node {node}: {why}" for node, why in refused if node in missing]
        tried += [f"{host} {why}" for host, why in strangers]
        return (
            f"{numbered('node', missing)} did not join within {timeout:g} s (--dist-timeout); "
            f"{'; '.join(tried) or 'nobody has called'}. Start them with this server's command and "
            "their own --node-rank, and see that they reach --dist-init-addr"
        )

    def _run(self) -> None:
        while True:
            for guest in self._entrance.wait(1.0):
                if self._seats.acquire(blocking=False):
                    self._seat(guest)
                else:
                    guest.sock.close()

    def _seat(self, guest: Guest) -> None:
        """A thread hears it. Where that cannot be now, it finds the end, and calls again."""
        try:
            threading.Thread(target=self._receive, args=(guest,), daemon=True).start()
        except RuntimeError as error:
            self._seats.release()
            self._send_away(guest, error)

    def _receive(self, guest: Guest) -> None:
        """In that thread. Its seat is free again before it can find the end, and call once more."""
        try:
            self._hear(guest)
        except Exception as error:
            self._seats.release()
            self._send_away(guest, error)
        else:
            self._seats.release()

    def _send_away(self, guest: Guest, error: Exception) -> None:
        log.error("Node %d (%s) is not heard: %s", guest.intent.number, guest.host, say(error))
        guest.sock.close()

    def _hear(self, guest: Guest) -> None:
        """What it is. It has so many seconds for that, however it says it."""
        notice_silence(guest.sock)
        send_at_once(guest.sock)
        control = MessageSocket(guest.sock, msgspec.msgpack.Decoder(FromNode), LARGEST_HELLO)
        late = threading.Timer(HELLO_SECONDS, control.shutdown)
        late.start()
        try:
            self._admit(guest, control, control.wait())
        except SocketClosed:
            control.close()
        except msgspec.MsgspecError:
            self._refuse(guest, control, [OTHER_VERSION])
        finally:
            late.cancel()

    def _admit(self, guest: Guest, control: MessageSocket[FromNode], hello: FromNode) -> None:
        node = guest.intent.number
        control.largest = LARGEST_MESSAGE
        with self._changed:
            known = self._links.get(node)
            if known is not None and known.lost:  # this engine is about to end: ask the next one
                control.close()
                return
            reasons = self._objections(node, hello, known)
            if not reasons:
                ranks = [rank for rank in self._nodes[node] if rank in self._members]
                self._links[node] = NodeLink(
                    node, guest, control, ranks, len(self._nodes[0]), self._tell
                )
                control.send(self._setup)
                log.log(self._level, "Node %d has joined from %s", node, guest.host)
            self._changed.notify_all()
        if reasons:
            self._refuse(guest, control, reasons)

    def _refuse(self, guest: Guest, control: MessageSocket[FromNode], reasons: list[str]) -> None:
        node, text = guest.intent.number, "; ".join(reasons)[:LONGEST_REASON]
        with self._changed:
            self._tried[node] = f"refused ({guest.host}): {text}"
            self._changed.notify_all()
        log.warning("Node %d (%s) is refused: %s", node, guest.host, text)
        control.send(NodeRefusal(reasons))
        control.close()

    def _objections(self, node: int, hello: FromNode, known: NodeLink | None) -> list[str]:
        if not isinstance(hello, NodeHello):
            return ["it does not say what it is"]
        if not 1 <= node < len(self._nodes):
            return [f"--node-rank {node}: others than node 0 are 1 to {len(self._nodes) - 1}"]
        if known is not None:
            return [
                f"node {node} has joined already, from {known.host}: two nodes have --node-rank "
                f"{node}"
            ]
        # Another engine may read what a node said a while ago; all have the first one's clock.
        return differences(node, hello, self._hello, None if self._index else time.time())


def open_door(config: Config) -> Door:
    """Raises CannotStart."""
    where = str(config.parallel.dist_init_addr)
    host, port = address(where)
    try:
        listener = listening(host, port)
    except OSError as error:
        raise CannotStart(
            f"--dist-init-addr {where}: node 0 cannot listen there: {why_no_listening(error, port)}"
        ) from None
    check_reachable(host, listener.getsockname()[0])
    return Door(listener, cluster_key(config), tell_stranger)


def check_reachable(host: str, found: str) -> None:
    """A name in --dist-init-addr may be this machine's own for `found`. Raises CannotStart."""
    if found == host:
        return
    if loopback(found) and not loopback(host):
        raise CannotStart(
            f"--dist-init-addr: {host} is {found} on this machine (/etc/hosts?), which no other "
            "one reaches; give the address by which the other nodes reach node 0"
        )
    log.info("Node 0 listens at %s, which is %s here", host, found)


def why_no_listening(error: OSError, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        owner = port_owner(port)
        return f"the port is in use{f' by {owner}' if owner else ''}; choose another, on all nodes"
    if error.errno == errno.EADDRNOTAVAIL:
        return "it is no address of this machine, as node 0's must be"
    return error.strerror or str(error)


def tell_stranger(host: str, why: str) -> None:
    how = f"; {COPY_THE_KEY}" if "key" in why else ""
    log.warning("Somebody at %s, who wants to join, %s%s", host, why, how)
