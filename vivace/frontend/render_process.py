"""The frontend's end of a process that renders chat templates."""

from __future__ import annotations

import signal
import socket
import subprocess
import weakref

import msgspec

from vivace.config.child_process import bare_environment, python_module
from vivace.frontend.template_messages import LENGTH, Answer, RenderLimits, frame

CHUNK = 256 << 10
MODULE = "vivace.frontend.template_process"

decode = msgspec.msgpack.Decoder(Answer).decode


class ProcessEnded(Exception):
    """The process is gone. `code`: its exit status as subprocess has it."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code

    @property
    def too_slow(self) -> bool:
        return self.code == -signal.SIGPROF


class RenderProcess:
    """A process and the socket to it; nothing here waits, except for its end once that is certain.

    It needs its `Load` first, and gives one answer to each message, in order.
    """

    def __init__(self, limits: RenderLimits) -> None:
        self._limits = limits
        self._unread = bytearray()
        self._unsent = bytearray()
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                python_module(MODULE),
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                env=bare_environment(),
            )
        ours.setblocking(False)
        self._socket = ours
        self.end = weakref.finalize(self, end, ours, self._process)

    @property
    def pid(self) -> int:
        return self._process.pid

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: bytes) -> bool:
        """Whether all is on its way; otherwise `flush` when the socket takes more."""
        self._unsent += frame(message)
        return self.flush()

    def flush(self) -> bool:
        while self._unsent:
            try:
                del self._unsent[: self._socket.send(memoryview(self._unsent)[:CHUNK])]
            except BlockingIOError:
                return False
            except OSError:
                return True  # it is gone, which `receive` will say
        return True

    def receive(self) -> list[Answer]:
        """The answers that are complete; call it when there is something to read.

        Raises ProcessEnded, also for an answer that is longer than any may be. `end` it then.
        """
        try:
            chunk = self._socket.recv(CHUNK)
        except BlockingIOError:
            return []
        except OSError:
            chunk = b""
        if not chunk:
            raise ProcessEnded(self._exit_code())
        self._unread += chunk
        answers: list[Answer] = []
        while (body := self._body()) is not None:
            answers.append(decode(body))
        return answers

    def _body(self) -> bytes | None:
        """The next whole message, out of what has been read."""
        if len(self._unread) < LENGTH.size:
            return None
        (length,) = LENGTH.unpack_from(self._unread)
        if length > self._limits.largest_answer:
            self._process.kill()
            raise ProcessEnded(self._exit_code())
        end = LENGTH.size + length
        if len(self._unread) < end:
            return None
        body = bytes(memoryview(self._unread)[LENGTH.size : end])
        del self._unread[:end]
        return body

    def _exit_code(self) -> int:
        try:
            return self._process.wait(1.0)  # its socket closes a moment before it is gone
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


def end(sock: socket.socket, process: subprocess.Popen[bytes]) -> None:
    sock.close()
    process.kill()
    process.wait()
