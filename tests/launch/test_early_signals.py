"""Signals before a supervisor is there: in the imports, and while the configuration is read; and
when it has gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from vivace.config.child_process import STOPPING

STALLS = """
import runpy, sys, time
class Stall:
    def find_spec(self, name, path=None, target=None):
        if name == {stage!r}:
            print("stalls", flush=True)
            time.sleep(600)
sys.meta_path.insert(0, Stall())
sys.argv = {words!r}
runpy.run_module({door!r}, run_name="__main__", alter_sys=True)
"""
IMPORTS, CONFIGURED = "vivace.commands.serve", "vivace.launch.preflight"
"""modules: the first import, the one behind the options, when an engine's process runs"""


def start(stage: str, door: str, words: list[str]) -> subprocess.Popen[str]:
    """A server in a group of its own that has come to the import of `stage` and stays there."""
    server = subprocess.Popen(
        [sys.executable, "-c", STALLS.format(stage=stage, door=door, words=["x", *words])],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert server.stdout is not None
    assert server.stdout.readline() == "stalls\n"
    return server


def group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("number", STOPPING)
@pytest.mark.parametrize("stage", [IMPORTS, CONFIGURED])
def test_one_line_and_the_code_of_the_signal(stage: str, number: signal.Signals) -> None:
    """Also when the signal comes twice, as from `timeout`; nobody is left behind."""
    server = start(stage, "vivace", ["serve"])
    server.send_signal(number)
    server.send_signal(number)
    _, said = server.communicate(timeout=60)
    assert server.returncode == 128 + number
    (line,) = said.splitlines()
    assert number.name in line
    deadline = time.monotonic() + 10
    while group_lives(server.pid):
        assert time.monotonic() < deadline
        time.sleep(0.02)


ENDED_WHERE_NOTHING_CAN_BE_RAISED = """
import os, signal, sys, weakref
from vivace.supervisor.signals import stop_on_signals
def stop(*_):
    os.kill(os.getpid(), signal.SIGTERM)
    for _ in range(1000): pass
class Thing:
    def __del__(self):
        if {where!r} == "destructor": stop()
class Named:
    def __set_name__(self, owner, name): stop()
with stop_on_signals("vivace serve"):
    thing = Thing()
    if {where!r} == "callback": kept = weakref.ref(thing, stop)
    if {where!r} == "descriptor": type("Owner", (), dict(named=Named()))
    del thing
    print("went on")
"""


@pytest.mark.parametrize("where", ["destructor", "callback", "descriptor"])
def test_a_signal_counts_wherever_it_arrives(where: str) -> None:
    """Python drops what is raised in the first two, and wraps what is raised in the third."""
    code = ENDED_WHERE_NOTHING_CAN_BE_RAISED.format(where=where)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (128 + signal.SIGTERM, "")
    assert len(done.stderr.splitlines()) == 1


def stopped_after(seconds: float) -> tuple[int, str]:
    """(status, what it said) of a server that got SIGTERM so long after its start; its whole group
    has ended."""
    words = [sys.executable, "-m", "vivace", "serve", "--port", "0"]
    server = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, start_new_session=True)
    time.sleep(seconds)
    server.terminate()
    _, said = server.communicate(timeout=60)
    deadline = time.monotonic() + 10
    while group_lives(server.pid):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return server.returncode, said


SLOW = pytest.mark.skipif(not os.environ.get("VIVACE_SLOW_TESTS"), reason="set VIVACE_SLOW_TESTS=1")


@pytest.mark.parametrize("starts", [12, pytest.param(500, marks=SLOW)])
def test_a_signal_at_any_moment_of_the_start_ends_it(starts: int) -> None:
    """From before Python runs to where the engine's process loads the model."""
    for number in range(starts):
        code, said = stopped_after(0.6 * number / starts)
        assert code in (-signal.SIGTERM, 128 + signal.SIGTERM, 0), said
        assert code != -signal.SIGTERM or said == "", "no handler is there yet"
        assert "Traceback" not in said


def test_sglangs_command_ends_so_too() -> None:
    server = start(IMPORTS, "vivace.launch_server", [])
    server.send_signal(signal.SIGTERM)
    _, said = server.communicate(timeout=60)
    assert server.returncode == 128 + signal.SIGTERM
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("stage", ["vivace.cli", "vivace.commands.chat"])
@pytest.mark.parametrize("words", [["chat"], ["chat", "--help"]])
def test_ctrl_c_in_the_imports_of_a_command_ends_it_silently(stage: str, words: list[str]) -> None:
    program = start(stage, "vivace", words)
    program.send_signal(signal.SIGINT)
    _, said = program.communicate(timeout=60)
    assert (program.returncode, said) == (130, "")


def test_importing_vivace_imports_nothing() -> None:
    """What it did would end with a traceback at Ctrl-C."""
    names = "print(*{*sys.modules} - old)"
    code = f"import __future__, sys, importlib; old = {{*sys.modules}}; import vivace; {names}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "vivace\n"


def test_what_the_parent_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        server = start(IMPORTS, "vivace", ["serve"])
    finally:
        signal.signal(signal.SIGHUP, before)
    server.send_signal(signal.SIGHUP)
    server.send_signal(signal.SIGTERM)
    server.communicate(timeout=60)
    assert server.returncode == 128 + signal.SIGTERM


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_that_come_late_do_not_change_how_it_ended(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever presses Ctrl-C again when everything is drained, as long as the process is there."""
    monkeypatch.setenv("VIVACE_EXECUTOR", "oracle")
    words = ["-m", "vivace", "serve", "--port", "0", "--log-level", "info"]
    server = subprocess.Popen(
        [sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert server.stdout is not None
    assert any(line.strip().endswith("ready to roll!") for line in server.stdout)
    server.send_signal(number)
    assert any("Drained" in line for line in server.stdout)
    while server.poll() is None:  # without a pause: none of its last milliseconds is left out
        server.send_signal(number)
        time.sleep(0.001)
    assert server.returncode in (0, 128 + number)  # the latter where ending took its time
