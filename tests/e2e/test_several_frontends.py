"""Two frontend processes behind one port show one set of HTTP counters."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, TypeVar

import pytest
from running_server import RunningServer

FLAGS = ("--tokenizer-worker-num", "2", "--enable-metrics", "--random-seed", "1")
T = TypeVar("T")
SAMPLE = re.compile(r"^sglang:(http_\w+)\{(.*)\} (\S+)$", re.MULTILINE)


def http_counts(server: RunningServer, endpoint: str) -> dict[str, float]:
    """metric -> value for one endpoint, summed over methods and statuses."""
    status, page = server.call("GET", "/metrics")
    assert status == 200, page
    found: dict[str, float] = {}
    for name, labels, value in SAMPLE.findall(page.decode()):
        if f'endpoint="{endpoint}"' in labels and not name.endswith("_created"):
            found[name] = found.get(name, 0.0) + float(value)
    return found


def frontends(server: RunningServer) -> list[int]:
    return sorted(pid for role, pid in server.children().items() if role.startswith("frontend"))


def only(server: RunningServer, pid: int, act: Callable[[], T]) -> T:
    """Do something while every other frontend sleeps, so that this one answers."""
    others = [other for other in frontends(server) if other != pid]
    for other in others:
        os.kill(other, signal.SIGSTOP)
    try:
        return act()
    finally:
        for other in others:
            os.kill(other, signal.SIGCONT)


def ask(server: RunningServer, times: int) -> None:
    for _ in range(times):
        assert server.call("GET", "/v1/models")[0] == 200


def test_every_frontend_shows_the_counts_of_all_of_them(tmp_path: Path) -> None:
    environment = {"VIVACE_EXECUTOR": "oracle:0.001"}
    with RunningServer(*FLAGS, environment=environment, log=tmp_path / "log") as server:
        server.wait_ready()
        first, second = frontends(server)
        only(server, first, lambda: ask(server, 3))
        only(server, second, lambda: ask(server, 4))
        wanted = {
            "http_requests_total": 7.0,
            "http_responses_total": 7.0,
            "http_requests_active": 0.0,
        }
        for pid in (first, second):
            only(server, pid, lambda: check(server, wanted))
        os.kill(first, signal.SIGKILL)
        wait_for_another(server, {first, second})
        ask(server, 2)
        wanted |= {"http_requests_total": 9.0, "http_responses_total": 9.0}
        for pid in frontends(server):
            only(server, pid, lambda: check(server, wanted))


def check(server: RunningServer, wanted: dict[str, float]) -> None:
    assert http_counts(server, "/v1/models") == wanted


def wait_for_another(server: RunningServer, known: set[int]) -> None:
    """Until the dead one's successor accepts connections (its answers need the engine's Ready)."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        new = set(frontends(server)) - known
        if len(frontends(server)) == 2 and new:
            status, _ = only(server, new.pop(), lambda: server.call("GET", "/metrics"))
            if status == 200:
                return
        time.sleep(0.1)
    raise AssertionError(server.text())


@pytest.mark.parametrize("abort", [{"rid": "mine"}, {"abort_all": True}])
def test_aborts_reach_what_waits_in_another_frontend(tmp_path: Path, abort: dict[str, Any]) -> None:
    environment = {"VIVACE_EXECUTOR": "oracle:0.001"}
    with RunningServer(*FLAGS, environment=environment, log=tmp_path / "log") as server:
        server.wait_ready()
        first, second = frontends(server)
        engine = pause_new_engine(server)
        asked = only(server, first, lambda: [begin(server, "mine-1"), begin(server, "other")])
        answer = only(server, second, lambda: server.call("POST", "/abort_request", abort))
        assert answer[0] == 200
        os.kill(engine, signal.SIGCONT)
        ends = [json.load(connection.getresponse())["meta_info"] for connection in asked]
        left = "length" if "rid" in abort else "abort"
        assert [end["finish_reason"]["type"] for end in ends] == ["abort", left]


def test_what_is_logged_of_requests_is_changed_for_all_frontends(tmp_path: Path) -> None:
    """Also for one that is started later."""
    change = {"log_requests": True, "log_requests_level": 0, "log_requests_format": "json"}
    environment = {"VIVACE_EXECUTOR": "oracle:0.001"}
    with RunningServer(*FLAGS, environment=environment, log=tmp_path / "log") as server:
        server.wait_ready()
        first, second = frontends(server)
        only(server, first, lambda: server.json("/configure_logging", change))
        only(server, second, lambda: generate(server, "of-the-second"))
        assert '"rid":"of-the-second"' in server.text()
        os.kill(first, signal.SIGKILL)
        wait_for_another(server, {first, second})
        (third,) = set(frontends(server)) - {second}
        only(server, third, lambda: generate(server, "of-the-third"))
        assert '"rid":"of-the-third"' in server.text()
        told = only(server, third, lambda: server.json("/configure_logging", {}))
        assert told == change
        only(server, third, lambda: server.json("/configure_logging", {"log_requests": False}))
        only(server, second, lambda: generate(server, "silent"))
        assert "silent" not in server.text()


def generate(server: RunningServer, rid: str) -> None:
    server.json(
        "/generate", {"rid": rid, "input_ids": [1], "sampling_params": {"max_new_tokens": 2}}
    )


def pause_new_engine(server: RunningServer) -> int:
    """The engine dies, and its successor comes to a stop before it is ready."""
    dead = server.children()["engine"]
    os.kill(dead, signal.SIGKILL)
    while (new := server.children().get("engine", dead)) == dead:
        time.sleep(0.001)
    os.kill(new, signal.SIGSTOP)
    return new


def begin(server: RunningServer, rid: str) -> HTTPConnection:
    """Ask for a few tokens. When this returns, the server has read who asks for what."""
    sampling = {"max_new_tokens": 4, "ignore_eos": True}
    body = json.dumps({"rid": rid, "input_ids": [1, 2, 3], "sampling_params": sampling})
    connection = HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.putrequest("POST", "/generate")
    length = str(len(body))
    for name, value in (
        ("Content-Type", "application/json"),
        ("Content-Length", length),
        ("Expect", "100-continue"),
    ):
        connection.putheader(name, value)
    connection.endheaders()
    assert b"100 Continue" in connection.sock.recv(1000)
    connection.send(body.encode())
    while server.call("GET", "/health")[0] == 200:
        time.sleep(0.01)
    return connection


def connect(server: RunningServer, pid: int) -> HTTPConnection:
    """A connection that this frontend has accepted."""
    connection = HTTPConnection("127.0.0.1", server.port, timeout=60)
    assert only(server, pid, lambda: say(connection, "GET", "/v1/models"))[0] == 200
    return connection


def say(connection: HTTPConnection, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body)
    connection.request(method, path, data, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


def test_any_frontend_knows_the_responses_of_all(tmp_path: Path) -> None:
    environment = {"VIVACE_EXECUTOR": "oracle:0.001"}
    path = "/v1/responses"
    short = {"input": "hi", "max_output_tokens": 4, "ignore_eos": True}
    long: dict[str, Any] = {"input": "hi", "background": True}
    with RunningServer(*FLAGS, environment=environment, log=tmp_path / "log") as server:
        server.wait_ready()
        pids = frontends(server)
        keeper, other = [connect(server, pid) for pid in pids]
        for maker, asker in ((keeper, other), (other, keeper)):
            made = say(maker, "POST", path, short)[1]
            place = f"{path}/{made['id']}"
            assert say(asker, "GET", place) == (200, made)
            following = {**short, "previous_response_id": made["id"]}
            assert say(asker, "POST", path, following)[0] == 200
            running = say(maker, "POST", path, long)[1]
            ended = say(asker, "POST", f"{path}/{running['id']}/cancel")[1]
            assert ended["status"] == "cancelled"
            assert say(maker, "GET", f"{path}/{running['id']}")[1] == ended
            assert say(asker, "DELETE", place)[0] == 200
            assert say(maker, "GET", place)[0] == 404
        kept = say(keeper, "POST", path, short)[1]
        running = say(other, "POST", path, long)[1]
        os.kill(pids[0], signal.SIGKILL)
        assert say(other, "GET", f"{path}/{kept['id']}")[0] in (404, 503)
        wait_for_another(server, set(pids))
        assert say(other, "GET", f"{path}/{kept['id']}")[0] == 404
        ended = say(other, "POST", f"{path}/{running['id']}/cancel")[1]
        assert ended["status"] == "cancelled"
        (successor,) = set(frontends(server)) - set(pids)
        keeper, running = connect(server, successor), say(other, "POST", path, long)[1]
        os.kill(pids[1], signal.SIGKILL)
        while (lost := say(keeper, "GET", f"{path}/{running['id']}")[1])["status"] != "failed":
            time.sleep(0.01)
        assert lost["error"]["code"] == "server_error"
