"""How soon threads run that become ready while others have the cores."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import re
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from vivace.config.time_slices import (
    EVENT,
    SHORTEST,
    TELL_THREAD,
    TIMERS,
    YIELD_SIGNAL,
    ask_for_short_slices,
    be_less_urgent,
    handled_by,
    yield_often,
)
from vivace.system_calls import call

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux has slices and niceness")


def priority() -> tuple[int, int | None]:
    """(niceness, slice in nanoseconds or None where the system does not tell) of this thread"""
    nice = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    try:
        told = Path("/proc/thread-self/sched").read_text()
    except OSError:
        return nice, None
    found = re.search(r"^se\.slice\s*:\s*(\d+)", told, re.MULTILINE)
    return nice, int(found[1]) if found else None


def test_what_compiles_gets_what_time_streams_leave():
    before = priority()

    def become_both() -> list[tuple[int, int | None]]:
        ask_for_short_slices()
        urgent = priority()
        be_less_urgent()
        return [urgent, priority()]

    with ThreadPoolExecutor(1) as thread:
        urgent, less = thread.submit(become_both).result()
    assert urgent[0] == before[0] and less[0] == 19
    if before[1] is not None:
        assert urgent[1] in (SHORTEST, before[1])  # before Linux 6.12 nobody may choose
        assert less[1] in (SHORTEST, before[1])
    assert priority() == before, "it is the thread's own"


def test_where_nobody_tells_the_policy_threads_are_less_urgent_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
):
    def refuse(_pid: int) -> int:
        raise OSError(errno.ENOSYS, "as musl does")

    monkeypatch.setattr(os, "sched_getscheduler", refuse)
    with ThreadPoolExecutor(1) as thread:
        thread.submit(ask_for_short_slices).result()
        thread.submit(be_less_urgent).result()
        assert thread.submit(priority).result()[0] == 19


def test_a_policy_that_somebody_chose_stays():
    def choose() -> int:
        try:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        except OSError as error:
            pytest.skip(f"nobody may choose here: {error}")
        ask_for_short_slices()
        return os.sched_getscheduler(0)

    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(choose).result() == os.SCHED_BATCH


def has_timers() -> bool:
    """Not under qemu, which knows none that tell a thread."""
    timer = ctypes.c_int()
    event = EVENT.pack(0, YIELD_SIGNAL, TELL_THREAD, threading.get_native_id())
    create, _, delete = TIMERS.get(platform.machine(), (-1, -1, -1))
    try:
        call(create, time.CLOCK_MONOTONIC, event, ctypes.addressof(timer))
    except OSError:
        return False
    call(delete, timer.value)
    return True


needs_timers = pytest.mark.skipif(not has_timers(), reason="there are no timers that tell a thread")


@needs_timers
def test_what_yields_is_told_to_again_and_again_and_only_then():
    def await_signals(most: int, seconds: float) -> int:
        found = (signal.sigtimedwait([YIELD_SIGNAL], seconds) for _ in range(most))
        return sum(1 for told in found if told is not None)

    def count() -> tuple[int, int, int]:
        signal.pthread_sigmask(signal.SIG_BLOCK, [YIELD_SIGNAL])  # it waits, to be looked at
        with yield_often():
            urgently = await_signals(1, 0.01)
        be_less_urgent()
        with yield_often():
            during = await_signals(20, 10.0)
        await_signals(1, 0.0)  # one that came in between
        return urgently, during, await_signals(1, 0.01)

    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(count).result() == (0, 20, 0)


def test_who_is_told_to_yield_goes_on_with_what_it_does():
    def compute() -> int:
        be_less_urgent()
        with yield_often():
            return sum(range(1_000_000))

    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(compute).result() == 499_999_500_000


@needs_timers
def test_a_signal_that_somebody_handles_stays_theirs():
    def compute() -> None:
        be_less_urgent()
        with yield_often():
            sum(range(1000))

    heard: list[int] = []
    before = signal.signal(YIELD_SIGNAL, lambda number, _frame: heard.append(number))
    try:
        with ThreadPoolExecutor(1) as thread:
            thread.submit(compute).result()
        signal.raise_signal(YIELD_SIGNAL)
        assert heard == [YIELD_SIGNAL]
    finally:
        signal.signal(YIELD_SIGNAL, before)


@needs_timers
def test_a_signal_that_a_library_handles_stays_theirs():
    def compute() -> None:
        be_less_urgent()
        with yield_often():
            sum(range(1000))

    library = ctypes.CDLL(None)
    theirs = ctypes.cast(library.getpid, ctypes.c_void_p)
    library.signal.restype = ctypes.c_void_p
    before = library.signal(YIELD_SIGNAL, theirs)
    try:
        with ThreadPoolExecutor(1) as thread:
            thread.submit(compute).result()
        assert handled_by(YIELD_SIGNAL) == theirs.value
    finally:
        library.signal(YIELD_SIGNAL, ctypes.c_void_p(before))
