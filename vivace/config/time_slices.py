"""How soon threads run that become ready while others have the cores.

Since Linux 6.12 who asks for short slices runs at once beside who has longer ones; before that who
is nicer lets others run at once.
"""

from __future__ import annotations

import contextlib
import os
import platform
import struct
import sys
import threading

from vivace.system_calls import call

SET_ATTRIBUTES = {"x86_64": 314, "aarch64": 274, "riscv64": 274}
"""sched_setattr(2)"""
ATTRIBUTES = struct.Struct("<IIQiIQQQ")
"""size, policy, flags; nice, priority; runtime, deadline, period"""
SHORTEST, LONGEST = 100_000, 100_000_000
"""nanoseconds of a slice that Linux takes"""
NICEST = 19


def ask_for_short_slices() -> None:
    """For this thread, and all that it starts: streams wait for what they do. Nothing happens where
    the system does not know them, or whoever started us has chosen (chrt), or nobody tells."""
    if sys.platform == "linux" and find_policy() == os.SCHED_OTHER:
        set_slice(os.getpriority(os.PRIO_PROCESS, 0), SHORTEST)


def be_less_urgent() -> None:
    """This thread, and all that it starts: they get what time others leave."""
    if sys.platform == "linux" and find_policy() != os.SCHED_IDLE:
        set_slice(NICEST, LONGEST)
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICEST)


def find_policy() -> int | None:
    """Of this thread. None: musl's library does not tell, nor do some sandboxes."""
    with contextlib.suppress(OSError):
        return os.sched_getscheduler(0)
    return None


def set_slice(nice: int, nanoseconds: int) -> None:
    """Of this thread; where there is no such call, or a sandbox forbids it, nothing happens."""
    attributes = ATTRIBUTES.pack(ATTRIBUTES.size, 0, 0, nice, 0, nanoseconds, 0, 0)
    with contextlib.suppress(OSError):
        call(SET_ATTRIBUTES.get(platform.machine(), -1), 0, attributes, 0)
