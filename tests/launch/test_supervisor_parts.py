"""The parts of the supervisor on their own."""

from __future__ import annotations

import errno
import io
import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from descriptors import is_readable, opens_processes
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from vivace.commands.serve import configure
from vivace.config.child_process import STOPPING
from vivace.config.config import Config
from vivace.config.parsing import parse
from vivace.config.values import size_text
from vivace.doctor.port import shorten
from vivace.errors import CannotStart
from vivace.launch.faults import InjectedDeath, with_fault, with_frontend_fault
from vivace.launch.listen import PortInUse, bind, local_url
from vivace.launch.screen import PlainScreen
from vivace.launch.summary import build_summary, count_text, plain_lines
from vivace.observability.awaited_processes import list_processes
from vivace.observability.watchdog import PAUSE_SECONDS, Watchdog
from vivace.protocol.heartbeat import Span
from vivace.protocol.message_socket import SocketClosed
from vivace.protocol.messages import Capacity, Command, Drain, Ready, Rewrite
from vivace.supervisor.child import Child, describe_exit, kill_all, process_command, spawn
from vivace.supervisor.engines import AwaitedInquiry
from vivace.supervisor.ipc import child_end, supervisor_end
from vivace.supervisor.messages import Failure, Progress, Serving, Setup, Stop
from vivace.supervisor.restart_policy import Backoff, CrashAttribution, CrashBudget, RestartDecision
from vivace.supervisor.signals import handle_signals
from vivace.system_calls import open_process, send_signal

CAPACITY = Capacity(
    pages=1000, page_size=16, rows=64, context=8192, vocabulary=100, weight_bytes=269_000_000
)


@pytest.mark.parametrize("number", STOPPING)
def test_ctrl_c_while_a_child_imports_is_the_supervisors_alone(number: signal.Signals) -> None:
    """A child that has not said yet what signals are to it, as in its first imports."""

    def command(role: str, control: int) -> list[str]:
        code = "import sys, time; print(flush=True); time.sleep(0.3); print('alive', flush=True)"
        return [sys.executable, "-c", code]

    child = spawn("engine", command, piped=True)
    assert child.output is not None
    with os.fdopen(child.output, "rb") as said:
        assert said.readline() == b"\n"
        child.process.send_signal(number)
        assert said.read() == b"alive\n"
    assert child.process.wait(10) == 0
    child.close()
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()) & set(STOPPING)


@pytest.mark.parametrize(("epoch", "again"), [(0, False), (1, False), (2, True), (3, True)])
def test_of_two_engines_the_first_lives_follow_nobody(epoch: int, again: bool) -> None:
    setup = Setup(config=b"", engines=[], memory=0, index=1, epoch=epoch, count=2)
    assert setup.again is again


PARENT = """
import subprocess, sys, time
print(subprocess.Popen([sys.executable, "-Sc", "import time; time.sleep(60)"]).pid, flush=True)
time.sleep(60)
"""


def parent_command(role: str, control: int) -> list[str]:
    """It has a child, and says its number."""
    return [sys.executable, "-Sc", PARENT]


@pytest.mark.skipif(not opens_processes(), reason="this system opens no processes")
def test_what_killed_children_have_started_ends_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what was stopped before it could ask to die with its parent; of all of them together
    the system is asked once."""
    looks: list[int] = []

    def look() -> list[tuple[int, str, str, int]]:
        looks.append(1)
        return list_processes()

    monkeypatch.setattr("vivace.supervisor.child.list_processes", look)
    children = [spawn("engine", parent_command, piped=True) for _ in range(3)]
    said = [os.fdopen(child.output, "rb") for child in children if child.output is not None]
    started = [open_process(int(one.readline())) for one in said]
    send_signal(started[0], signal.SIGSTOP)
    kill_all(children, "it is to end")
    for child, output, descriptor in zip(children, said, started, strict=True):
        assert is_readable(descriptor, 10)
        assert output.read() == b""
        output.close()
        os.close(descriptor)
        assert child.cause() == "it is to end"
        child.close()
    assert len(looks) == 1


def test_engines_that_are_checked_together_are_looked_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[str] = []

    def look(parents: object, children: str = "rank") -> dict[int, str]:
        looks.append(children)
        return {}

    monkeypatch.setattr("vivace.supervisor.engines.find_members", look)
    engines: Any = SimpleNamespace(children=[])
    inquiry = AwaitedInquiry(engines)
    for _ in range(2):
        inquiry.look_anew()
        assert [inquiry.stopped() or inquiry.result() for _ in range(64)] == [""] * 64
    assert looks == ["", "rank"] * 2


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOSYS, errno.EMFILE])
def test_a_child_is_killed_where_the_system_shows_none_of_its_own(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """A sandbox that does not know pidfd_open(2), an old kernel, no room for a descriptor."""

    def refuse(pid: int) -> int:
        raise OSError(number, os.strerror(number))

    child = spawn("frontend", parent_command, piped=True)
    assert child.output is not None
    with os.fdopen(child.output, "rb") as said:
        started = int(said.readline())
        with monkeypatch.context() as patched:
            patched.setattr("vivace.supervisor.child.open_process", refuse)
            child.kill("it is to end")
        assert child.process.wait(10) == -signal.SIGKILL
        os.kill(started, signal.SIGKILL)
    child.close()


def test_who_has_the_number_of_an_ended_process_by_now_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sleeper = [sys.executable, "-Sc", "import time; time.sleep(60)"]
    child = spawn("engine", lambda role, control: sleeper)
    with subprocess.Popen(sleeper) as other:
        listed = [(other.pid, "rank 1", "S", child.process.pid)]
        monkeypatch.setattr("vivace.supervisor.child.list_processes", lambda: listed)
        child.kill("it is to end")
        assert child.process.wait(10) == -signal.SIGKILL
        assert other.poll() is None
        other.kill()
    child.close()


@pytest.mark.parametrize(
    "ignored", [(), (signal.SIGINT,), (signal.SIGINT, signal.SIGHUP), STOPPING]
)
def test_signals_that_the_parent_ignores_stay_ignored(
    ignored: tuple[signal.Signals, ...],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("vivace.supervisor.signals.SAME_SIGNAL_SECONDS", 0.0)
    before = {number: signal.getsignal(number) for number in STOPPING}
    arrived: list[int] = []
    not_ignored = [
        number for number in STOPPING if number not in ignored or number == signal.SIGTERM
    ]
    try:
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)
        with (
            caplog.at_level("INFO"),
            selectors.DefaultSelector() as selector,
            handle_signals(selector, arrived.append),
        ):
            for number in STOPPING:
                signal.raise_signal(number)
            for key, _ in selector.select(5):
                key.data()
        assert sorted(arrived) == sorted(not_ignored)
        assert all(signal.getsignal(number) is signal.SIG_IGN for number in ignored)
        assert ("SIGINT" in caplog.text) == (signal.SIGINT in ignored)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_a_signal_that_has_no_turn_any_more_is_left_to_who_was_there_before() -> None:
    arrived, before = list[int](), list[int]()
    number = signal.SIGTERM
    usual = {stopping: signal.getsignal(stopping) for stopping in STOPPING}
    signal.signal(number, lambda number, _: before.append(number))
    try:
        with selectors.DefaultSelector() as selector:
            with handle_signals(selector, arrived.append):
                signal.raise_signal(number)
            assert (arrived, before) == ([], [number])
            with handle_signals(selector, arrived.append):
                signal.raise_signal(number)
                for key, _ in selector.select(5):
                    key.data()
            assert (arrived, before) == ([number], [number])
    finally:
        for stopping, handler in usual.items():
            signal.signal(stopping, handler)


@given(st.lists(st.floats(0, 500), max_size=40), st.integers(0, 4), st.floats(1, 300))
def test_budget_counts_a_sliding_window(gaps: list[float], crashes: int, window: float) -> None:
    budget, now, times = CrashBudget(crashes, window), 0.0, []
    for gap in gaps:
        now += gap
        times.append(now)
        recent = [time for time in times if time > now - window]
        assert budget.spend(now) == (len(recent) <= crashes)
        assert budget.spent == len(recent)


def died(
    attribution: CrashAttribution, now: float, *keys: int, survived: int = 0
) -> RestartDecision:
    step = 100
    return attribution.record_death(step, [Span(key, step - survived) for key in keys], now)


def test_who_kills_two_engines_and_the_second_alone_is_found() -> None:
    budget = CrashBudget(3, 600.0)
    attribution = CrashAttribution([budget])
    assert died(attribution, 1.0, 5, 6, 7) == RestartDecision(True, [], {5: 1, 6: 1, 7: 1})
    assert died(attribution, 2.0, 6) == RestartDecision(True, [6], {5: 1, 7: 1})
    assert budget.spent == 0, "both deaths are explained"
    assert died(attribution, 3.0, 7) == RestartDecision(True, [7], {5: 1})
    assert died(attribution, 4.0).suspects == {5: 1} and budget.spent == 1


@given(st.integers(1, 12), st.integers(0, 3))
def test_any_number_of_killers_is_found_within_the_budget(killers: int, others: int) -> None:
    """All of them in one step: each engine dies of the first one that runs alone."""
    attribution, now, found = CrashAttribution([CrashBudget(3, 600.0)]), 0.0, []
    live = [*range(killers), *range(100, 100 + others)]
    decision = died(attribution, now, *live)
    while killers - len(found):
        now += 1.0
        assert (decision.restart and set(decision.suspects) == set(live)) or len(live) == 1
        decision = died(attribution, now, next(key for key in live if key < 100))
        found += decision.refused
        live = [key for key in live if key not in found]
    assert sorted(found) == list(range(killers)) and decision.restart


def test_deaths_between_steps_are_nobodys_and_cost() -> None:
    attribution = CrashAttribution([CrashBudget(3, 600.0)])
    assert [died(attribution, float(t)).restart for t in range(4)] == [True, True, True, False]


def test_who_got_on_in_between_is_no_sure_killer() -> None:
    """An engine that somebody kills again and again from outside, with one long stream in it."""
    attribution = CrashAttribution([CrashBudget(9, 600.0)])
    verdicts = [died(attribution, float(t), 5, survived=1000) for t in range(4)]
    assert [decision.refused for decision in verdicts] == [[], [], [], [5]]
    assert [decision.suspects for decision in verdicts[:3]] == [{5: 1}, {5: 2}, {5: 2}]


def test_old_charges_are_forgotten() -> None:
    attribution = CrashAttribution([CrashBudget(3, 600.0)])
    died(attribution, 0.0, 5)
    assert died(attribution, 601.0, 5) == RestartDecision(True, [], {5: 1})


def test_frontends_that_keep_dying_are_started_ever_later() -> None:
    backoff = Backoff(3, 600.0, longest=30.0)
    waits = [backoff.record_death(float(t)) for t in range(12)]
    assert waits == [0, 0, 0, 1, 2, 4, 8, 16, 30, 30, 30, 30]
    assert backoff.record_death(2000.0) == 0


def test_watchdog_raises_alarms_in_order() -> None:
    dog = Watchdog(hard=10.0, soft=4.0)
    dog.reset(0.0)
    assert dog.check(1, False, 0.0) == "quiet"
    assert [dog.check(1, False, t) for t in (3.9, 4.0, 5.0, 9.9, 10.0)] == [
        "quiet",
        "soft",
        "quiet",
        "quiet",
        "hard",
    ]
    assert dog.check(2, False, 11.0) == "quiet"
    assert dog.check(2, False, 15.0) == "soft"
    assert dog.check(2, True, 16.0) == "quiet"
    assert dog.check(2, False, 19.0) == "quiet"


def test_a_watchdog_that_was_asleep_itself_raises_no_alarm() -> None:
    """A paused container or a suspended machine: everybody stood still."""
    dog = Watchdog(hard=10.0, soft=4.0)
    dog.reset(0.0)
    assert [dog.check(1, False, t) for t in (0.0, 1.0, 500.0, 502.9)] == ["quiet"] * 4
    assert dog.check(1, False, 503.1) == "soft"
    assert dog.check(1, False, 503.1 + PAUSE_SECONDS) == "quiet"
    assert dog.check(1, False, 509.0) == "hard"


def test_watchdog_can_be_off() -> None:
    dog = Watchdog(hard=None, soft=0.0)
    assert {dog.check(1, False, float(t)) for t in range(1000)} == {"quiet"}


def pair():
    ours, theirs = socket.socketpair()
    return supervisor_end(ours), child_end(theirs)


def test_line_carries_messages_of_any_size_both_ways() -> None:
    ours, theirs = pair()
    setup = Setup(config=b"x" * 3_000_000, engines=[8], memory=9)
    sender = threading.Thread(target=lambda: (ours.send(setup), ours.send(Stop(1.0))))
    sender.start()
    assert theirs.wait() == setup
    assert theirs.wait() == Stop(1.0)
    sender.join()
    assert ours.receive() == []
    theirs.send(Progress("Loading", 0.5))
    theirs.send(Ready(epoch=2, capacity=CAPACITY))
    theirs.close()
    assert ours.receive() == [Progress("Loading", 0.5), Ready(epoch=2, capacity=CAPACITY)]
    with pytest.raises(SocketClosed):
        ours.receive()
    ours.send(Command(ticket=1, body=Drain(timeout=1.0, frontends=[])))  # to nobody: no error
    ours.close()


def test_a_line_ends_a_waiting_child() -> None:
    ours, theirs = pair()
    ours.close()
    with pytest.raises(SocketClosed):
        theirs.wait()


def test_partial_messages_wait_for_the_rest() -> None:
    ours_socket, theirs_socket = socket.socketpair()
    ours, theirs = supervisor_end(ours_socket), child_end(theirs_socket)
    theirs.send(Failure("x" * 50))
    data = ours_socket.recv(1000)
    for byte in data[:-1]:
        theirs_socket.send(bytes([byte]))
        assert ours.receive() == []
    theirs_socket.send(data[-1:])
    assert ours.receive() == [Failure("x" * 50)]
    theirs.send(Serving())
    assert ours.receive() == [Serving()]


def test_a_taken_port_names_its_owner() -> None:
    with bind("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(PortInUse) as caught:
            bind("127.0.0.1", port)
    text = str(caught.value)
    assert f"port {port} is in use by process" in text and "--port" in text


def test_a_foreign_address_is_explained() -> None:
    for host in ("203.0.113.7", "2001:db8::1", "no such host", "1.2.3.4.5"):
        with pytest.raises(CannotStart, match=f"--host '?{re.escape(host)}'? "):
            bind(host, 0)


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EAFNOSUPPORT, "--host ::1 is no address of this machine"),
        (errno.EADDRNOTAVAIL, "--host ::1 is no address of this machine"),
        (errno.EACCES, "--port 80 needs privileges"),
        (errno.ENOPROTOOPT, "--host ::1 --port 80"),
    ],
)
@pytest.mark.parametrize("call", ["socket", "bind"])
def test_an_address_that_will_not_do_ends_the_launch(
    monkeypatch: pytest.MonkeyPatch, call: str, number: int, words: str
) -> None:
    """On machines without IPv6 not even the socket can be made."""

    class Refusing(socket.socket):
        def __init__(self, *arguments: int) -> None:
            if call == "socket":
                raise OSError(number, os.strerror(number))
            super().__init__()

        def bind(self, _: object) -> None:
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr("vivace.launch.listen.socket.socket", Refusing)
    with pytest.raises(CannotStart) as caught:
        bind("::1", 80)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_addresses() -> None:
    with bind("0.0.0.0", 0) as everywhere:
        assert local_url(everywhere) == f"http://127.0.0.1:{everywhere.getsockname()[1]}"


def test_exits_in_words() -> None:
    assert describe_exit(3) == "exit code 3"
    assert describe_exit(-signal.SIGSEGV) == "killed by SIGSEGV"
    assert describe_exit(-63).startswith("killed by")


def test_children_do_not_import_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "zmq.py").write_text("raise SystemExit('imported from the working directory')")
    monkeypatch.chdir(tmp_path)
    with socket.socketpair()[0] as end:
        words = process_command("engine", end.fileno())
    done = subprocess.run([*words[:-4], "--help"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "--parent" in done.stdout


def test_children_of_another_parent_end_themselves() -> None:
    with socket.socketpair()[0] as end:
        words = [*process_command("engine", end.fileno())[:-1], "1"]
        done = subprocess.run(words, pass_fds=[end.fileno()], timeout=60, check=False)
    assert done.returncode == 1


def test_faults_happen_once_and_only_to_the_first_engine() -> None:
    runner: Any = SimpleNamespace(
        capacity=CAPACITY,
        run=lambda plan: "result",
        events=list,
        control=lambda command: None,
        wake_with=lambda ring: None,
        close=lambda: None,
    )
    plan: Any = SimpleNamespace(rows=[0])
    assert with_fault(runner, "", 0) is runner
    assert with_fault(runner, "engine-kill@3", 1) is runner
    assert with_fault(runner, "frontend-kill@3", 0) is runner
    faulty = with_fault(runner, "engine-hang@2", 0)
    assert faulty is not runner
    assert [faulty.run(plan) for _ in range(2)] == ["result"] * 2
    with pytest.raises(InjectedDeath):
        with_fault(runner, "engine-start@0", 0)
    inbox: Any = SimpleNamespace(receive=None, accept=None)
    assert with_frontend_fault(inbox, "frontend-kill@3", 1) is inbox
    assert with_frontend_fault(inbox, "engine-kill@3", 0) is inbox
    assert with_frontend_fault(inbox, "frontend-kill@3", 0) is not inbox


def config(*flags: str) -> Config:
    return configure(parse(flags, {"VIVACE_EXECUTOR": "oracle"}))


def summary_lines(*flags: str, capacity: Capacity = CAPACITY) -> list[str]:
    return plain_lines(build_summary(config(*flags), capacity, "http://127.0.0.1:1"))


@pytest.fixture
def built_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a machine without them is told, too, is another test's."""
    platform = config().platform
    built = replace(platform, features=platform.features | {"kernels"})
    monkeypatch.setattr("vivace.platforms.platform.detect", lambda _: built)


@pytest.mark.usefixtures("built_kernels")
def test_summary_tells_what_runs_and_the_url_last() -> None:
    *lines, ask, url = summary_lines(
        "--served-model-name", "it's\x1b[31m", "--fastapi-root-path", "/v"
    )
    text = "\n".join(lines)
    assert [line.split()[0] for line in lines] == [
        "model",
        "memory",
        "limits",
        "sampling",
        "device",
    ]
    assert "16,000 tokens" in text and "64 requests at once" in text and "269 MB" in text
    assert "curl http://127.0.0.1:1/v/v1/chat/completions" in ask and "it'\\''s" in ask
    assert url.split() == ["URL", "http://127.0.0.1:1"]
    assert "\x1b" not in text + ask


@pytest.mark.usefixtures("built_kernels")
def test_summary_tells_what_differs_from_what_was_typed() -> None:
    flags = ("--disable-radix-cache", "--schedule-policy", "lpm", "--dtype", "auto")
    changed = [line for line in summary_lines(*flags) if line.split()[0] == "changed"]
    assert len(changed) == 1 and "--schedule-policy: lpm -> fcfs: " in changed[0]
    lowered = Rewrite(field="max_running_requests", before=64, after=2, rule="size", reason="x")
    capacity = structs.replace(CAPACITY, rewrites=(lowered,))
    assert "  changed          --max-running-requests: 64 -> 2: x" in summary_lines(
        capacity=capacity
    )


def test_summary_names_no_draft_model_that_is_not_used() -> None:
    ngrams = "--speculative-algorithm", "NGRAM", "--speculative-draft-model-path", "unused"
    lines = summary_lines(*ngrams)
    (drafts,) = [line for line in lines if line.split()[0] == "drafts"]
    assert "NGRAM," in drafts and "each rank" not in drafts
    assert any("note" in line and "--speculative-draft-model-path" in line for line in lines)


def test_summary_tells_of_a_draft_that_every_rank_has_whole() -> None:
    capacity = structs.replace(CAPACITY, undivided_draft="3 heads")
    (drafts,) = [
        line
        for line in summary_lines("--speculative-algorithm", "NGRAM", capacity=capacity)
        if line.split()[0] == "drafts"
    ]
    assert "each rank" in drafts and drafts.endswith("3 heads")


def test_verbose_summary_tells_every_decision() -> None:
    lines = summary_lines("--verbose")
    assert any("--page-size: unset -> 16" in line for line in lines)
    assert any("LlamaForCausalLM" in line for line in lines)


def test_slow_operations_are_told_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    made = config()
    without = replace(made.platform, features=())
    monkeypatch.setattr("vivace.platforms.platform.detect", lambda _: without)
    assert any("changed" in line and "torch is slower" in line for line in summary_lines())


def test_summary_tells_the_share_of_cached_prefixes() -> None:
    capacity = msgspec.structs.replace(CAPACITY, kv_bytes=4_000_000_000, cache_share=125)
    rows = dict(build_summary(config(), capacity, "http://127.0.0.1:1").rows)
    assert rows["memory"] == "269 MB of weights; KV up to 16,000 tokens, 4.00 GB (prefixes 500 MB)"
    without = config("--disable-radix-cache", "--verbose")
    rows = dict(build_summary(without, capacity, "http://127.0.0.1:1").rows)
    assert rows["memory"].endswith("4.00 GB (no prefixes)") and rows["cached prefixes"] == "off"


@pytest.mark.parametrize(
    ("nbytes", "size", "parameters", "count"),
    [
        (0, "0 bytes", 0, "0"),
        (640, "640 bytes", 640, "640"),
        (73_280_000, "73.28 MB", 134_515_008, "135 million"),
        (4_100, "4.10 KB", 34_200, "34.2 thousand"),
        (2_540_000_000, "2.54 GB", 1_235_000_000, "1.24 billion"),
        (314_000_000_000, "314 GB", 1_026_000_000_000, "1,026 billion"),
    ],
)
def test_sizes_have_units_that_fit(nbytes: int, size: str, parameters: int, count: str) -> None:
    assert (size_text(nbytes), count_text(parameters)) == (size, count)


def test_the_summary_has_the_tools_of_each_tool_server() -> None:
    tools = ["weather: look", "files: no tools"]
    rows = build_summary(config(), CAPACITY, "http://127.0.0.1:1", tools).rows
    assert [row for row in rows if row[0] == "tools"] == [("tools", text) for text in tools]


def test_summary_never_shows_the_key() -> None:
    summary = build_summary(config("--api-key", "sk-secret"), CAPACITY, "http://127.0.0.1:1")
    assert "<api key>" in " ".join(summary.curl) and "sk-secret" not in repr(summary)


def test_a_child_that_is_shown_does_not_show_the_keys() -> None:
    """Tracebacks show the arguments of what failed."""
    ours, _ = pair()
    process = cast("subprocess.Popen[bytes]", None)
    child = Child(role="engine", process=process, control=ours, out_of_memory_kills=0)
    child.begin(Setup(config=b"sk-secret", memory=0, engines=[0]))
    assert "sk-secret" not in repr(child)


def test_progress_elsewhere_is_a_line_per_stage(caplog: pytest.LogCaptureFixture) -> None:
    progress = PlainScreen(io.StringIO())
    with caplog.at_level("INFO"):
        for fraction in (0.0, 0.3, 1.0):
            progress.update("Loading weights", fraction)
        progress.update("Sizing", 0.0)
    assert [record.getMessage() for record in caplog.records] == ["Loading weights", "Sizing"]


def test_a_long_command_line_shows_that_it_is_cut() -> None:
    assert shorten("python -m http.server") == "python -m http.server"
    words = [f"--flag-{number}" for number in range(50)]
    *first, last = shorten(" ".join(words)).split()
    assert last == "..." and 5 < len(first) < 50 and first == words[: len(first)]
