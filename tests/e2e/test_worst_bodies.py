"""Every route's worst bodies beside a stream: it goes on, and the frontend stays small."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from running_server import RunningServer
from worst_bodies import LEGAL, illegal_bodies, routes_with_bodies

from vivace.protocol.tasks import Embed, Generate, Task
from vivace.server.route import Route

LENGTH = 1 << 20
"""Of the illegal bodies; what is refused early costs the same at 16 MiB, only the transfer not."""
LONGEST_GAP = 0.25
"""Seconds between two events of the canary, in the best of TRIES, where the machine is idle."""
QUIET_GAPS = 4
"""So many of the canary's pauses without any body are allowed too: the machine may be loaded."""
QUIET_SECONDS = 0.5
TRIES = 4
OF_HEADS = ("classify", "rerank")
"""ends of paths that want a head of the model's, where it does not generate"""
MOST_MEMORY = 150 << 20
CANARY = {"text": "canary", "sampling_params": {"max_new_tokens": 2000, "ignore_eos": True}}


def streamed(server: RunningServer) -> Iterator[object]:
    """The events of one stream after the other."""
    while True:
        yield from server.stream("/generate", CANARY)


def answered(server: RunningServer) -> Iterator[object]:
    """One answer after the other that needs no engine: beside a batch that keeps it busy."""
    connection = server._connection(120.0)
    while True:
        connection.request("GET", "/v1/models")
        yield connection.getresponse().read()
        time.sleep(0.002)


class Canary:
    """Reads events and notes the longest pause between two of them."""

    def __init__(self, events: Iterator[object]) -> None:
        self._events = events
        self._stop = threading.Event()
        self._last = 0.0
        self._longest = 0.0
        self.events = 0
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        for _ in self._events:
            now = time.monotonic()
            if self._last:
                self._longest = max(self._longest, now - self._last)
            self._last = now
            self.events += 1
            if self._stop.is_set():
                return

    def gap_while(self, act: Any) -> float:
        """The longest pause while `act` runs."""
        seen = self.events
        self._longest = 0.0
        act()
        deadline = time.monotonic() + 30
        while self.events < seen + 2 and time.monotonic() < deadline:
            time.sleep(0.001)  # the pause is over when the next event is there
        return self._longest

    def stop(self) -> None:
        self._stop.set()
        self.thread.join(30)


@pytest.fixture(scope="module", params=[Generate, Embed])
def task(request: pytest.FixtureRequest) -> type[Task]:
    """What the server is for."""
    return request.param


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, task: type[Task]) -> Iterator[RunningServer]:
    log = tmp_path_factory.mktemp("worst") / "log"
    environment = {"VIVACE_EXECUTOR": "oracle:0.002"}
    flags = ("--log-level", "warning", "--max-queued-requests", "4096")
    flags = (*flags, "--is-embedding") if task is Embed else flags
    with RunningServer(*flags, environment=environment, log=log) as running:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            try:
                if running.call("GET", "/health")[0] == 200:
                    break
            except OSError:
                time.sleep(0.1)
        yield running


def frontend_pid(server: RunningServer) -> int:
    return next(pid for role, pid in server.children().items() if role.startswith("frontend"))


def memory(pid: int, name: str) -> int:
    """Bytes, by a field of /proc/PID/status."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) << 10
    raise AssertionError(name)


def post(server: RunningServer, route: Route, body: bytes) -> tuple[int, bytes]:
    """The answer; (0, b"") when the server closed the connection on the rest of the body."""
    connection = server._connection(120.0)
    try:
        connection.request("POST", route.path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read()
    except (BrokenPipeError, ConnectionResetError):
        return 0, b""
    finally:
        connection.close()


@pytest.mark.parametrize("route", routes_with_bodies(), ids=lambda route: route.path)
def test_the_worst_bodies_of_a_route_do_not_stop_a_stream(
    server: RunningServer, task: type[Task], route: Route
) -> None:
    skip_others(route, task)
    bodies = [(name, body, 400) for name, body in illegal_bodies(route, LENGTH)]
    canary = streamed(server) if task is Generate else answered(server)
    watch(server, route, bodies, Canary(canary))


def skip_others(route: Route, task: type[Task]) -> None:
    if not issubclass(task, route.task or Generate):
        pytest.skip("this server is for something else")


@pytest.mark.parametrize("route", routes_with_bodies(), ids=lambda route: route.path)
def test_the_largest_good_bodies_do_not_stop_others(
    server: RunningServer, task: type[Task], route: Route
) -> None:
    skip_others(route, task)
    if task is Embed and route.path.rpartition("/")[2] in OF_HEADS:
        pytest.skip("the model of this server makes vectors")
    bodies = [
        (f"legal {number}", json.dumps(body).encode(), 200)
        for number, body in enumerate(LEGAL[route.accepts])
    ]
    if not bodies:
        pytest.skip("this server has no good answer to give there")
    watch(server, route, bodies, Canary(answered(server)))


def watch(
    server: RunningServer, route: Route, bodies: list[tuple[str, bytes, int]], canary: Canary
) -> None:
    """Send the bodies; what every try of one did wrong is a finding."""
    pid = frontend_pid(server)
    found: list[str] = []
    try:
        for name, body, status in bodies:
            problem = ""
            for _ in range(TRIES):
                problem = check(server, route, canary, pid, body, status)
                if not problem:
                    break
            if problem:
                found.append(f"{name} ({len(body)} bytes): {problem}")
    finally:
        canary.stop()
    assert not found, "\n".join(found)
    assert frontend_pid(server) == pid
    assert canary.events > 1


def check(
    server: RunningServer, route: Route, canary: Canary, pid: int, body: bytes, status: int
) -> str:
    """What one body did that it may not do; "" for nothing."""
    answers: list[tuple[int, bytes]] = []
    Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak begins here
    before = memory(pid, "VmRSS")
    started = time.monotonic()
    gap = canary.gap_while(lambda: answers.append(post(server, route, body)))
    grown = memory(pid, "VmHWM") - before
    if gap > LONGEST_GAP:
        seconds = max(QUIET_SECONDS, time.monotonic() - started)
        quiet = canary.gap_while(lambda: time.sleep(seconds))
        if gap > QUIET_GAPS * quiet:
            return f"the canary paused for {gap:.2f} s, without a body for {quiet:.2f} s"
    if grown > MOST_MEMORY:
        return f"the frontend grew by {grown >> 20} MiB"
    answer, text = answers[0]
    if (status == 200 and answer != 200) or (status == 400 and answer not in (0, 200, 400, 413)):
        return f"answered {answer}: {text[:300]!r}"
    return ""
