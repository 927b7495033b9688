"""Processes of ranks as the engine sees them: whether one lives, and how it has ended."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import threading
import time

from vivace.config.child_process import describe_exit
from vivace.system_calls import follow_child, poll


class TemplateProcess:
    """Of a rank that has not said which process it is: the one that forks all ranks. It ends with
    0 when they are there; then `sock`, whose other end is the rank's, says whether that lives. From
    any thread."""

    def __init__(self, process: subprocess.Popen[bytes], sock: socket.socket) -> None:
        self.pid = process.pid
        self._process = process
        self._socket = sock

    def wait(self, timeout: float | None = None) -> int:
        """As subprocess.Popen's, until the rank cannot come any more. Raises
        subprocess.TimeoutExpired."""
        begun = time.monotonic()
        code = self._process.wait(timeout)
        left = None if timeout is None else max(0.0, timeout - (time.monotonic() - begun))
        if code == 0 and not wait_for_end(self._socket, left):
            raise subprocess.TimeoutExpired("rank", timeout or 0.0)
        return code

    def describe(self, code: int) -> str:
        """How it has ended, where it did not say why."""
        return describe_exit(code) if code else "ended before it was there"

    def kill(self) -> None:
        self._process.kill()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)


class AdoptedProcess:
    """A process that another one has left to this one. From any thread."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._child = follow_child(pid)
        self._lock = threading.Lock()
        self._code: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        """As subprocess.Popen's. Raises subprocess.TimeoutExpired."""
        if self._code is None and not self._child.ends(timeout):
            raise subprocess.TimeoutExpired("rank", timeout or 0.0)
        with self._lock:
            if self._code is None:
                self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._code

    def describe(self, code: int) -> str:
        return describe_exit(code)

    def kill(self) -> None:
        """Whoever has its number by now, nobody else is meant."""
        with self._lock:
            if self._code is None:
                self._child.kill()


def wait_for_end(sock: socket.socket, timeout: float | None) -> bool:
    """Whether the other end is closed by then; what it has sent stays there to be read."""
    return sock.fileno() < 0 or poll(sock.fileno(), select.POLLRDHUP, timeout)
