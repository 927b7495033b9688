"""What processes tell each other through shared memory: at work, idle, stalled, dead."""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys

import pytest

from vivace.protocol.heartbeat import (
    IDLE,
    MAX_SPANS,
    MIN_ALLOWANCE,
    SECOND,
    STEPPING,
    EngineHeartbeat,
    EngineProgress,
    FrontendHeartbeat,
    Span,
)
from vivace.protocol.messages import Capacity
from vivace.protocol.shared_memory import SharedMemory, attach, new_descriptor, reserve, size_for
from vivace.system_calls import fix_size

CAPACITY = Capacity(pages=8, page_size=16, rows=4, context=64, vocabulary=100)
HOUR = 3600 * SECOND


@pytest.fixture
def memory() -> SharedMemory:
    return reserve(new_descriptor(), 2)


# -- the memory ------------------------------------------------------------------------------------


def test_the_memory_is_reserved_and_cannot_shrink(memory: SharedMemory) -> None:
    """A page that is not there, or not there any more, is a SIGBUS."""
    status = os.fstat(memory.descriptor)
    assert status.st_size == size_for(2, 1) and status.st_blocks * 512 >= status.st_size
    for size in (0, status.st_size - mmap.PAGESIZE, 2 * status.st_size):
        with pytest.raises(PermissionError):
            os.ftruncate(memory.descriptor, size)
    with pytest.raises(PermissionError):
        fix_size(memory.descriptor)  # nor is that taken back


def test_places_do_not_overlap(memory: SharedMemory) -> None:
    other = attach(memory.descriptor)
    assert other.places == 2
    parts = [
        memory.engine(),
        *(part(p) for p in (0, 1) for part in (memory.heartbeat, memory.counters)),
    ]
    for number, part in enumerate(parts):
        part[:] = bytes([number + 1]) * len(part)
    again = [
        other.engine(),
        *(part(p) for p in (0, 1) for part in (other.heartbeat, other.counters)),
    ]
    for number, part in enumerate(again):
        assert bytes(part) == bytes([number + 1]) * len(part)
    with pytest.raises(ValueError, match="place 2"):
        memory.heartbeat(2)


def test_a_foreign_descriptor_is_refused() -> None:
    with pytest.raises(ValueError, match="memory"):
        attach(new_descriptor())


OTHER = """
import os, signal, sys
from vivace.protocol.heartbeat import EngineHeartbeat, Span
from vivace.protocol.shared_memory import attach
heartbeat = EngineHeartbeat(attach(int(sys.argv[1])).engine())
heartbeat.begin()
heartbeat.step(7, 3, 0.5, [Span(11, 5), Span(12, 7)])
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_engine_was_at_can_be_read(memory: SharedMemory) -> None:
    done = subprocess.run(
        [sys.executable, "-c", OTHER, str(memory.descriptor)],
        pass_fds=[memory.descriptor],
        timeout=60,
    )
    assert done.returncode == -signal.SIGKILL
    heartbeat = EngineHeartbeat(memory.engine())
    assert heartbeat.fatal_spans() == (7, [Span(11, 5), Span(12, 7)])
    assert heartbeat.read().kind == STEPPING and heartbeat.read().tokens == 3
    EngineHeartbeat(memory.engine()).begin()
    assert heartbeat.fatal_spans()[1] == []


def test_only_a_step_has_spans(memory: SharedMemory) -> None:
    heartbeat = EngineHeartbeat(memory.engine())
    heartbeat.begin()
    heartbeat.step(1, 9, 1.0, (Span(key, 1) for key in range(MAX_SPANS + 50)))
    assert len(heartbeat.fatal_spans()[1]) == MAX_SPANS
    for beat in (heartbeat.schedule, heartbeat.idle):
        beat()
        assert heartbeat.fatal_spans()[1] == []


BUSY = """
import sys
from vivace.protocol.heartbeat import IDLE, STEPPING, EngineHeartbeat, FrontendHeartbeat
from vivace.protocol.shared_memory import attach
memory = attach(int(sys.argv[1]))
engine, frontend = EngineHeartbeat(memory.engine()), FrontendHeartbeat(memory.heartbeat(0))
engine.begin()
frontend.begin()
print("at work", flush=True)
while True:
    for number in (1, 2):
        engine.repeat_step(number, 9, 2.0)
        engine.idle()
    frontend.beat()
    frontend.mark_sent()
"""


def test_whoever_looks_while_another_process_writes_sees_one_state(memory: SharedMemory) -> None:
    """`struct.pack_into` clears its place first: an engine at work looked stalled since the machine
    was started, to one look in 25,000, and /health_generate said so."""
    command = [sys.executable, "-c", BUSY, str(memory.descriptor)]
    heartbeat, frontend = EngineHeartbeat(memory.engine()), FrontendHeartbeat(memory.heartbeat(0))
    with subprocess.Popen(
        command, pass_fds=[memory.descriptor], stdout=subprocess.PIPE, text=True
    ) as busy:
        try:
            assert busy.stdout is not None and busy.stdout.readline()
            began, beats = heartbeat.read().since, 0
            for look in range(100_000):
                if look == 99_000:
                    busy.send_signal(signal.SIGSTOP)  # wherever it is
                seen = heartbeat.read()
                assert (seen.kind, seen.allowance, seen.tokens) in (
                    (IDLE, 0, 0),
                    (STEPPING, 2 * SECOND, 9),
                )
                assert seen.since >= began and seen.beats >= beats
                assert frontend.alive and frontend.last_sent() >= 0
                began, beats = seen.since, seen.beats
        finally:
            busy.kill()


# -- stalls ----------------------------------------------------------------------------------------


def since(memory: SharedMemory) -> int:
    return EngineHeartbeat(memory.engine()).read().since


def test_a_step_may_take_what_it_was_allowed(memory: SharedMemory) -> None:
    heartbeat, progress = EngineHeartbeat(memory.engine()), EngineProgress(memory)
    heartbeat.begin()
    assert progress.stall(since(memory) + HOUR) == "", "it rests"
    heartbeat.step(1, 1024, 90.0, [])
    assert progress.stall(since(memory) + 89 * SECOND) == ""
    text = progress.stall(since(memory) + 91 * SECOND)
    assert "no progress for 91.0 s in a step of 1024 tokens (allowed: 90.0 s)" in text
    heartbeat.schedule()
    assert progress.stall(since(memory) + SECOND) == ""
    assert "between two steps" in progress.stall(since(memory) + 3 * SECOND)


def test_an_engine_that_does_not_read_its_messages_is_stalled(memory: SharedMemory) -> None:
    heartbeat, progress = EngineHeartbeat(memory.engine()), EngineProgress(memory)
    FrontendHeartbeat(memory.heartbeat(1)).begin()
    heartbeat.begin()
    FrontendHeartbeat(memory.heartbeat(1)).mark_sent()
    sent = FrontendHeartbeat(memory.heartbeat(1)).last_sent()
    assert progress.stall(sent + int((MIN_ALLOWANCE - 0.1) * SECOND)) == ""
    assert progress.stall(sent + 3 * SECOND)
    assert progress.activity().kind != IDLE, "so the watchdog counts this time"
    heartbeat.schedule()
    heartbeat.idle()
    assert progress.stall(since(memory) + HOUR) == ""
