"""Messages between two processes of one server, and what a peer that stops reading gets."""

from __future__ import annotations

import socket

import msgspec
import pytest

from vivace.protocol import message_socket
from vivace.protocol.message_socket import LARGEST_MESSAGE, LENGTH, MessageSocket, SocketClosed


def pair() -> tuple[MessageSocket[bytes], MessageSocket[bytes], socket.socket]:
    ours, theirs = socket.socketpair()
    decoder = msgspec.msgpack.Decoder(bytes)
    return MessageSocket(ours, decoder), MessageSocket(theirs, decoder), ours


def test_messages_arrive_whole_and_in_order() -> None:
    one, other, _ = pair()
    for size in (0, 1, 70_000):
        one.send(b"x" * size)
    assert [len(other.wait()) for _ in range(3)] == [0, 1, 70_000]
    assert other.receive() == []
    one.close()
    with pytest.raises(SocketClosed):
        other.receive()


def test_a_peer_that_stops_reading_gets_no_message_behind_a_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(message_socket, "SEND_SECONDS", 1.0)
    one, other, _ = pair()
    one.send(b"first")
    one.send(b"x" * (8 << 20))  # more than a socket holds
    one.send(b"behind it")
    assert other.wait() == b"first"
    with pytest.raises(SocketClosed):
        other.wait()
    other.send(b"why it ends")
    assert one.wait() == b"why it ends"


def test_a_length_over_the_limit_is_no_message() -> None:
    _, other, raw = pair()
    raw.sendall(LENGTH.pack(LARGEST_MESSAGE + 1))
    with pytest.raises(SocketClosed):
        other.wait()


@pytest.mark.parametrize(
    "frame",
    [b"\xa1\xff", b"\x91" * 50_000 + b"\xc0", b"\xc1", b""],
    ids=["text", "deep", "no", "empty"],
)
def test_what_is_no_message_is_one_kind_of_error(frame: bytes) -> None:
    """Text that is no UTF-8, lists in lists: msgspec has other errors for these."""
    ours, theirs = socket.socketpair()
    reader: MessageSocket[object] = MessageSocket(theirs, msgspec.msgpack.Decoder(object))
    ours.sendall(LENGTH.pack(len(frame)) + frame)
    with pytest.raises(msgspec.MsgspecError):
        reader.wait()
