"""The supervisor with small fake children: starts, deaths, watchdog, signals, no orphans."""

from __future__ import annotations

import errno
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from vivace.config.child_process import STOPPING
from vivace.errors import CANNOT_START
from vivace.protocol.listening_socket import listen, new_socket
from vivace.protocol.messages import Capacity
from vivace.protocol.shared_memory import new_descriptor, reserve
from vivace.supervisor.child import FAILED, Child, OutOfMemory, Role, spawn
from vivace.supervisor.shared_layers import LinkFiles
from vivace.supervisor.signals import SAME_SIGNAL_SECONDS
from vivace.supervisor.supervisor import STOP_GRACE_SECONDS, Hooks, Plan, Supervisor

FAKE = Path(__file__).with_name("fake_child.py")


def fake_command(role: Role, control: int) -> list[str]:
    return [sys.executable, str(FAKE), role, "--control", str(control)]


@dataclass
class Server:
    """Runs a supervisor in this (main) thread; `when_ready` runs in another. Several engines share
    layers."""

    folder: Path
    listener: socket.socket
    ready: list[Capacity] = field(default_factory=list)
    stages: list[str] = field(default_factory=list)
    farewells: list[tuple[set[int], str, int]] = field(default_factory=list)

    def run(
        self,
        script: dict,
        *,
        frontends: int = 1,
        engines: int = 1,
        when_ready: Callable[[], None] | None = None,
        **options: object,
    ) -> int:
        settings: dict = {"warm_up": True, "watchdog": None, "soft_watchdog": None, **options}
        plan = Plan(
            config=json.dumps({**script, "folder": str(self.folder)}).encode(),
            frontends=frontends,
            listener=self.listener,
            engines=[listen(new_socket()) for _ in range(engines)],
            memory=reserve(new_descriptor(), frontends, engines),
            link=LinkFiles(engines) if engines > 1 else None,
            command=fake_command,
            tick=0.05,
            **settings,
        )

        signaler = threading.Thread(target=when_ready or str, daemon=True)

        def show(capacity: Capacity, _tools: Sequence[str]) -> None:
            self.ready.append(capacity)
            signaler.start()

        hooks = Hooks(
            progress=lambda stage, _: self.stages.append(stage),
            ready=lambda: self.say_ready(),
            show=show,
            farewell=lambda nodes, *end: self.farewells.append((set(nodes), *end)),
        )
        with late_signals_end_nothing():
            try:
                return Supervisor(plan, hooks).run()
            finally:
                if signaler.ident is not None:
                    signaler.join(timeout=60)

    def say_ready(self) -> None:
        """What the log says then."""

    def events(self) -> list[str]:
        path = self.folder / "events"
        return path.read_text().splitlines() if path.exists() else []

    def wait_for(self, *texts: str) -> None:
        """Until every text has been seen in the events."""
        deadline = time.monotonic() + 30
        while not all(any(text in line for line in self.events()) for text in texts):
            assert time.monotonic() < deadline, (texts, self.events())
            time.sleep(0.02)

    def wait_for_told(self, who: str, text: str) -> None:
        deadline = time.monotonic() + 30
        while text not in self.told(who):
            assert time.monotonic() < deadline, (who, text, self.events())
            time.sleep(0.02)

    def told(self, who: str) -> list[str]:
        found = [line.split(" ", 3) for line in self.events()]
        return [text for role, number, _, text in found if f"{role} {number}" == who]

    def pids(self) -> list[int]:
        return sorted({int(line.split()[2]) for line in self.events()})


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        server = Server(tmp_path, listener)
        yield server
        assert [pid for pid in server.pids() if is_alive(pid)] == []


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@contextmanager
def late_signals_end_nothing() -> Iterator[None]:
    """On a busy machine a signal of `when_ready` may come when the supervisor handles them no more:
    without a handler it would end the process that tests."""
    before = {number: signal.signal(number, lambda *_: None) for number in STOPPING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def stop() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def test_start_warm_up_drain_stop(server: Server) -> None:
    assert server.run({}, frontends=2, when_ready=stop) == 0
    assert len(server.ready) == 1 and server.stages == ["Loading", "Warming up"]
    assert server.told("frontend 0") == [
        "start",
        "Ready 0",
        "WarmUp",
        "Started",
        "Draining",
        "Stop",
    ]
    assert server.told("frontend 1") == ["start", "Ready 0", "Started", "Draining", "Stop"]
    assert server.told("engine 0") == ["start", "Command", "Stop"]


def test_frontends_hear_of_the_complete_start_after_the_log(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asks them, as `/ready` does, gets no other answer than who reads the log."""
    heard: list[str] = []

    def say_ready() -> None:
        time.sleep(0.3)  # time for what was sent before
        heard.extend(server.events())

    monkeypatch.setattr(server, "say_ready", say_ready)
    assert server.run({}, frontends=2, when_ready=stop) == 0
    assert "WarmUp" in str(heard) and "Started" not in str(heard)
    assert all("Started" in server.told(f"frontend {index}") for index in range(2))


def test_without_warm_up(server: Server) -> None:
    assert server.run({}, warm_up=False, when_ready=stop) == 0
    assert "WarmUp" not in server.told("frontend 0")


@pytest.mark.parametrize(("act", "code"), [("cold", 1), ("bad-model", 2)])
def test_a_failed_warm_up_ends_the_start(
    server: Server, caplog: pytest.LogCaptureFixture, act: str, code: int
) -> None:
    assert server.run({"frontend": {"0": act}}) == code
    assert "the warm-up request failed: NaN" in caplog.text


@pytest.mark.parametrize("role", ["engine", "frontend"])
def test_a_failed_start_is_not_tried_again(
    server: Server, caplog: pytest.LogCaptureFixture, role: str
) -> None:
    assert server.run({role: {"0": "fail-start"}}) == 1
    assert "ValueError: no such tensor (exit code 1)" in caplog.text
    assert server.told(f"{role} 1") == [] and server.ready == []


def test_a_start_that_has_lost_a_node_is_tried_again(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    assert server.run({"engine": {"0": "lose-node"}}, when_ready=stop) == 0
    assert "The engine died: NodeGone: node 1 was stopped" in caplog.text
    told = server.told("frontend 0")
    assert told.index("EngineDown") < told.index("Ready 1")


def test_who_is_stopped_while_it_starts_is_named_and_ended(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    assert server.run({"engine": {"0": "stop-itself"}}, watchdog=2.0) == FAILED
    told = [record.getMessage() for record in caplog.records]
    assert sum("While the engine starts" in line and "is stopped" in line for line in told) == 1
    assert "did not start" in told[-1] and told[-1].endswith("is stopped")


@pytest.mark.parametrize("ends", [True, False])
def test_nodes_hear_that_no_engine_follows_where_none_could_say_so(
    server: Server, ends: bool
) -> None:
    """An engine that is told to end has told them."""
    script: dict[str, Any] = {"engine": {"*": "node-joins" if ends else ""}}
    if ends:
        assert server.run(script, crashes=1) == FAILED
        ((nodes, cause, code),) = server.farewells
        assert (nodes, code) == ({1}, FAILED) and "more than 1 deaths" in cause
    else:
        assert server.run(script, when_ready=stop) == 0
        assert server.farewells == []


def test_nodes_hear_what_a_server_ends_of_whose_engine_lives(server: Server) -> None:
    """It has told them, and they call again: there is nothing to call."""
    script = {"engine": {"0": "node-joins-and-stays"}, "frontend": {"0": "cold"}}
    assert server.run(script) == FAILED
    ((nodes, cause, code),) = server.farewells
    assert (nodes, code) == ({1}, FAILED) and "NaN" in cause
    assert server.told("engine 0")[-1] == f"Stop {cause}"


def test_a_start_without_memory_is_told_with_its_stage(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    def advice(lack: OutOfMemory) -> str:
        return f"advice for {lack.role}"

    assert server.run({"engine": {"0": "no-memory"}}, memory_advice=advice) == 1
    assert "no memory at the start (Capturing decode steps): advice for engine" in caplog.text


def test_frontends_that_serve_are_told_of_a_failed_start(server: Server) -> None:
    """They answer who waits for the engine; then they stop."""
    script = {"engine": {"0": "fail-when-served"}, "frontend": {"0": "tell-serving"}}
    assert server.run(script, frontends=2) == 1
    assert server.told("frontend 0")[-2:] == ["EngineDown", "Stop"]
    assert server.ready == []


def test_an_engine_that_was_ready_and_died_in_the_start_is_replaced(server: Server) -> None:
    """What it died of may be a request that waited for it: that must not end the server."""
    script = {"engine": {"0": "exit-while-warming"}, "frontend": {"0": "slow-warm"}}
    assert server.run(script, when_ready=stop) == 0
    told = server.told("frontend 0")
    assert told.index("EngineDown") < told.index("Ready 1")
    assert len(server.ready) == 1


@pytest.mark.parametrize("role", ["engine", "frontend"])
def test_what_the_user_can_put_right_ends_a_start_in_one_line(
    server: Server, caplog: pytest.LogCaptureFixture, role: str
) -> None:
    assert server.run({role: {"0": "wrong-input"}}) == CANNOT_START
    (told,) = (r.getMessage() for r in caplog.records if r.levelname == "ERROR")
    assert told.endswith("did not start: toy.gguf: truncated")
    assert server.ready == []


@pytest.mark.parametrize(("act", "cause"), [("exit", "exit code 7"), ("kill", "SIGKILL")])
def test_a_dead_engine_is_replaced(
    server: Server, caplog: pytest.LogCaptureFixture, act: str, cause: str
) -> None:
    def wait_and_stop() -> None:
        server.wait_for("Ready 1")
        stop()

    assert server.run({"engine": {"0": act}}, when_ready=wait_and_stop) == 0
    told = server.told("frontend 0")
    assert told[told.index("EngineDown") + 1] == "Ready 1"
    assert cause in caplog.text and "1 of 3 restarts spent" in caplog.text


@pytest.mark.parametrize("role", ["engine", "frontend"])
def test_nothing_is_started_again_with_other_files(
    server: Server, caplog: pytest.LogCaptureFixture, role: str
) -> None:
    def changed_files() -> str:
        return "toy.gguf was changed"

    assert server.run({role: {"0": "exit"}}, changed_files=changed_files) == FAILED
    (told,) = (r.getMessage() for r in caplog.records if r.levelname == "ERROR")
    assert told.endswith("died: exit code 7. toy.gguf was changed")
    assert len([line for line in server.events() if line.endswith(" start")]) == 2


@pytest.mark.parametrize("role", ["engine", "frontend"])
def test_what_read_other_files_while_it_started_does_not_serve(
    server: Server, caplog: pytest.LogCaptureFixture, role: str
) -> None:
    """They were the old ones when it was started."""

    def changed_files() -> str:
        starts = [line for line in server.events() if line.startswith(f"{role} 1 ")]
        return "toy.gguf was changed" if starts else ""

    assert server.run({role: {"0": "exit"}}, changed_files=changed_files) == FAILED
    told = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
    name = "engine" if role == "engine" else "frontend 1"
    assert told[-1] == f"The server stops: the {name} is not used. toy.gguf was changed"
    assert "Ready 1" not in server.told("frontend 0")
    assert len([line for line in server.events() if line.endswith(" start")]) == 3


def test_a_dead_frontend_is_replaced_under_a_new_index(server: Server) -> None:
    def wait_and_stop() -> None:
        server.wait_for("FrontendGone")
        server.wait_for_told("frontend 2", "Started")
        stop()

    assert server.run({"frontend": {"1": "kill"}}, frontends=2, when_ready=wait_and_stop) == 0
    assert server.told("frontend 2")[:2] == ["start", "Ready 0"]
    assert server.told("frontend 0")[-2:] == ["Draining", "Stop"]


def test_a_replaced_frontend_knows_the_engine_before_it_serves(server: Server) -> None:
    def kill_and_stop() -> None:
        pids = (line.split()[2] for line in server.events() if line.startswith("frontend 0 "))
        os.kill(int(next(pids)), signal.SIGKILL)
        server.wait_for("FrontendGone")
        server.wait_for_told("frontend 1", "Started")
        stop()

    script = {"frontend": {"1": "hear-first"}}
    assert server.run(script, when_ready=kill_and_stop) == 0
    assert server.told("frontend 1")[:3] == ["start", "Ready", "Started"]
    assert server.told("frontend 1")[-1] == "Stop"


def test_a_frontend_that_dies_warming_up_is_replaced(server: Server) -> None:
    assert server.run({"frontend": {"0": "die-warming"}}, when_ready=stop) == 0
    assert "WarmUp" in server.told("frontend 0") and "WarmUp" in server.told("frontend 1")


def test_too_many_deaths_end_the_server(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    assert server.run({"engine": {"*": "exit"}}, crashes=2) == 1
    assert len([line for line in server.events() if line.startswith("engine")]) >= 3
    assert "more than 2 deaths in 10 minutes" in caplog.text
    assert server.told("frontend 0")[-2:] == ["EngineDown", "Stop"]


def test_frontends_that_die_again_and_again_do_not_end_the_server(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """More often than the engine may; the other one goes on."""

    def kill_and_stop() -> None:
        for index in (1, 2, 3):
            server.wait_for(f"frontend {index} ")
            server.wait_for_told(f"frontend {index}", "Ready 0")
            pids = (line.split()[2] for line in server.events() if f"frontend {index} " in line)
            os.kill(int(next(pids)), signal.SIGKILL)
        server.wait_for_told("frontend 4", "Ready 0")
        stop()

    assert server.run({}, frontends=2, crashes=2, when_ready=kill_and_stop) == 0
    assert "Another one is started in 1 s" in caplog.text
    assert "EngineDown" not in server.told("frontend 0") and server.told("engine 1") == []


@pytest.mark.parametrize("role", ["engine", "frontend"])
def test_processes_that_cannot_be_started_now_are_started_later(
    server: Server, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, role: str
) -> None:
    """No memory, no process ids, no descriptors."""
    refusals: list[str] = []

    def refuse_twice(kind: Role, *rest: Any, **more: Any) -> Child:
        if server.ready and kind == role and len(refusals) < 2:
            refusals.append(kind)
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return spawn(kind, *rest, **more)

    monkeypatch.setattr("vivace.supervisor.plan.spawn", refuse_twice)

    def kill_and_stop() -> None:
        pids = (line.split()[2] for line in server.events() if line.startswith(f"{role} 0 "))
        os.kill(int(next(pids)), signal.SIGKILL)
        who = {"engine": ("frontend 0", "Ready 1"), "frontend": ("frontend 3", "Ready 0")}
        server.wait_for_told(*who[role])
        stop()

    assert server.run({}, when_ready=kill_and_stop) == 0
    assert caplog.text.count("can be started: Resource temporarily unavailable") == 2


@pytest.mark.parametrize("warm_up", [True, False])
def test_an_engine_that_is_ready_before_the_first_frontend(
    server: Server, monkeypatch: pytest.MonkeyPatch, warm_up: bool
) -> None:
    """The start is complete with a frontend, not without any."""

    def refuse_until_ready(kind: Role, *rest: Any, **more: Any) -> Child:
        if kind == "frontend" and not server.stages:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return spawn(kind, *rest, **more)

    monkeypatch.setattr("vivace.supervisor.plan.spawn", refuse_until_ready)
    assert server.run({}, warm_up=warm_up, when_ready=stop) == 0
    assert "Started" in str(server.events())


def test_frontends_that_never_come_to_serve_end_the_server(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    def kill() -> None:
        pids = (line.split()[2] for line in server.events() if line.startswith("frontend 0 "))
        os.kill(int(next(pids)), signal.SIGKILL)

    script = {"frontend": {str(index): "fail-start" for index in range(1, 9)}}
    assert server.run(script, crashes=9, when_ready=kill) == 1
    assert "No frontend can be started any more" in caplog.text


def test_a_frontend_whose_loop_does_not_turn_is_replaced(
    server: Server,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("vivace.supervisor.watch.FRONTEND_SOFT_SECONDS", 0.2)
    monkeypatch.setattr("vivace.supervisor.watch.FRONTEND_HARD_SECONDS", 0.5)

    def wait_and_stop() -> None:
        server.wait_for_told("frontend 2", "Ready 0")
        stop()

    script = {"frontend": {"1": "hang"}}
    assert server.run(script, frontends=2, when_ready=wait_and_stop) == 0
    assert "The frontend 1 has made no progress" in caplog.text
    assert "The frontend 1 died: it made no progress" in caplog.text
    assert "most recent call first" in capfd.readouterr().err
    assert server.told("frontend 0")[-1] == "Stop", "the other one went on"


def test_a_request_that_kills_engines_is_found(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """Three of them, two deaths each, with a budget of two unexplained deaths."""

    def wait_and_stop() -> None:
        (server.folder / "go").touch()
        server.wait_for_told("frontend 0", "Ready 6")
        stop()

    keys = {"0": [7, 8], "1": [7], "2": [9, 8], "3": [9], "4": [8, 5], "5": [8]}
    script = {"engine": {number: f"die-with {found}" for number, found in keys.items()}}
    assert server.run(script, crashes=2, when_ready=wait_and_stop) == 0
    refused = [
        text.split()[1:] for text in server.told("frontend 0") if text.startswith("EngineDown")
    ]
    assert refused == [["[]"], ["[7]"], ["[]"], ["[9]"], ["[]"], ["[8]"]]
    assert caplog.text.count("One request is found to kill engines") == 3


def test_a_stuck_engine_dumps_its_stacks_and_is_replaced(
    server: Server, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    def wait_and_stop() -> None:
        server.wait_for("Ready 1")
        stop()

    options: dict[str, Any] = {"watchdog": 0.3, "soft_watchdog": 0.1}
    assert server.run({"engine": {"0": "hang"}}, when_ready=wait_and_stop, **options) == 0
    assert "no progress for" in caplog.text
    assert "most recent call first" in capfd.readouterr().err


@pytest.mark.parametrize("answering", ["0", "01"])
def test_a_second_signal_stops_at_once_and_says_what_it_cuts(
    server: Server, caplog: pytest.LogCaptureFixture, answering: str
) -> None:
    def stop_twice() -> None:
        stop()
        for number in answering:
            server.wait_for_told(f"frontend {number}", "LiveRequests")
        time.sleep(SAME_SIGNAL_SECONDS + 0.1)
        os.kill(os.getpid(), signal.SIGINT)

    script = {"engine": {"0": "busy"}, "frontend": dict.fromkeys(answering, "answering")}
    code = server.run(script, frontends=2, when_ready=stop_twice, drain=60.0)
    assert code == 128 + signal.SIGINT
    (line,) = (text for text in caplog.messages if text.startswith("SIGINT"))
    assert line.endswith(f" {3 * len(answering)}")


def test_sigquit_waits_for_no_request(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    def quit_at_once() -> None:
        os.kill(os.getpid(), signal.SIGQUIT)

    script = {"engine": {"0": "busy"}, "frontend": {"0": "answering"}}
    code = server.run(script, when_ready=quit_at_once, drain=600.0)
    assert code == 128 + signal.SIGQUIT
    (line,) = (text for text in caplog.messages if text.startswith("SIGQUIT"))
    assert "; " in line  # what is cut off


def test_sigquit_is_heard_right_behind_another_signal(server: Server) -> None:
    def stop_and_quit() -> None:
        stop()
        os.kill(os.getpid(), signal.SIGQUIT)

    script = {"engine": {"0": "busy"}, "frontend": {"0": "answering"}}
    code = server.run(script, when_ready=stop_and_quit, drain=600.0)
    assert code == 128 + signal.SIGQUIT


def test_a_doubled_signal_is_one_wish(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vivace.supervisor.signals.SAME_SIGNAL_SECONDS", 60.0)

    def stop_doubly() -> None:
        stop()
        stop()

    assert server.run({}, when_ready=stop_doubly) == 0


def test_draining_has_an_end(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    assert server.run({"engine": {"0": "busy"}}, when_ready=stop, drain=-0.8) == 0
    assert "did not drain within the limit" in caplog.text


@pytest.mark.parametrize(("engine", "stuck"), [("busy", True), ("at-work", False)])
def test_only_an_engine_that_gets_on_is_waited_for(
    server: Server,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    engine: str,
    stuck: bool,
) -> None:
    """One that rested when it was stopped, so that it does not hear that it is to drain, too."""
    monkeypatch.setattr("vivace.protocol.heartbeat.MIN_ALLOWANCE", 0.5)
    monkeypatch.setattr("vivace.supervisor.watch.STALL_GRACE_SECONDS", 0.3)
    drain = 60.0 if stuck else 2.0
    code = server.run({"engine": {"0": engine}}, when_ready=stop, drain=drain)
    assert code == (1 if stuck else 0)
    assert ("it made no progress while requests were drained" in caplog.text) == stuck
    assert ("did not drain within the limit" in caplog.text) != stuck


@pytest.mark.parametrize("waits", [False, True])
def test_an_engine_that_dies_while_draining_is_replaced_if_needed(
    server: Server, waits: bool
) -> None:
    def kill_engine() -> None:
        stop()
        server.wait_for("Command", "Draining")
        engine = next(line for line in server.events() if line.startswith("engine"))
        time.sleep(0.2)
        os.kill(int(engine.split()[2]), signal.SIGKILL)

    script = {"engine": {"0": "busy"}, "frontend": {"0": "waiting"} if waits else {}}
    assert server.run(script, when_ready=kill_engine) == 0
    assert "EngineDown" in server.told("frontend 0")
    assert ("Command" in server.told("engine 1")) == waits


@pytest.mark.parametrize("answers", [False, True])
def test_a_frontend_that_dies_while_draining_ends_its_requests(
    server: Server, caplog: pytest.LogCaptureFixture, answers: bool
) -> None:
    """Nobody can answer them any more: the log says how many, and the exit code that it failed."""

    def kill_frontend() -> None:
        stop()
        server.wait_for("LiveRequests" if answers else "Draining")
        time.sleep(0.2)  # until that is read
        frontend = next(line for line in server.events() if line.startswith("frontend 0"))
        os.kill(int(frontend.split()[2]), signal.SIGKILL)

    script = {"engine": {"0": "busy"}, "frontend": {"0": "answering"} if answers else {}}
    code = server.run(script, when_ready=kill_frontend, drain=2.0)
    assert code == (1 if answers else 0)
    (line,) = (text for text in caplog.messages if "frontend 0 died" in text)
    assert line.endswith(": 3") == answers


@pytest.mark.parametrize("waits", [False, True])
def test_a_stop_while_an_engine_starts_again(server: Server, waits: bool) -> None:
    """It is waited for, and drained when it is ready, if a frontend has requests for it."""

    def stop_then() -> None:
        server.wait_for("engine 1 ")
        stop()

    script = {
        "engine": {"0": "exit-when-started", "1": "start-when-drained" if waits else "never-start"},
        "frontend": {"1": "waiting"} if waits else {},
    }
    assert server.run(script, frontends=2, when_ready=stop_then) == 0
    assert server.told("engine 1") == (["start", "Command", "Stop"] if waits else ["start"])
    told = server.told("frontend 0")
    assert told[told.index("EngineDown") :] == [
        *("EngineDown", "Draining"),
        *(["Ready 1"] if waits else []),
        "Stop",
    ]


def test_an_engine_whose_last_step_waits_for_one_that_has_stopped_is_ended(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They share layers, and do not hear at the same moment that they are to stop."""
    monkeypatch.setattr("vivace.supervisor.supervisor.LAST_STEP_SECONDS", 0.1)
    ended: list[float] = []

    def stop_now() -> None:
        ended.append(time.monotonic())
        stop()

    assert server.run({"engine": {"1": "deaf"}}, engines=2, when_ready=stop_now) == 0
    assert server.told("engine 1")[-1] == "Stop"
    assert time.monotonic() < ended[0] + STOP_GRACE_SECONDS


def test_an_engine_that_dies_last_takes_no_time_from_frontends(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have all tokens, and send them to clients that may be slow."""
    monkeypatch.setattr("vivace.supervisor.supervisor.LAST_STEP_SECONDS", 0.0)
    monkeypatch.setattr("vivace.supervisor.supervisor.STOP_GRACE_SECONDS", -1.0)
    begun: list[float] = []

    def stop_now() -> None:
        begun.append(time.monotonic())
        stop()

    script = {"engine": {"0": "exit-when-stopped"}, "frontend": {"0": "deaf"}}
    assert server.run(script, engines=2, when_ready=stop_now) == 0
    assert time.monotonic() > begun[0] + 0.9


SUPERVISE = """
import socket, sys
from pathlib import Path
sys.path.insert(0, {folder!r})
from test_supervisor import Server
with socket.socket() as listener:
    listener.bind(("127.0.0.1", 0)); listener.listen()
    Server(Path({events!r}), listener).run({{}}, frontends=2)
"""


def test_children_vanish_with_the_supervisor(server: Server) -> None:
    code = SUPERVISE.format(folder=str(FAKE.parent), events=str(server.folder))
    process = subprocess.Popen([sys.executable, "-c", code])
    server.wait_for("WarmUp")
    pids = server.pids()
    assert len(pids) == 3 and all(is_alive(pid) for pid in pids)
    process.kill()
    process.wait()
    deadline = time.monotonic() + 10
    while any(is_alive(pid) for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_signal_handlers_are_given_back(server: Server) -> None:
    before = signal.getsignal(signal.SIGTERM)
    server.run({}, when_ready=stop)
    assert signal.getsignal(signal.SIGTERM) is before
    logging.getLogger(__name__).debug("still alive")
