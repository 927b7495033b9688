"""Calls of Linux that a Python lacks which was built for older systems, as uv's and conda's are:
each is called by its number, since the system that runs it may have it all the same."""

from __future__ import annotations

import ctypes
import fcntl
import os
import platform
import signal

MEMFD_CREATE = {"x86_64": 319, "aarch64": 279, "riscv64": 279}
PIDFD_SEND_SIGNAL, PIDFD_OPEN = 424, 434
"""the same for all processors"""
MFD_CLOEXEC, MFD_ALLOW_SEALING = 1, 2
F_ADD_SEALS, F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW = 1033, 1, 2, 4


def open_memory(name: str) -> int:
    """Descriptor of an empty file in memory that no folder has. Raises OSError."""
    flags = MFD_CLOEXEC | MFD_ALLOW_SEALING
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name, flags)
    return call(MEMFD_CREATE.get(platform.machine(), -1), name.encode(), flags)


def fix_size(memory: int) -> None:
    """Of what `open_memory` made, for good. Raises OSError."""
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


def call(number: int, *arguments: int | bytes) -> int:
    """Of this thread. Raises OSError: ENOSYS where the system does not know the number."""
    words = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    library = ctypes.CDLL(None, use_errno=True)
    if (found := library.syscall(ctypes.c_long(number), *words)) < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return found
