"""Counters that several processes add to, each in its own place, and that survive their deaths."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vivace.protocol.heartbeat import FrontendHeartbeat
from vivace.protocol.shared_memory import COUNTER_BYTES, new_descriptor, reserve
from vivace.server.http_metrics import METHODS, OTHER, Counters, HttpMetrics, read_counts
from vivace.server.routes import ROUTES

NAMES = st.tuples(st.text(st.characters(exclude_categories=["Cs"]), max_size=9), st.text("ab/"))
OTHER_PROCESS = """
import sys, time
from vivace.protocol.heartbeat import FrontendHeartbeat
from vivace.protocol.shared_memory import attach
from vivace.server.http_metrics import HttpMetrics
memory = attach(int(sys.argv[1]))
FrontendHeartbeat(memory.heartbeat(1)).begin()
metrics = HttpMetrics(memory, 1)
for _ in range(3):
    metrics.end(metrics.begin("/generate", "POST"), 200)
metrics.begin("/generate", "POST")
print("counted", flush=True)
time.sleep(60)
"""


@given(st.lists(st.tuples(NAMES, st.integers(-5, 5)), max_size=40))
def test_counts_are_the_sums_of_what_was_added(steps: list[tuple[tuple[str, str], int]]) -> None:
    memory = bytearray(COUNTER_BYTES)
    counters = Counters(memory)
    wanted: dict[tuple[str, str], int] = {}
    for number, (key, amount) in enumerate(steps):
        if number == 20:
            counters = Counters(memory)  # a successor in the same place
        counters.add(key, amount)
        wanted[key] = wanted.get(key, 0) + amount
    assert dict(counters.counts()) == dict(read_counts(memoryview(memory))) == wanted


def test_full_memory_counts_what_it_has_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    counters = Counters(bytearray(1000))
    keys = [("x" * 100, str(number)) for number in range(20)]
    with caplog.at_level(logging.ERROR):
        for key in keys * 2:
            counters.add(key)
    counts = counters.counts()
    assert 5 < len(counts) < 10 and set(counts.values()) == {2}
    assert len(caplog.records) == 1


def test_there_is_room_for_every_label_there_can_be() -> None:
    """With a root path of 100 characters, every method and thirty statuses."""
    metrics = HttpMetrics()
    paths = {prefix + route.path for route in ROUTES for prefix in ("", "/" + "r" * 99)}
    methods = {
        path: {m for route in ROUTES if path.endswith(route.path) for m in route.methods}
        for path in paths
    }
    places = [(path, method) for path in paths for method in methods[path]]
    places += [(OTHER, method) for method in {*METHODS, OTHER}]
    for (path, method), status in product(places, range(400, 420)):
        metrics.end(metrics.begin(path, method), status)
    responses = [key for key in metrics.totals() if key[0] == "responses"]
    assert len(responses) == 20 * len(places)


def test_the_counts_of_a_killed_process_stay_and_its_activity_ends() -> None:
    memory = reserve(new_descriptor(), 2)
    mine = HttpMetrics(memory, 0)
    label = mine.begin("/generate", "POST")
    place = ("/generate", "POST")
    command = [sys.executable, "-c", OTHER_PROCESS, str(memory.descriptor)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, pass_fds=[memory.descriptor]) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"counted\n"
        while_alive = mine.totals()
        other.send_signal(signal.SIGKILL)
    FrontendHeartbeat(memory.heartbeat(1)).end()  # as the supervisor does
    mine.end(label, 503)
    after = mine.totals()
    assert while_alive[("active", *place)] == 2
    assert after[("active", *place)] == 0
    assert while_alive[("requests", *place)] == after[("requests", *place)] == 5
    assert after[("responses", *place, "200")] == 3
    assert after[("responses", *place, "503")] == 1
    FrontendHeartbeat(memory.heartbeat(1)).begin()
    successor = HttpMetrics(memory, 1)
    assert successor.totals()[("active", *place)] == mine.totals()[("active", *place)] == 0
    assert successor.totals()[("requests", *place)] == 5


COUNTING = """
import sys
from vivace.protocol.shared_memory import attach
from vivace.server.http_metrics import Counters
counters = Counters(attach(int(sys.argv[1])).counters(0))
counters.add(("requests",))
print("at work", flush=True)
while True:
    counters.add(("requests",))
"""


def test_a_counter_never_falls_while_another_process_counts() -> None:
    """A scraper takes a number that falls for a restart, and counts all of it again."""
    memory = reserve(new_descriptor(), 1)
    command = [sys.executable, "-c", COUNTING, str(memory.descriptor)]
    with subprocess.Popen(
        command, pass_fds=[memory.descriptor], stdout=subprocess.PIPE, text=True
    ) as counting:
        try:
            assert counting.stdout is not None and counting.stdout.readline()
            last = 0
            for _ in range(100_000):
                count = read_counts(memory.counters(0))[("requests",)]
                assert count >= max(last, 1)
                last = count
        finally:
            counting.kill()
