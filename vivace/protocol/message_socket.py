"""A socket pair that carries typed messages: four bytes of length, then msgpack.

Its end of file says that the other process is gone, however it died.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import msgspec

LENGTH = struct.Struct("<I")
LARGEST_MESSAGE = (1 << 30) + (1 << 20)
"""Bytes: hidden states of a chunk of 32,768 tokens of 8,192 floats, and what goes with them."""
CHUNK = 1 << 16
SEND_SECONDS = 10.0
"""A peer that takes nothing for so long is as good as dead."""

T = TypeVar("T")


class SocketClosed(Exception):
    """The other end is closed, or of no use: its process is gone, where the text says no more."""


class MessageSocket(Generic[T]):
    """One end. `send` may be called from any thread, `receive` and `wait` from one; both raise
    msgspec.MsgspecError where what came is none of `decoder`'s messages. `largest`: bytes."""

    def __init__(
        self,
        sock: socket.socket,
        decoder: msgspec.msgpack.Decoder[T],
        largest: int = LARGEST_MESSAGE,
    ) -> None:
        self.largest = largest
        self._socket = sock
        self._decoder = decoder
        self._encoder = msgspec.msgpack.Encoder()
        self._lock = threading.Lock()
        self._unread = bytearray()
        self._reason = ""
        timeout = struct.pack("ll", int(SEND_SECONDS), 0)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeout)

    def fileno(self) -> int:
        return self._socket.fileno()

    def local_host(self) -> str:
        """This machine's address, of a connection over a network."""
        return self._socket.getsockname()[0]

    def send(self, message: Any) -> None:
        """To a peer that is gone this does nothing; its end is noticed elsewhere. One that takes
        nothing for SEND_SECONDS finds our end closed behind what it has of this message."""
        data = self._encoder.encode(message)
        with self._lock, contextlib.suppress(OSError):
            try:
                self._socket.sendall(LENGTH.pack(len(data)) + data)
            except OSError:
                self._socket.shutdown(socket.SHUT_WR)
                raise

    def receive(self) -> list[T]:
        """What has arrived; SocketClosed once the peer has gone and all is read. Never waits."""
        while True:
            try:
                chunk = self._socket.recv(CHUNK, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return self._messages()
            except OSError as error:
                chunk, self._reason = b"", describe_end(error)
            if not chunk:
                messages = self._messages()
                if messages:
                    return messages
                raise SocketClosed(self._reason)
            self._unread += chunk

    def wait(self, timeout: float | None = None) -> T:
        """The next message; blocks until it is there, or raises TimeoutError when nothing comes for
        `timeout` seconds."""
        while (message := self._next()) is None:
            if timeout is not None and not self._has_news(timeout):
                raise TimeoutError
            try:
                chunk = self._socket.recv(CHUNK)
            except OSError as error:
                chunk, self._reason = b"", describe_end(error)
            if not chunk:
                raise SocketClosed(self._reason)
            self._unread += chunk
        return message

    def _has_news(self, seconds: float) -> bool:
        waiting = select.poll()  # select(2) knows no descriptor above 1023
        waiting.register(self._socket, select.POLLIN)
        return bool(waiting.poll(1000 * seconds))

    def shutdown(self) -> None:
        """The peer finds it closed, and so does who waits here; from any thread."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()

    def _messages(self) -> list[T]:
        messages: list[T] = []
        while (message := self._next()) is not None:
            messages.append(message)
        return messages

    def _next(self) -> T | None:
        if len(self._unread) < LENGTH.size:
            return None
        (length,) = LENGTH.unpack_from(self._unread)
        if length > self.largest:
            raise SocketClosed(f"a message of {length:,} bytes, and {self.largest:,} are the most")
        end = LENGTH.size + length
        if len(self._unread) < end:
            return None
        frame = bytes(self._unread[LENGTH.size : end])
        del self._unread[:end]
        try:
            return self._decoder.decode(frame)
        except (UnicodeDecodeError, RecursionError) as error:
            raise msgspec.DecodeError(str(error)) from None


def wait_for_any(sockets: Sequence[MessageSocket[T]], seconds: float) -> list[MessageSocket[T]]:
    """Those that have something to read by then."""
    waiting = select.poll()
    for sock in sockets:
        waiting.register(sock, select.POLLIN)
    ready = {number for number, _ in waiting.poll(1000 * seconds)}
    return [sock for sock in sockets if sock.fileno() in ready]


def describe_end(error: OSError) -> str:
    """Empty for what follows from the end of the process there: that it had not read all."""
    return "" if isinstance(error, ConnectionResetError) else error.strerror or str(error)
