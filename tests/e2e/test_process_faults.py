"""Deaths, drains and bad starts of a real server on the oracle: every token is known beforehand."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from running_server import START_SECONDS, RunningServer, is_alive

from vivace.checkpoint.source import locate
from vivace.engine.oracle import oracle_answer
from vivace.models.facts import read_facts

ORACLE = {"VIVACE_EXECUTOR": "oracle:0.01"}
FLAGS = ("--skip-tokenizer-init", "--random-seed", "1")
PROMPT = [5, 6, 7, 8]


@pytest.fixture(scope="module")
def vocabulary() -> int:
    return read_facts(locate(None)).vocabulary


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """One server for the tests that it survives."""
    folder = tmp_path_factory.mktemp("server")
    flags = (*FLAGS, "--crash-dump-folder", str(folder / "dumps"))
    with RunningServer(*flags, environment=ORACLE, log=folder / "log") as server:
        yield server.wait_ready()


def body(seed: int, count: int) -> dict:
    sampling = {"max_new_tokens": count, "ignore_eos": True, "sampling_seed": seed}
    return {"input_ids": PROMPT, "sampling_params": sampling}


def expected(seed: int, count: int, vocabulary: int) -> list[int]:
    return oracle_answer(seed, len(PROMPT), count, vocabulary, ignore_eos=True)


def stream_tokens(server: RunningServer, seed: int, count: int) -> list[int]:
    """The streamed answer's tokens; SGLang's stream is cumulative."""
    tokens: list[int] = []
    for event in server.stream("/generate", body(seed, count)):
        assert "error" not in event, event
        tokens = event["output_ids"]
    return tokens


def wait_for_running(server: RunningServer, wanted: int) -> None:
    deadline = time.monotonic() + 20
    while server.json("/server_info")["internal_states"][0]["num_running_reqs"] != wanted:
        assert time.monotonic() < deadline, server.text()
        time.sleep(0.02)


def test_a_killed_engine_is_replaced_and_streams_go_on(
    server: RunningServer, vocabulary: int
) -> None:
    with ThreadPoolExecutor(6) as pool:
        answers = [pool.submit(stream_tokens, server, seed, 150) for seed in range(6)]
        wait_for_running(server, 6)
        first = server.children()["engine"]
        os.kill(first, signal.SIGKILL)
        got = [answer.result(60) for answer in answers]
    assert got == [expected(seed, 150, vocabulary) for seed in range(6)]
    assert server.children()["engine"] != first
    assert "The engine died: killed by SIGKILL" in server.text()
    assert server.call("GET", "/health")[0] == 200
    assert stream_tokens(server, 9, 5) == expected(9, 5, vocabulary)
    (dump,) = server.log.parent.glob("dumps/*.jsonl")
    head = json.loads(dump.read_bytes().splitlines()[0])
    assert len(head["unfinished"]) == 6 and "SIGKILL" in head["reason"]


def test_a_killed_engine_is_not_replaced_by_one_with_other_weights(
    tmp_path: Path, vocabulary: int
) -> None:
    """The tokens of a stream are those of one model, or it ends with the reason."""
    model = tmp_path / "model.gguf"
    model.symlink_to(locate(None).path)
    words = (*FLAGS, "--model-path", str(model))
    with RunningServer(*words, environment=ORACLE, log=tmp_path / "log") as server:
        server.wait_ready()
        stream = server.stream("/generate", body(3, 1000))
        events = [next(stream)]
        model.unlink()
        model.write_bytes(b"another model")
        os.kill(server.children()["engine"], signal.SIGKILL)
        events += list(stream)
        assert server.wait() == 1
        told = events[-1]["error"]["message"]
        assert "model.gguf was changed" in told and told.count("engine died") == 1
        tokens = events[-2]["output_ids"]
        assert tokens == expected(3, 1000, vocabulary)[: len(tokens)]
        assert "model.gguf was changed since this server loaded it" in server.text()


def test_a_stopped_engine_shows_in_health_and_goes_on(
    server: RunningServer, vocabulary: int
) -> None:
    """Stopped in the middle of work, and stopped at rest with work arriving."""
    engine = server.children()["engine"]

    def health() -> tuple[int, int]:
        return server.call("GET", "/health")[0], server.call("GET", "/ready")[0]

    def wait_for_health(wanted: int) -> float:
        begun = time.monotonic()
        while health() != (wanted, wanted):
            assert time.monotonic() < begun + 20, server.text()
            time.sleep(0.05)
        return time.monotonic() - begun

    for resting in (False, True):
        with ThreadPoolExecutor(4) as pool:
            if resting:
                os.kill(engine, signal.SIGSTOP)
                time.sleep(0.5)
                assert health() == (200, 200), "nothing is to be done"
            answers = [pool.submit(stream_tokens, server, seed, 100) for seed in range(4)]
            if not resting:
                wait_for_running(server, 4)
                os.kill(engine, signal.SIGSTOP)
            wait_for_health(503)
            begun = time.monotonic()
            status, page = server.call("GET", "/server_info")
            assert status == 503 and b"no progress for" in page
            assert time.monotonic() - begun < 5.0, "it does not wait for the engine"
            server.wait_for("Stalled: the engine has made no progress")
            assert f"(process {engine}) is stopped. /health" in server.text()
            os.kill(engine, signal.SIGCONT)
            wait_for_health(200)
            got = [answer.result(60) for answer in answers]
        assert got == [expected(seed, 100, vocabulary) for seed in range(4)]
    assert server.children()["engine"] == engine
    server.wait_for("The engine goes on")


def test_a_killed_frontend_is_replaced_and_its_requests_end(
    server: RunningServer, vocabulary: int
) -> None:
    with ThreadPoolExecutor(1) as pool:
        lost = pool.submit(stream_tokens, server, 1, 100_000)
        wait_for_running(server, 1)
        os.kill(server.children()["frontend"], signal.SIGKILL)
        with pytest.raises(OSError):
            lost.result(60)
    assert stream_tokens(server, 2, 20) == expected(2, 20, vocabulary)
    assert "The frontend 0 died: killed by SIGKILL" in server.text()
    state = server.json("/server_info")["internal_states"][0]
    assert (state["num_running_reqs"], state["num_used_tokens"], state["audit"]) == (0, 0, [])


def test_half_closed_connections(server: RunningServer, vocabulary: int) -> None:
    """On uvloop, which the tests of the server's parts do not run on."""

    def send(count: int) -> socket.socket:
        asked = json.dumps(body(3, count)).encode()
        head = b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
        sock = socket.create_connection(("127.0.0.1", server.port), timeout=30)
        sock.sendall(head % len(asked) + asked)
        sock.shutdown(socket.SHUT_WR)
        return sock

    with send(50) as sock:
        answer = b"".join(iter(lambda: sock.recv(1 << 16), b"")).rpartition(b"\r\n\r\n")[2]
    assert json.loads(answer)["output_ids"] == expected(3, 50, vocabulary)
    with send(100_000) as sock:
        assert sock.recv(100).startswith(b"HTTP/1.1 100 Continue")
        wait_for_running(server, 1)
    wait_for_running(server, 0)


def test_no_orphans(tmp_path: Path) -> None:
    with RunningServer(*FLAGS, environment=ORACLE, log=tmp_path / "log") as server:
        server.wait_ready()
        pids = list(server.children().values())
        assert len(pids) == 2
        server.process.kill()
        server.process.wait()
        deadline = time.monotonic() + 10
        while any(is_alive(pid) for pid in pids):
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_sigterm_drains_a_running_stream(tmp_path: Path, vocabulary: int) -> None:
    with RunningServer(*FLAGS, environment=ORACLE, log=tmp_path / "log") as server:
        server.wait_ready()
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(stream_tokens, server, 3, 200)
            wait_for_running(server, 1)
            server.signal()
            server.wait_for("draining requests")
            time.sleep(0.2)
            assert server.call("POST", "/generate", body(4, 5))[0] == 503
            assert running.result(60) == expected(3, 200, vocabulary)
        assert server.wait() == 0


@pytest.mark.parametrize(
    "pause",
    [pytest.param(0.0, marks=pytest.mark.slow), 0.2, pytest.param(0.5, marks=pytest.mark.slow)],
)
def test_sigterm_after_the_death_of_an_engine(
    tmp_path: Path, vocabulary: int, pause: float
) -> None:
    """Its streams are resumed by the next one, which is drained when it has them all."""
    flags = (*FLAGS, "--tokenizer-worker-num", "2")
    with RunningServer(*flags, environment=ORACLE, log=tmp_path / "log") as server:
        server.wait_ready()
        with ThreadPoolExecutor(8) as pool:
            running = [pool.submit(stream_tokens, server, seed, 150) for seed in range(8)]
            wait_for_running(server, 8)
            os.kill(server.children()["engine"], signal.SIGKILL)
            time.sleep(pause)
            server.signal()
            got = [answer.result(60) for answer in running]
        assert got == [expected(seed, 150, vocabulary) for seed in range(8)]
        assert server.wait() == 0
        assert "were ended" not in server.text()


def test_sigterm_while_an_engine_starts_again_for_nobody(tmp_path: Path) -> None:
    with RunningServer(*FLAGS, environment=ORACLE, log=tmp_path / "log") as server:
        server.wait_ready()
        os.kill(server.children()["engine"], signal.SIGKILL)
        server.wait_for("The engine died")
        begun = time.monotonic()
        server.signal()
        assert server.wait() == 0
        assert time.monotonic() - begun < 2.0


SLOW_TEMPLATE = """{% set ns = namespace(n=0) %}{% for _ in range(1000) %}{% for _ in range(100) %}
{%- set ns.n = ns.n + 1 %}{% endfor %}{% endfor %}x"""


def test_sigterm_answers_what_no_engine_knows(tmp_path: Path) -> None:
    """Forty chats that wait for the template process, a body that arrives, and a connection whose
    request comes later."""
    (tmp_path / "slow.jinja").write_text(SLOW_TEMPLATE)
    flags = ("--chat-template", str(tmp_path / "slow.jinja"))
    with RunningServer(*flags, environment=ORACLE, log=tmp_path / "log") as server:
        server.wait_ready()
        chat = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 3}
        head = b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n"

        def ask(_: int) -> int:
            return server.call("POST", "/v1/chat/completions", chat)[0]

        with ThreadPoolExecutor(40) as pool:
            asked = [pool.submit(ask, index) for index in range(40)]
            sockets = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(2)]
            sockets[0].sendall(head + b"{")
            time.sleep(0.5)
            assert not all(one.done() for one in asked), "the template is too quick"
            begun = time.monotonic()
            server.signal()
            server.wait_for("draining requests")
            sockets[1].sendall(head)
            answers = [one.result(60) for one in asked]
            assert set(answers) <= {200, 503} and answers.count(503) > 20
            for sock in sockets:
                assert sock.recv(12) == b"HTTP/1.1 503"
                sock.close()
        assert server.wait() == 0
        assert time.monotonic() - begun < 4.0
        assert "no progress" not in server.text()


def test_requests_that_outlast_a_drain_are_told(tmp_path: Path, vocabulary: int) -> None:
    """Streams with an error event, others with 503, whether they run or wait for a row."""
    flags = (*FLAGS, "--max-running-requests", "2")
    with RunningServer(*flags, environment=ORACLE, log=tmp_path / "log", drain=1.0) as server:
        server.wait_ready()

        def events(seed: int) -> list[dict]:
            return list(server.stream("/generate", body(seed, 8000)))

        with ThreadPoolExecutor(4) as pool:
            streams = [pool.submit(events, seed) for seed in (1, 2)]
            time.sleep(0.5)
            whole = [pool.submit(server.call, "POST", "/generate", body(3, 8000)) for _ in range(2)]
            time.sleep(0.3)
            begun = time.monotonic()
            server.signal()
            for seed, stream in enumerate(streams, 1):
                *tokens, last = stream.result(60)
                assert (last["error"]["code"], last["object"]) == (503, "error")
                got = tokens[-1]["output_ids"]
                assert got == expected(seed, 8000, vocabulary)[: len(got)] and len(got) > 50
            for answer in whole:
                status, page = answer.result(60)
                assert status == 503 and json.loads(page)["error"]["code"] == 503
        assert server.wait() == 0
        assert 1.0 < time.monotonic() - begun < 5.0
        (line,) = (line for line in server.text().splitlines() if "were ended" in line)
        assert "WARNING" in line and "4 requests" in line and "limit of 1 s" in line


def test_an_engine_that_stands_still_does_not_silence_the_server(tmp_path: Path) -> None:
    """At the limit the frontends answer for it."""
    faults = {**ORACLE, "VIVACE_TEST_FAULT": "engine-hang@30"}
    with RunningServer(*FLAGS, environment=faults, log=tmp_path / "log", drain=1.0) as server:
        server.wait_ready()
        with ThreadPoolExecutor(2) as pool:
            stream = pool.submit(lambda: list(server.stream("/generate", body(1, 8000))))
            whole = pool.submit(server.call, "POST", "/generate", body(3, 8000))
            time.sleep(1.0)
            server.signal()
            assert stream.result(60)[-1]["error"]["code"] == 503
            assert whole.result(60)[0] == 503
        server.wait()
        assert "2 requests are ended" in server.text()


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    with RunningServer(*FLAGS, environment=ORACLE, log=tmp_path / "log") as server:
        server.wait_ready()

        def endless() -> None:
            with pytest.raises(OSError):
                stream_tokens(server, 3, 8000)

        thread = threading.Thread(target=endless)
        thread.start()
        wait_for_running(server, 1)
        server.signal(signal.SIGINT)
        server.wait_for("draining requests")
        time.sleep(0.5)
        server.signal(signal.SIGINT)
        assert server.wait(10) == 128 + signal.SIGINT
        thread.join(30)


def test_started_where_signals_are_ignored(tmp_path: Path, vocabulary: int) -> None:
    """`nohup vivace serve &` lives on when its terminal ends or gets Ctrl-C; SIGTERM stops it."""
    before = {n: signal.signal(n, signal.SIG_IGN) for n in (signal.SIGINT, signal.SIGHUP)}
    try:
        server = RunningServer(*FLAGS, environment=ORACLE, log=tmp_path / "log")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    with server:
        server.wait_ready()
        for number in before:
            server.signal(number)
        assert stream_tokens(server, 3, 60) == expected(3, 60, vocabulary)
        assert "SIGINT and SIGHUP: ignored" in server.text()
        assert "draining requests" not in server.text()
        server.signal(signal.SIGTERM)
        assert server.wait(20) == 0


def test_a_hanging_engine_is_replaced(tmp_path: Path, vocabulary: int) -> None:
    flags = (*FLAGS, "--watchdog-timeout", "2", "--soft-watchdog-timeout", "1")
    faults = {**ORACLE, "VIVACE_TEST_FAULT": "engine-hang@30"}
    with RunningServer(*flags, environment=faults, log=tmp_path / "log") as server:
        server.wait_ready()
        assert stream_tokens(server, 3, 60) == expected(3, 60, vocabulary)
        assert "it made no progress" in server.text()
        assert "most recent call first" in server.text()


def test_requests_that_kill_engines_end_alone(tmp_path: Path, vocabulary: int) -> None:
    """Three of them, one after another and together, among streams that notice nothing but time.
    That is six deaths of engines; more than three that nobody explains would end the server."""
    flags = (*FLAGS, "--crash-dump-folder", str(tmp_path / "dumps"))
    faults = {**ORACLE, "VIVACE_TEST_FAULT": "engine-kill-token@77"}

    def poison(server: RunningServer, number: int) -> tuple[int, bytes]:
        """Again while the server says that it restarts."""
        asked = {**body(1, 5), "input_ids": [number, 77], "rid": f"poison-{number}"}
        deadline = time.monotonic() + START_SECONDS
        while True:
            status, page = server.call("POST", "/generate", asked)
            if status != 503 or time.monotonic() > deadline:
                return status, page
            time.sleep(0.05)

    with RunningServer(*flags, environment=faults, log=tmp_path / "log") as server:
        server.wait_ready()
        with ThreadPoolExecutor(8) as pool:
            streams = [pool.submit(stream_tokens, server, seed, 250) for seed in range(6)]
            time.sleep(0.3)
            ended = [poison(server, 0)]
            together = [pool.submit(poison, server, number) for number in (1, 2)]
            ended += [call.result(2 * START_SECONDS) for call in together]
            got = [stream.result(2 * START_SECONDS) for stream in streams]
        assert got == [expected(seed, 250, vocabulary) for seed in range(6)]
        assert [status for status, _ in ended] == [500] * 3
        assert all(b"the engine died of this request" in page for _, page in ended)
        assert server.call("GET", "/health")[0] == 200
        pid = server.children()["engine"]
        status, page = poison(server, 0)
        assert status == 500 and b"died of this request before" in page
        assert server.children()["engine"] == pid
        assert "request poison-0 has killed the engine again: refused" in server.text()
        assert "4 of 3" not in server.text()
        heads = [
            json.loads(dump.read_bytes().splitlines()[0]) for dump in tmp_path.glob("dumps/*.jsonl")
        ]
        assert sum("it killed the engine" in str(head["failed"]) for head in heads) >= 2


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        port = sock.getsockname()[1]
        with RunningServer(*FLAGS, log=tmp_path / "log", port=port) as server:
            assert server.wait() == 1
            assert f"port {port} is in use by process {os.getpid()}" in server.text()


def test_what_is_asked_of_a_starting_server_is_answered(tmp_path: Path, vocabulary: int) -> None:
    with RunningServer(*FLAGS, environment=ORACLE, log=tmp_path / "log") as server:
        server.wait_listening()
        assert "ready to roll" not in server.text()
        assert stream_tokens(server, 3, 20) == expected(3, 20, vocabulary)


def test_an_engine_that_cannot_start_ends_the_server(tmp_path: Path) -> None:
    """Who waits for it is told why."""
    faults = {**ORACLE, "VIVACE_TEST_FAULT": "engine-start@4"}
    with RunningServer(*FLAGS, environment=faults, log=tmp_path / "log") as server:
        server.wait_listening()
        status, page = server.call("POST", "/generate", body(4, 5))
        assert status == 503 and b"this engine was told not to start" in page
        assert server.wait() == 1
        assert "the engine did not start: InjectedDeath: this engine was told" in server.text()


def test_sigterm_while_the_server_starts(tmp_path: Path) -> None:
    """Who waits for the engine is answered."""
    faults = {**ORACLE, "VIVACE_TEST_FAULT": "engine-start@30"}
    with (
        RunningServer(*FLAGS, environment=faults, log=tmp_path / "log") as server,
        ThreadPoolExecutor(4) as pool,
    ):
        server.wait_listening()
        asked = [pool.submit(server.call, "POST", "/generate", body(4, 5)) for _ in range(4)]
        while server.call("GET", "/v1/models")[0] != 200:
            time.sleep(0.05)
        time.sleep(0.5)
        begun = time.monotonic()
        server.signal()
        assert [one.result(20)[0] for one in asked] == [503] * 4
        assert server.wait() == 128 + signal.SIGTERM
        assert time.monotonic() - begun < 2.0


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--max-runing-requests", "4"], "--max-running-requests"),
        (["--model-path", "/nowhere/at/all"], "/nowhere/at/all"),
    ],
)
def test_a_bad_command_line_exits_with_2(words: list[str], text: str) -> None:
    command = [sys.executable, "-m", "vivace.launch_server", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and text in done.stderr
    assert "Traceback" not in done.stderr
