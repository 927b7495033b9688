"""Who is let in on a port that everybody can reach, and what everybody else costs."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vivace.launch import handshake
from vivace.launch.handshake import (
    FIRST,
    MAGIC,
    MOST_CALLERS,
    NONCE,
    PROOF,
    Door,
    Guest,
    Intent,
    NoHandshake,
    WrongKey,
    call,
)
from vivace.launch.node_sockets import listening

KEY = b"k" * 32
INTENT = Intent(1, (1 << 64) - 1, 3)


class OpenDoor:
    """A door that somebody looks after."""

    def __init__(self, key: bytes = KEY) -> None:
        self.listener = listening("127.0.0.1", 0)
        self.address = self.listener.getsockname()
        self.told: list[tuple[str, str]] = []
        self.door = Door(self.listener, key, lambda host, why: self.told.append((host, why)))
        self.guests: list[Guest] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self.guests += self.door.wait(0.02)

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, 5)

    def close(self) -> None:
        self._stopped.set()
        self._thread.join(10)
        self.door.close()
        for guest in self.guests:
            guest.sock.close()

    def wait_for_guests(self, count: int) -> None:
        deadline = time.monotonic() + 10
        while len(self.guests) < count and time.monotonic() < deadline:
            time.sleep(0.005)
        assert len(self.guests) == count


@pytest.fixture
def opened() -> Iterator[OpenDoor]:
    made = OpenDoor()
    yield made
    made.close()


def test_who_has_the_key_is_let_in(opened: OpenDoor) -> None:
    with call(opened.address, KEY, INTENT) as mine:
        opened.wait_for_guests(1)
        (guest,) = opened.guests
        assert guest.intent == INTENT
        assert guest.host == "127.0.0.1"
        mine.sendall(b"hello")
        assert guest.sock.recv(5) == b"hello"
        guest.sock.sendall(b"there")
        assert mine.recv(5) == b"there"
        assert guest.sock.getblocking()
        assert mine.gettimeout() is None
    assert not opened.told


def test_an_ipv6_address_is_one_too() -> None:
    try:
        listener = listening("::1", 0)
    except OSError:
        pytest.skip("this machine has no IPv6")
    door = Door(listener, KEY)
    found: list[Guest] = []
    thread = threading.Thread(target=lambda: found.extend(wait_for_one(door)))
    thread.start()
    call(listener.getsockname()[:2], KEY, INTENT).close()
    thread.join(10)
    assert [guest.intent for guest in found] == [INTENT]
    door.close()


def wait_for_one(door: Door) -> list[Guest]:
    guests: list[Guest] = []
    while not guests:
        guests = door.wait(1.0)
    return guests


@pytest.mark.parametrize("key", [b"", b"other key", KEY + b"k"])
def test_another_key_is_told_and_opens_nothing(opened: OpenDoor, key: bytes) -> None:
    for _ in range(3):
        with pytest.raises(WrongKey):
            call(opened.address, key, INTENT)
    assert not opened.guests
    assert opened.told == [("127.0.0.1", "has another key")]  # once for each host


def test_another_key_is_told_behind_a_probe_of_the_port(opened: OpenDoor) -> None:
    for _ in range(2):
        opened.connect().close()
        with pytest.raises(WrongKey):
            call(opened.address, b"other key", INTENT)
    assert [why for _, why in opened.told][1:] == ["has another key"]
    assert list(opened.door.strangers.values()) == ["has another key"]


def test_a_door_with_another_key_is_not_believed() -> None:
    """Also one that lets everybody in: it cannot prove anything."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def impostor() -> None:
            sock, _ = server.accept()
            with sock:
                sock.recv(FIRST)
                sock.sendall(bytes(NONCE))
                proof = sock.recv(PROOF)
                sock.sendall(proof)  # what the caller itself has proved

        thread = threading.Thread(target=impostor)
        thread.start()
        with pytest.raises(WrongKey):
            call(server.getsockname(), KEY, INTENT)
        thread.join(10)


def test_what_is_no_door_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=lambda: server.accept()[0].close())
        thread.start()
        with pytest.raises((NoHandshake, ConnectionResetError)):
            call(server.getsockname(), KEY, INTENT)
        thread.join(10)


def test_what_was_recorded_opens_nothing(opened: OpenDoor) -> None:
    """A wire tapper sends what a real node once said."""
    recorded: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as tap:

        def pass_on() -> None:
            near, _ = tap.accept()
            with near, opened.connect() as far:
                for count, source, target in (
                    (FIRST, near, far),
                    (NONCE, far, near),
                    (PROOF, near, far),
                    (PROOF, far, near),
                ):
                    recorded.append(source.recv(count, socket.MSG_WAITALL))
                    target.sendall(recorded[-1])

        thread = threading.Thread(target=pass_on)
        thread.start()
        call(tap.getsockname(), KEY, INTENT).close()
        thread.join(10)
    opened.wait_for_guests(1)
    with opened.connect() as replay:
        replay.sendall(recorded[0])
        assert replay.recv(NONCE, socket.MSG_WAITALL) != recorded[1]
        replay.sendall(recorded[2])
        assert replay.recv(PROOF, socket.MSG_WAITALL) == bytes(PROOF)
        assert replay.recv(1) == b""
    assert len(opened.guests) == 1


def test_what_one_end_proved_does_not_serve_the_other(opened: OpenDoor) -> None:
    """Roles are part of a proof: a door's own proof, sent back to another door, opens nothing."""
    with opened.connect() as first:
        message = MAGIC + handshake.INTENT.pack(1, 2, 3) + bytes(NONCE)
        first.sendall(message)
        nonce = first.recv(NONCE, socket.MSG_WAITALL)
        first.sendall(handshake.prove(KEY, b"door", message + nonce))
        assert first.recv(PROOF, socket.MSG_WAITALL) == bytes(PROOF)
    assert not opened.guests


@settings(max_examples=60, deadline=None)
@given(
    messages=st.lists(
        st.one_of(
            st.binary(max_size=200),
            st.binary(min_size=FIRST - len(MAGIC), max_size=200).map(lambda rest: MAGIC + rest),
        ),
        max_size=4,
    )
)
def test_whatever_strangers_say_the_next_one_is_let_in(messages: list[bytes]) -> None:
    opened = OpenDoor()
    try:
        for message in messages:
            with contextlib.suppress(OSError), opened.connect() as stranger:
                stranger.sendall(message)
        call(opened.address, KEY, INTENT).close()
        opened.wait_for_guests(1)
    finally:
        opened.close()


def test_who_says_nothing_holds_up_nobody(opened: OpenDoor) -> None:
    """More than may wait at once, and some that send a byte now and then."""
    idle = [opened.connect() for _ in range(3 * MOST_CALLERS)]
    for one in idle[-5:]:
        one.sendall(MAGIC[:3])
    began = time.monotonic()
    call(opened.address, KEY, INTENT).close()
    assert time.monotonic() - began < 2
    opened.wait_for_guests(1)
    assert len(opened.door._callers) <= MOST_CALLERS
    for one in idle:
        one.close()


def test_who_is_slow_is_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "CALL_SECONDS", 0.2)
    opened = OpenDoor()
    with opened.connect() as slow:
        slow.settimeout(5)
        began = time.monotonic()
        with contextlib.suppress(OSError):
            while time.monotonic() - began < 3:  # a drip: each byte is in time, the whole is not
                slow.sendall(MAGIC[:1])
                time.sleep(0.05)
        assert time.monotonic() - began < 2
    opened.close()
    assert not opened.guests
    assert opened.told
