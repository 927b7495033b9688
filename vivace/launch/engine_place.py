"""An engine among those that share layers with it: what they have together.

Where their ranks are on several nodes, the first engine's door is that of all of them
(--dist-init-addr): who has called for another engine is passed on to that. What a rank's address is
only its own engine hears, and tells the others in a file.
"""

from __future__ import annotations

import mmap
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from time import sleep
from typing import Protocol

import msgspec

from vivace.errors import RankLost
from vivace.launch.handshake import INTENT, Door, Guest, Intent
from vivace.launch.node_messages import Address
from vivace.protocol.engine_link import EngineLink, NodesLink
from vivace.protocol.shared_memory import Fence, words

ADDRESS_BYTES = 512
"""of a rank in the file: their number, then as many; a name has at most 255 letters"""
LOOK_SECONDS = 0.02
"""between looking whether all addresses are there"""
HOST_BYTES = 256


@dataclass(frozen=True, kw_only=True)
class EnginePlace:
    """Of an engine among those that share layers with it; files without names, which all their
    ranks inherit."""

    index: int
    engines: int
    link: EngineLink


class Entrance(Protocol):
    """Where nodes come in that have proved that they have the key."""

    @property
    def strangers(self) -> Mapping[str, str]:
        """Host -> why somebody from there was sent away"""
        ...

    def wait(self, timeout: float) -> list[Guest]: ...


class CommonDoor:
    """The first engine's. `engines`: sockets to the others, by their number."""

    def __init__(self, door: Door, engines: Mapping[int, socket.socket]) -> None:
        self._door = door
        self._engines = engines
        for end in engines.values():
            end.setblocking(False)  # send_fds takes flags and does nothing with them

    @property
    def strangers(self) -> Mapping[str, str]:
        return self._door.strangers

    def wait(self, timeout: float) -> list[Guest]:
        mine: list[Guest] = []
        for guest in self._door.wait(timeout):
            if guest.intent.group == 0:
                mine.append(guest)
            else:
                self._pass_on(guest)
        return mine

    def _pass_on(self, guest: Guest) -> None:
        """Who wants an engine that there is not, or that takes nobody, finds the end of it."""
        intent, engine = guest.intent, self._engines.get(guest.intent.group)
        data = INTENT.pack(intent.session, intent.group, intent.number) + guest.host.encode()
        with guest.sock, suppress(OSError):
            if engine is not None:
                socket.send_fds(engine, [data], [guest.sock.fileno()])


class PassedOn:
    """Of another engine: who has come in at the first one's door."""

    strangers: Mapping[str, str] = {}

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def wait(self, timeout: float) -> list[Guest]:
        self._sock.settimeout(timeout)
        try:
            data, found, _, _ = socket.recv_fds(self._sock, INTENT.size + HOST_BYTES, 1)
        except TimeoutError:
            return []
        intent = Intent(*INTENT.unpack_from(data))
        host = data[INTENT.size :].decode()
        return [Guest(socket.socket(fileno=number), intent, host) for number in found]


def find_entrance(index: int, nodes: NodesLink, open_door: Callable[[], Door]) -> Entrance:
    """Of engine `index`."""
    if index:
        return PassedOn(socket.socket(fileno=nodes.doors[index - 1][1]))
    ends = enumerate((first for first, _ in nodes.doors), 1)
    return CommonDoor(open_door(), {engine: socket.socket(fileno=end) for engine, end in ends})


class AddressBook:
    """Where each of `ranks` ranks expects those of other nodes. All engines write into it."""

    def __init__(self, descriptor: int, ranks: int) -> None:
        size = ADDRESS_BYTES * ranks
        os.posix_fallocate(descriptor, 0, size)  # by each of them: it never cuts
        self._bytes = memoryview(mmap.mmap(descriptor, size))
        self._words = words(self._bytes)
        self._fence = Fence()
        self._ranks = ranks

    def write(self, addresses: Mapping[int, Address]) -> None:
        """Those of an engine's ranks."""
        for rank, address in addresses.items():
            data, at = msgspec.msgpack.encode(address), ADDRESS_BYTES * rank
            if len(data) > ADDRESS_BYTES - 8:
                raise RankLost(f"rank {rank} has an address of {len(data)} bytes")
            self._bytes[at + 8 : at + 8 + len(data)] = data
            self._fence()
            self._words[at // 8] = len(data)

    def read(self, look: Callable[[], None]) -> list[Address]:
        """Of every rank, once they are there. `look` is called meanwhile; it raises what ends the
        start."""
        while not all(self._length(rank) for rank in range(self._ranks)):
            look()
            sleep(LOOK_SECONDS)
        self._fence()
        return [self._read(rank) for rank in range(self._ranks)]

    def _length(self, rank: int) -> int:
        return self._words[ADDRESS_BYTES * rank // 8]

    def _read(self, rank: int) -> Address:
        at = ADDRESS_BYTES * rank + 8
        data = bytes(self._bytes[at : at + self._length(rank)])
        return msgspec.msgpack.decode(data, type=Address)
