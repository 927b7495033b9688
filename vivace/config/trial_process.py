"""What processes have in common that try something, and end when it takes too much: chat templates,
constraints. In the place of its standard input one has a socket to who started it; a frame is four
bytes of length and a message."""

from __future__ import annotations

import contextlib
import resource
import signal
import socket
import struct
import sys
from collections.abc import Generator

from vivace.config.child_process import STOPPING, die_with

LENGTH = struct.Struct("<I")


def frame(message: bytes) -> bytes:
    return LENGTH.pack(len(message)) + message


def receive(sock: socket.socket, largest: int = sys.maxsize) -> bytearray:
    """The next message. Raises EOFError at the end, and for a larger one; OSError."""
    (length,) = LENGTH.unpack(_exactly(sock, LENGTH.size))
    if length > largest:
        raise EOFError
    return _exactly(sock, length)


def _exactly(sock: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    view, have = memoryview(data), 0
    while have < size:
        count = sock.recv_into(view[have:])
        if not count:
            raise EOFError
        have += count
    return data


# -- in the process --------------------------------------------------------------------------------


def open_parent() -> socket.socket:
    """The socket to who started this process, whose first argument is that one's pid. From now on
    it obeys that one only: Ctrl-C and systemd signal every process of the group. The timer's signal
    must kill, even when whoever started the server ignores or blocks it."""
    with contextlib.suppress(OSError):  # the end of the socket is watched as well
        die_with(int(sys.argv[1]))
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPROF})
    return socket.socket(fileno=0)


def limit_memory(size: int) -> None:
    """Bytes that may be mapped. It leaves no core behind either."""
    _, allowed = resource.getrlimit(resource.RLIMIT_AS)
    if allowed != resource.RLIM_INFINITY:  # `ulimit -v` of whoever started this
        size = min(size, allowed)
    resource.setrlimit(resource.RLIMIT_AS, (size, size))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


@contextlib.contextmanager
def processor_time(seconds: float) -> Generator[None]:
    """The process ends when what is done inside takes more."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    yield
    signal.setitimer(signal.ITIMER_PROF, 0.0)
