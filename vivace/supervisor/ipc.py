"""The two ends of the socket pair between the supervisor and a child."""

from __future__ import annotations

import socket

import msgspec

from vivace.protocol.message_socket import MessageSocket
from vivace.supervisor.messages import FromChild, ToChild


def supervisor_end(sock: socket.socket) -> MessageSocket[FromChild]:
    return MessageSocket(sock, msgspec.msgpack.Decoder(FromChild))


def child_end(sock: socket.socket) -> MessageSocket[ToChild]:
    return MessageSocket(sock, msgspec.msgpack.Decoder(ToChild))
