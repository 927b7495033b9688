"""How processes of different machines make sure that they belong together.

Before anything else a fixed number of bytes goes each way, so nothing that a stranger sends is
decoded, and none of it takes memory:

    caller -> door   MAGIC, what it comes for, a nonce
    door -> caller   a nonce
    caller -> door   HMAC-SHA256(key, "caller", all of that)
    door -> caller   HMAC-SHA256(key, "door", all of that); zeros where it has another key

Both nonces are new each time, so what somebody has recorded opens nothing. It says who is at the
other end of a connection; what goes over it later is neither hidden nor sealed.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import secrets
import selectors
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field

MAGIC = b"VIVACE01"
NONCE = 32
PROOF = 32
INTENT = struct.Struct("<QQQ")
FIRST = len(MAGIC) + INTENT.size + NONCE
"""bytes of a caller's first message"""
CALL_SECONDS = 5.0
"""in which a handshake ends; it takes milliseconds"""
MOST_CALLERS = 64
"""at once, that have proved nothing yet; then the oldest is sent away"""
MOST_HOSTS = 64
"""of which is remembered why they were sent away"""
OTHER_KEY = "has another key"
GONE_SECONDS = 3.0
"""without an answer of the other machine (not of the process there): it is gone"""


@dataclass(frozen=True)
class Intent:
    """What a caller comes for; numbers of 0 .. 2^64 - 1, whose meaning is the caller's and the
    door's."""

    session: int
    group: int
    number: int


class WrongKey(Exception):
    """The other end has another key, or none."""


class NoHandshake(Exception):
    """The other end is none of ours, or has gone."""


@dataclass(frozen=True)
class Guest:
    """Who has proved that it has the key. `sock` blocks."""

    sock: socket.socket
    intent: Intent
    host: str


@dataclass(eq=False)
class Caller:
    """Who has not yet."""

    sock: socket.socket
    host: str
    deadline: float
    unread: bytes = b""
    said: bytes = b""
    """by both, once the first message is there"""
    intent: Intent = field(default_factory=lambda: Intent(0, 0, 0))

    @property
    def missing(self) -> int:
        """bytes of the message that is read now"""
        return (PROOF if self.said else FIRST) - len(self.unread)


class Door:
    """Listens; lets those in who have the key. Others hold a socket for seconds at most, and never
    hold up anybody. `on_stranger` hears, once for each host, who was sent away, and why; and again
    where it was a probe or a scan, and now a node with another key."""

    def __init__(
        self,
        listener: socket.socket,
        key: bytes,
        on_stranger: Callable[[str, str], None] = lambda host, why: None,
    ) -> None:
        self._listener = listener
        self._key = key
        self._on_stranger = on_stranger
        self.strangers: dict[str, str] = {}
        self._callers: list[Caller] = []
        self._selector = selectors.DefaultSelector()
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ)

    def wait(self, timeout: float) -> list[Guest]:
        """Who has come in; within `timeout` seconds, or nobody."""
        guests: list[Guest] = []
        for found, _ in self._selector.select(timeout):
            if found.data is None:
                self._accept()
            elif (guest := self._hear(found.data)) is not None:
                guests.append(guest)
        now = time.monotonic()
        for caller in [one for one in self._callers if one.deadline <= now]:
            self._send_away(caller, "says nothing that is known here")
        return guests

    def close(self) -> None:
        for caller in list(self._callers):
            self._forget(caller)
            caller.sock.close()
        self._selector.close()
        self._listener.close()

    def _accept(self) -> None:
        try:
            sock, address = self._listener.accept()
        except OSError:  # it has gone again, or this process has no room for more sockets
            time.sleep(0.01)
            return
        sock.setblocking(False)
        if len(self._callers) >= MOST_CALLERS:
            self._send_away(self._callers[0], "holds many connections and says nothing")
        caller = Caller(sock, address[0], time.monotonic() + CALL_SECONDS)
        self._callers.append(caller)
        self._selector.register(sock, selectors.EVENT_READ, caller)

    def _hear(self, caller: Caller) -> Guest | None:
        if caller.sock.fileno() < 0:  # sent away in this turn
            return None
        try:
            data = caller.sock.recv(caller.missing)
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        if not data:
            self._send_away(caller, "has gone without saying anything that is known here")
            return None
        caller.unread += data
        if caller.missing:
            return None
        message, caller.unread = caller.unread, b""
        if caller.said:
            return self._check(caller, message)
        self._answer(caller, message)
        return None

    def _answer(self, caller: Caller, message: bytes) -> None:
        if not hmac.compare_digest(message[: len(MAGIC)], MAGIC):
            self._send_away(caller, "says nothing that is known here")
            return
        caller.intent = Intent(*INTENT.unpack_from(message, len(MAGIC)))
        nonce = secrets.token_bytes(NONCE)
        caller.said = message + nonce
        self._say(caller, nonce)

    def _check(self, caller: Caller, proof: bytes) -> Guest | None:
        if not hmac.compare_digest(proof, prove(self._key, b"caller", caller.said)):
            self._say(caller, bytes(PROOF))
            self._send_away(caller, OTHER_KEY)
            return None
        self._forget(caller)
        try:
            caller.sock.send(prove(self._key, b"door", caller.said))
        except OSError:
            caller.sock.close()
            return None
        caller.sock.setblocking(True)
        return Guest(caller.sock, caller.intent, caller.host)

    def _say(self, caller: Caller, data: bytes) -> None:
        """It fits into the socket of who has read what was said before; the others are too late."""
        with contextlib.suppress(OSError):
            caller.sock.send(data)

    def _send_away(self, caller: Caller, why: str) -> None:
        self._forget(caller)
        caller.sock.close()
        known = self.strangers.get(caller.host)
        first = known is None and len(self.strangers) < MOST_HOSTS
        if first or (known not in (None, why) and why == OTHER_KEY):
            self.strangers[caller.host] = why
            self._on_stranger(caller.host, why)

    def _forget(self, caller: Caller) -> None:
        self._callers.remove(caller)
        self._selector.unregister(caller.sock)


def prove(key: bytes, role: bytes, said: bytes) -> bytes:
    return hmac.new(key, role + said, hashlib.sha256).digest()


def call(address: tuple[str, int], key: bytes, intent: Intent) -> socket.socket:
    """A connection whose other end has the key. Raises WrongKey, NoHandshake, OSError."""
    sock = socket.create_connection(address, CALL_SECONDS)
    try:
        first = MAGIC + INTENT.pack(intent.session, intent.group, intent.number)
        first += secrets.token_bytes(NONCE)
        sock.sendall(first)
        said = first + receive(sock, NONCE)
        sock.sendall(prove(key, b"caller", said))
        proof = receive(sock, PROOF)
    except BaseException:
        sock.close()
        raise
    if not hmac.compare_digest(proof, prove(key, b"door", said)):
        sock.close()
        raise WrongKey
    sock.settimeout(None)
    return sock


def receive(sock: socket.socket, count: int) -> bytes:
    """So many bytes, within CALL_SECONDS. Raises NoHandshake."""
    data, deadline = b"", time.monotonic() + CALL_SECONDS
    while len(data) < count:
        sock.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            some = sock.recv(count - len(data))
        except TimeoutError:
            raise NoHandshake("it does not answer as one of ours") from None
        if not some:
            raise NoHandshake("it has closed the connection")
        data += some
    return data


def derive(key: bytes, session: int) -> bytes:
    """The key of the connections of one session."""
    return prove(key, b"session", session.to_bytes(8, "little"))


def send_at_once(sock: socket.socket) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def notice_silence(sock: socket.socket) -> None:
    """Reading fails once the other machine has not answered for GONE_SECONDS, whatever both
    processes do: the two kernels ask each other. Of a connection whose other end always reads."""
    ask_when_idle(sock)
    if (option := getattr(socket, "TCP_USER_TIMEOUT", None)) is not None:
        sock.setsockopt(socket.IPPROTO_TCP, option, int(1000 * GONE_SECONDS))


def ask_when_idle(sock: socket.socket) -> None:
    """The same while nothing is on its way that has no answer yet; it keeps firewalls from
    forgetting the connection."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", 1),
        ("TCP_KEEPINTVL", 1),
        ("TCP_KEEPCNT", int(GONE_SECONDS)),
    ):
        if (option := getattr(socket, name, None)) is not None:  # not all outside Linux
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
