"""Whom the ranks of an engine wait for, as the system shows it."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from vivace.launch.node_link import RemoteInbox
from vivace.observability.awaited_processes import (
    describe_awaited,
    find_members,
    is_stopped,
    look_at,
    name_process,
)
from vivace.protocol.futex import Futex
from vivace.protocol.ranks import RankStates
from vivace.system_calls import open_memory


@contextmanager
def children(*jobs: Callable[[], object]) -> Iterator[list[int]]:
    """Processes `rank 0`, `rank 1` ... of this one that do these."""
    pids: list[int] = []
    try:
        for rank, job in enumerate(jobs):
            if (pid := os.fork()) == 0:
                try:
                    name_process(f"rank {rank}")
                    job()
                finally:
                    os._exit(0)
            pids.append(pid)
        time.sleep(0.3)
        yield pids
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def find_awaited(parents: list[int], pids: list[int]) -> str:
    """Ranks that other tests have left to this process are nobody's business."""
    members = find_members(parents)
    own = {pid: name for pid, name in members.items() if pid in (*parents, *pids)}
    return describe_awaited([look_at(own)])


def wait_in_collective() -> None:
    """For a word of memory that ranks share"""
    descriptor = open_memory("vivace-ranks")
    os.ftruncate(descriptor, mmap.PAGESIZE)
    word = ctypes.c_uint32.from_buffer(mmap.mmap(descriptor, mmap.PAGESIZE))
    while True:
        Futex(ctypes.addressof(word)).wait(0, 0.05)


def compute() -> None:
    while True:
        pass


def test_who_does_not_come_is_named() -> None:
    """Whether it computes, or waits for something that is not the others."""
    for job in (compute, lambda: time.sleep(60)):
        with children(wait_in_collective, job, wait_in_collective) as pids:
            # The engine, this process, waits for nobody, either.
            assert find_awaited([pids[0]], pids) == ""
            found = find_awaited([os.getpid()], pids)
        assert found.endswith("does not come where others wait")
        assert f"rank 1 (process {pids[1]})" in found
        assert "rank 0" not in found and "rank 2" not in found


def test_who_is_stopped_is_named_first() -> None:
    with children(wait_in_collective, compute) as pids:
        os.kill(pids[0], signal.SIGSTOP)
        time.sleep(0.1)
        assert find_awaited([os.getpid()], pids) == f"rank 0 (process {pids[0]}) is stopped"


def test_where_nobody_waits_nobody_is_named() -> None:
    with children(compute, compute) as pids:
        assert find_awaited([os.getpid()], pids) == ""


def test_who_waits_for_a_message_is_not_awaited() -> None:
    """However it does that: an engine for a rank of another node, a rank for its engine."""

    def receive() -> None:
        ours, _theirs = socket.socketpair()
        ours.recv(1)

    with children(RemoteInbox().get, receive, compute) as pids:
        found = find_awaited([os.getpid()], pids)
    assert f"rank 2 (process {pids[2]})" in found
    assert "rank 0" not in found and "rank 1" not in found


def test_several_machines_are_one_picture() -> None:
    """Who is missing on one is awaited where somebody waits on any; who is stopped comes first."""
    waits, misses = RankStates([], [], waits=True), RankStates([], ["rank 3"], waits=False)
    assert describe_awaited([misses]) == describe_awaited([waits]) == ""
    assert describe_awaited([waits, misses]) == "rank 3 does not come where others wait"
    stopped = RankStates(["rank 1", "rank 2"], [], waits=True)
    assert describe_awaited([misses, stopped]) == "rank 1, rank 2 are stopped"


def test_one_process_is_asked_for() -> None:
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        assert not is_stopped(sleeper.pid)
        sleeper.send_signal(signal.SIGSTOP)
        deadline = time.monotonic() + 5
        while not is_stopped(sleeper.pid) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert is_stopped(sleeper.pid)
        sleeper.kill()
    assert not is_stopped(sleeper.pid)
