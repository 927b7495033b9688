"""How soon threads run that become ready while others have the cores.

Since Linux 6.12 who asks for short slices runs at once beside who has longer ones; before that who
is nicer lets others run at once. Who has begun runs up to the next tick of the system's clock, 4 ms
or more, though others are due, unless it yields before.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import struct
import sys
import threading
import time
from collections.abc import Generator

from vivace.system_calls import call

SET_ATTRIBUTES = {"x86_64": 314, "aarch64": 274, "riscv64": 274}
"""sched_setattr(2)"""
ATTRIBUTES = struct.Struct("<IIQiIQQQ")
"""size, policy, flags; nice, priority; runtime, deadline, period"""
TIMERS = {"x86_64": (222, 223, 226), "aarch64": (107, 110, 111), "riscv64": (107, 110, 111)}
"""timer_create(2), timer_settime(2), timer_delete(2)"""
EVENT = struct.Struct("=QiiI44x")
"""a value, its signal, whom to tell, which thread"""
TELL_THREAD = 4
ACTION_WORDS = 32
"""more than a sigaction(2) has; the first one is the handler"""
SHORTEST = 100_000
"""nanoseconds of a slice that Linux takes"""
YIELD_NANOSECONDS = 500_000
YIELD_SIGNAL = 64
"""the last one: SIGRTMAX"""
REFUSED = -1
NICEST = 19


def ask_for_short_slices() -> None:
    """For this thread, and all that it starts: streams wait for what they do. Nothing happens where
    the system does not know them, or whoever started us has chosen (chrt), or nobody tells."""
    if sys.platform == "linux" and find_policy() == os.SCHED_OTHER:
        set_slice(os.getpriority(os.PRIO_PROCESS, 0), SHORTEST)


def be_less_urgent() -> None:
    """This thread, and all that it starts: they get what time others leave."""
    if sys.platform == "linux" and find_policy() != os.SCHED_IDLE:
        set_slice(NICEST, SHORTEST)
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICEST)


def is_less_urgent() -> bool:
    """Of this thread."""
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == NICEST


@contextlib.contextmanager
def yield_often() -> Generator[None]:
    """This thread, if it is less urgent, lets others run every half a millisecond: however nice it
    is, it is due a hundredth of the time. Not while it keeps the interpreter's lock: others may
    wait for that. Who is as urgent as others keeps its share: yielding, it would get as little."""
    timer = start_yielding() if is_less_urgent() else None
    try:
        yield
    finally:
        if timer is not None:
            call(TIMERS[platform.machine()][2], timer)


def start_yielding() -> int | None:
    """A timer, whose signal makes this thread yield. None: there are none here."""
    if sys.platform != "linux" or platform.machine() not in TIMERS:
        return None
    create, start, _ = TIMERS[platform.machine()]
    library, timer = ctypes.CDLL(None), ctypes.c_int()
    handler = ctypes.cast(library.sched_yield, ctypes.c_void_p)
    if handled_by(YIELD_SIGNAL) not in (None, handler.value):
        return None  # somebody else's
    event = EVENT.pack(0, YIELD_SIGNAL, TELL_THREAD, threading.get_native_id())
    every = struct.pack("=4q", 0, YIELD_NANOSECONDS, 0, YIELD_NANOSECONDS)
    with contextlib.suppress(OSError):
        call(create, time.CLOCK_MONOTONIC, event, ctypes.addressof(timer))
        if library.signal(ctypes.c_int(YIELD_SIGNAL), handler) != REFUSED:
            call(start, timer.value, 0, every, 0)
            return timer.value
    return None


def handled_by(number: int) -> int | None:
    """The address of what handles a signal, whoever has set it: Python knows its own handlers only.
    None: nobody does."""
    action = (ctypes.c_void_p * ACTION_WORDS)()
    ctypes.CDLL(None).sigaction(number, None, action)
    return action[0]


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
