"""What a node behind the first answers over HTTP."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from served_toy import free_port, write_toy_llama

from vivace.config.config import Config
from vivace.config.parsing import parse
from vivace.launch import node_probes
from vivace.launch.configure import configure
from vivace.launch.node_probes import answer_probes


@pytest.fixture
def config(tmp_path: Path) -> Config:
    folder = write_toy_llama(tmp_path)
    words = ["--model-path", str(folder), "--skip-tokenizer-init", "--port", str(free_port())]
    return configure(parse(words, {}))


def ask(config: Config, path: str, method: str = "GET") -> int:
    caller = http.client.HTTPConnection(config.http.host, config.http.port, timeout=10)
    caller.request(method, path)
    answer = caller.getresponse()
    assert answer.read() == b"" or answer.status == 501
    caller.close()
    return answer.status


def test_probes_and_nothing_else(config: Config) -> None:
    serves = threading.Event()
    answer_probes(config, serves.is_set)
    assert ask(config, "/health") == ask(config, "/health_generate?x=1") == 200
    assert ask(config, "/ready") == 503
    serves.set()
    assert ask(config, "/ready") == 200
    assert ask(config, "/generate") == ask(config, "/..%2f") == ask(config, "//") == 404
    assert ask(config, "/health", "POST") == 501


def ask_until_let_in(config: Config, meanwhile: Callable[[], None] = lambda: None) -> None:
    deadline = time.monotonic() + 10.0
    while time.monotonic() < deadline:
        try:
            assert ask(config, "/health") == 200
            return
        except (OSError, http.client.HTTPException):
            meanwhile()
            time.sleep(0.1)
    raise AssertionError("nobody is let in")


@pytest.mark.parametrize("goes_on", [False, True])
def test_slow_callers_do_not_take_all_places(
    config: Config, monkeypatch: pytest.MonkeyPatch, goes_on: bool
) -> None:
    """Also those who say a little all the time."""
    monkeypatch.setattr(node_probes, "MOST_CALLERS", 4)
    monkeypatch.setattr(node_probes, "SECONDS", 0.5)
    monkeypatch.setattr(node_probes.ProbeHandler, "timeout", 0.5)
    answer_probes(config, lambda: True)
    slow = [socket.create_connection((config.http.host, config.http.port)) for _ in range(8)]
    for one in slow:
        one.sendall(b"GET /hea")

    def go_on() -> None:
        for one in slow if goes_on else ():
            with contextlib.suppress(OSError):
                one.sendall(b"a")

    ask_until_let_in(config, go_on)
    for one in slow:
        one.close()


@pytest.mark.parametrize("timers", [False, True])
def test_a_caller_for_whom_there_is_no_thread_takes_no_place(
    config: Config, monkeypatch: pytest.MonkeyPatch, timers: bool
) -> None:
    monkeypatch.setattr(node_probes, "MOST_CALLERS", 2)
    answer_probes(config, lambda: True)
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if isinstance(thread, threading.Timer) is timers:
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        for _ in range(4):
            with pytest.raises((OSError, http.client.HTTPException)):
                ask(config, "/health")
    ask_until_let_in(config)


def test_a_port_that_is_taken_is_said(config: Config, caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server((config.http.host, config.http.port)):
        answer_probes(config, lambda: True)
    assert str(config.http.port) in caplog.text
