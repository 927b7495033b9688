"""Sleep until a word of shared memory is no longer what it was: futex(2), from any process."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import time

NUMBERS = {"x86_64": 202, "aarch64": 98, "riscv64": 98}
"""of the system call"""
UNKNOWN_SECONDS = 0.0005
"""between two looks on a machine whose number we do not know"""
WAIT, WAKE = 0, 1
EVERYBODY = (1 << 31) - 1


class Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class Futex:
    """The 4 bytes at `address`, which stays mapped. Little-endian machines only: a word of 8 bytes
    changes there first. Elsewhere `wait` just sleeps a little."""

    def __init__(self, address: int) -> None:
        self._word = ctypes.c_void_p(address)
        number = NUMBERS.get(platform.machine())
        self._number = None if number is None else ctypes.c_long(number)
        self._syscall = ctypes.CDLL(None, use_errno=True).syscall

    def wait(self, value: int, seconds: float) -> None:
        """Return once somebody wakes this word, at once if it is not `value` (its low 4 bytes), or
        after `seconds`."""
        if self._number is None:
            time.sleep(min(seconds, UNKNOWN_SECONDS))
            return
        whole = int(seconds)
        most = Timespec(whole, int((seconds - whole) * 1e9))
        self._call(WAIT, value & 0xFFFFFFFF, ctypes.byref(most))

    def wake(self) -> None:
        """All who wait for it."""
        self._call(WAKE, EVERYBODY, None)

    def _call(self, operation: int, value: int, most: object) -> None:
        if self._number is None:
            return
        code = self._syscall(
            self._number, self._word, ctypes.c_int(operation), ctypes.c_uint32(value), most, None, 0
        )
        if code < 0 and ctypes.get_errno() not in (errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
