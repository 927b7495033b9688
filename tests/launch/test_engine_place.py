"""What engines that share layers have together, where their ranks are on several nodes."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping

import pytest

from vivace.errors import RankLost
from vivace.launch import engine_place
from vivace.launch.engine_place import AddressBook, CommonDoor, PassedOn, find_entrance
from vivace.launch.handshake import Guest, Intent
from vivace.protocol.engine_link import NodesLink, new_nodes_link
from vivace.system_calls import open_memory

ADDRESSES = {0: ("10.0.0.1", 4000), 1: ("10.0.0.1", 4001)}, {2: ("fd00::2", 1), 3: ("n" * 255, 2)}


@pytest.fixture
def books(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[AddressBook]]:
    """Those of two engines, each with its own view of the file."""
    monkeypatch.setattr(engine_place, "LOOK_SECONDS", 0.0)
    descriptor = open_memory("addresses")
    yield [AddressBook(descriptor, 4) for _ in range(2)]
    os.close(descriptor)


def test_every_engine_reads_what_all_have_written(books: list[AddressBook]) -> None:
    first, second = books
    first.write(ADDRESSES[0])
    found = first.read(lambda: second.write(ADDRESSES[1]))
    assert found == [*ADDRESSES[0].values(), *ADDRESSES[1].values()] == second.read(pytest.fail)


def test_who_waits_for_addresses_looks_whether_anybody_has_died(books: list[AddressBook]) -> None:
    def look() -> None:
        raise RankLost("rank 3 has gone")

    books[0].write(ADDRESSES[0])
    with pytest.raises(RankLost, match="gone"):
        books[0].read(look)


def test_an_address_that_has_no_room_is_refused(books: list[AddressBook]) -> None:
    with pytest.raises(RankLost, match="rank 3"):
        books[0].write({3: ("n" * 600, 1)})


def test_a_length_is_seen_behind_its_address_only(
    books: list[AddressBook], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a machine may show stores in another order."""
    first, second = books
    fences: list[tuple[int, bool]] = []

    def fence() -> None:
        fences.append((second._length(2), any(second._bytes[2 * 512 + 8 : 3 * 512])))

    for book in books:
        monkeypatch.setattr(book, "_fence", fence)
    for part in ADDRESSES:
        first.write(part)
    assert fences[2] == (0, True), "written, and not seen yet"
    second.read(pytest.fail)
    assert fences[-1][0] > 0 and len(fences) == 5


class PlayedDoor:
    """Who has come in."""

    def __init__(self, *guests: Guest) -> None:
        self._guests = list(guests)
        self.strangers: Mapping[str, str] = {"10.0.0.9": "has another key"}

    def wait(self, timeout: float) -> list[Guest]:
        found, self._guests = self._guests, []
        return found


def visit(engine: int, number: int = 1) -> tuple[socket.socket, Guest]:
    """Somebody's end of a connection, and the door's."""
    theirs, ours = socket.socketpair()
    theirs.settimeout(5.0)
    return theirs, Guest(ours, Intent(7, engine, number), "10.0.0.2")


def enter(link: NodesLink, index: int, *guests: Guest) -> CommonDoor | PassedOn:
    door = PlayedDoor(*guests)
    found = find_entrance(index, link, lambda: door)  # type: ignore[arg-type,return-value]
    assert isinstance(found, CommonDoor | PassedOn)
    return found


def test_who_calls_for_another_engine_is_passed_on_to_that() -> None:
    (mine, for_me), (theirs, for_other), (lost, for_nobody) = visit(0), visit(2), visit(3)
    link = new_nodes_link(3)
    first = enter(link, 0, for_me, for_other, for_nobody)
    second, third = enter(link, 1), enter(link, 2)
    assert first.wait(0.0) == [for_me] and first.wait(0.0) == []
    (guest,) = third.wait(5.0)
    assert (guest.intent, guest.host) == (for_other.intent, "10.0.0.2")
    guest.sock.sendall(b"welcome")
    assert theirs.recv(64) == b"welcome"
    assert lost.recv(64) == b"", "there is no engine 3"
    assert second.wait(0.01) == []
    assert first.strangers and not second.strangers
    for sock in (mine, for_me.sock, theirs, lost, guest.sock):
        sock.close()


def test_who_calls_for_an_engine_that_lets_nobody_in_finds_the_end() -> None:
    """The first engine does not wait for it."""
    visits, link = [visit(1, number) for number in range(100)], new_nodes_link(2)
    with socket.socket(fileno=os.dup(link.doors[0][0])) as end:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    first = enter(link, 0, *(guest for _, guest in visits))
    assert first.wait(0.0) == []
    assert visits[-1][0].recv(1) == b""
    for theirs, _ in visits:
        theirs.close()


def test_a_single_engine_has_nobody_to_pass_on_to() -> None:
    assert new_nodes_link(1).doors == []
