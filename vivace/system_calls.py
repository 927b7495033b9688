"""Calls of Linux that a Python lacks which was built for older systems, as uv's and conda's are:
each is called by its number, since the system that runs it may have it all the same."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import platform
import select
import signal
import time
import weakref

MEMFD_CREATE = {"x86_64": 319, "aarch64": 279, "riscv64": 279}
PIDFD_SEND_SIGNAL, PIDFD_OPEN = 424, 434
"""the same for all processors"""
MFD_CLOEXEC, MFD_ALLOW_SEALING = 1, 2
LOOK_SECONDS = 0.02
F_ADD_SEALS, F_GET_SEALS, F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW = 1033, 1034, 1, 2, 4
IN_MEMORY = "/dev/shm"
"""a folder"""
REFUSED = errno.ENOSYS, errno.EPERM, errno.EACCES
"""an older system, or a sandbox"""


def open_memory(name: str) -> int:
    """Descriptor of an empty file in memory that no folder has. Raises OSError."""
    flags = MFD_CLOEXEC | MFD_ALLOW_SEALING
    try:
        if hasattr(os, "memfd_create"):
            return os.memfd_create(name, flags)
        return call(MEMFD_CREATE.get(platform.machine(), -1), name.encode(), flags)
    except OSError as error:
        if error.errno not in REFUSED:
            raise
        return open_nameless(f"memfd:{name}-")


def open_nameless(prefix: str) -> int:
    """Of an empty file whose name is gone again: in memory, or else among temporary files."""
    import tempfile
    from pathlib import Path

    try:
        descriptor, name = tempfile.mkstemp(prefix=prefix, dir=IN_MEMORY)
    except OSError:
        descriptor, name = tempfile.mkstemp(prefix=prefix)
    Path(name).unlink()
    return descriptor


def fix_size(memory: int) -> None:
    """Of what `open_memory` made, for good; one that was made in a folder knows no seals, and
    nobody but this program's processes has it. Raises OSError."""
    try:
        if fcntl.fcntl(memory, F_GET_SEALS) == F_SEAL_SEAL:
            return  # of a tmpfs
    except OSError:
        return  # of a disk
    fcntl.fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)


def open_process(pid: int) -> int:
    """A descriptor that means it whoever has its number later. Raises OSError."""
    if hasattr(os, "pidfd_open"):
        return os.pidfd_open(pid)
    return call(PIDFD_OPEN, pid, 0)


def send_signal(process: int, number: int) -> None:
    """To what `open_process` opened. Raises OSError."""
    if hasattr(signal, "pidfd_send_signal"):
        signal.pidfd_send_signal(process, number)
    else:
        call(PIDFD_SEND_SIGNAL, process, number, 0, 0)


class ChildFile:
    """A child of this process, known by its descriptor. From any thread."""

    def __init__(self, descriptor: int) -> None:
        self._file = descriptor
        weakref.finalize(self, os.close, descriptor)  # while a thread waits, it is not closed

    def ends(self, timeout: float | None) -> bool:
        """Whether it has ended by then; it may still be waited for."""
        return poll(self._file, select.POLLIN, timeout)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has ended
            send_signal(self._file, signal.SIGKILL)


class ChildNumber:
    """The same, known by its number, which is nobody else's as long as nobody has waited for it."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def ends(self, timeout: float | None) -> bool:
        """As `ChildFile.ends`."""
        if timeout is None:
            return self._has_ended(0)
        deadline = time.monotonic() + timeout
        while not self._has_ended(os.WNOHANG):
            if time.monotonic() >= deadline:
                return False
            time.sleep(LOOK_SECONDS)
        return True

    def kill(self) -> None:
        if not self._has_ended(os.WNOHANG):
            os.kill(self._pid, signal.SIGKILL)

    def _has_ended(self, how: int) -> bool:
        try:
            return os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOWAIT | how) is not None
        except ChildProcessError:  # somebody has waited for it
            return True


def follow_child(pid: int) -> ChildFile | ChildNumber:
    """By a descriptor, else by its number. Raises OSError where there is no room for a descriptor,
    or, as far as descriptors are known, nobody has that number."""
    try:
        return ChildFile(open_process(pid))
    except OSError as error:
        if error.errno not in REFUSED:
            raise
        return ChildNumber(pid)  # before Linux 5.3, or refused


def poll(descriptor: int, events: int, timeout: float | None) -> bool:
    """As select(2), which knows no descriptor above 1023."""
    waiting = select.poll()
    waiting.register(descriptor, events)
    return bool(waiting.poll(None if timeout is None else 1000 * timeout))


def call(number: int, *arguments: int | bytes) -> int:
    """Of this thread. Raises OSError: ENOSYS where the system does not know the number."""
    words = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    library = ctypes.CDLL(None, use_errno=True)
    if (found := library.syscall(ctypes.c_long(number), *words)) < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return found
