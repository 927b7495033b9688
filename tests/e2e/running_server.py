"""A real server in real processes, for tests."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

START_SECONDS = 120.0


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def find_children(pid: int) -> dict[str, int]:
    """role -> process id of the supervisor's children."""
    found: dict[str, int] = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            try:
                words = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue  # it has just ended
            if b"vivace.launch.child" in words:
                role = words[words.index(b"vivace.launch.child") + 1].decode()
                found[role if role not in found else f"{role} {child}"] = int(child)
    return found


def wait_ended(pids: Iterable[int], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while left := [pid for pid in pids if is_alive(pid)]:
        assert time.monotonic() < deadline, f"{left} still live"
        time.sleep(0.02)


WITH_PLAN = """
import runpy
from vivace.supervisor.plan import Plan
Plan.__init__.__kwdefaults__.update({plan})
runpy.run_module("vivace", run_name="__main__")
"""


class RunningServer:
    """`vivace serve` with its log; ends with the `with` block. `drain`: its limit, in seconds;
    `crashes`: of an engine, that are forgiven; `through`: a command that runs it, as `ip netns`."""

    def __init__(
        self,
        *flags: str,
        environment: dict[str, str] | None = None,
        log: Path,
        port: int = 0,
        drain: float | None = None,
        crashes: int | None = None,
        through: Sequence[str] = (),
    ) -> None:
        self.port = port or free_port()
        self.log = log
        wanted = {"drain": drain, "crashes": crashes}
        plan = {name: value for name, value in wanted.items() if value is not None}
        program = ["-c", WITH_PLAN.format(plan=plan)] if plan else ["-m", "vivace"]
        words = [*program, "serve", "--host", "127.0.0.1", "--port", str(self.port), *flags]
        self._file = log.open("wb")
        self.process = subprocess.Popen(
            [*through, sys.executable, *words],
            env={**os.environ, **(environment or {})},
            stdout=self._file,
            stderr=subprocess.STDOUT,
        )

    def __enter__(self) -> RunningServer:
        return self

    def __exit__(self, *_: object) -> None:
        children = find_children(self.process.pid) if self.process.poll() is None else {}
        self.process.kill()
        self.process.wait()
        self._file.close()
        deadline = time.monotonic() + 10
        while any(is_alive(pid) for pid in children.values()) and time.monotonic() < deadline:
            time.sleep(0.02)

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_ready(self) -> RunningServer:
        self.wait_for("The server is fired up and ready to roll!")
        return self

    def wait_listening(self) -> None:
        """Until connections are taken: long before the server is ready."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            with contextlib.suppress(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", self.port)).close()
                return
            assert self.process.poll() is None, self.text()
            assert time.monotonic() < deadline, self.text()
            time.sleep(0.02)

    def wait_for(self, text: str, seconds: float = START_SECONDS) -> None:
        deadline = time.monotonic() + seconds
        while text not in self.text():
            assert self.process.poll() is None, self.text()
            assert time.monotonic() < deadline, f"no {text!r} in\n{self.text()}"
            time.sleep(0.05)

    def children(self) -> dict[str, int]:
        return find_children(self.process.pid)

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def wait(self, seconds: float = 60.0) -> int:
        return self.process.wait(seconds)

    def workers(self) -> list[int]:
        """Processes of engines and of their ranks, once there are any."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            engines = [pid for name, pid in self.children().items() if name.startswith("engine")]
            with contextlib.suppress(FileNotFoundError):  # it has just ended
                ranks = [pid for one in engines for pid in find_children(one).values()]
                if engines:
                    return [*engines, *ranks]
            time.sleep(0.05)
        raise AssertionError(self.text())

    def find_rank(self) -> int:
        """The process of rank 1, of the engine that runs."""
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            engine = self.children().get("engine")
            if engine and (rank := find_children(engine).get("rank")):
                return rank
            time.sleep(0.05)
        raise AssertionError(self.text())

    def call(
        self, method: str, path: str, body: Any = None, *, timeout: float = START_SECONDS
    ) -> tuple[int, bytes]:
        with contextlib.closing(self._connection(timeout)) as connection:
            return self._send(connection, method, path, body)

    def json(self, path: str, body: Any = None) -> Any:
        status, data = self.call("GET" if body is None else "POST", path, body)
        assert status == 200, (status, data, self.text())
        return json.loads(data)

    def stream(
        self, path: str, body: Any, *, timeout: float = START_SECONDS
    ) -> Iterator[dict[str, Any]]:
        """Server-sent events until [DONE]; ConnectionError when the stream breaks off. `timeout`:
        between two events, in which an engine may have to start."""
        with contextlib.closing(self._connection(timeout)) as connection:
            headers = {"Content-Type": "application/json"}
            connection.request("POST", path, json.dumps({**body, "stream": True}), headers)
            response = connection.getresponse()
            assert response.status == 200, (response.status, response.read())
            for line in response:
                if line.strip() == b"data: [DONE]":
                    return
                if line.startswith(b"data: "):
                    yield json.loads(line[6:])
            raise ConnectionError("the stream ended without [DONE]")

    def _connection(self, timeout: float) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def _send(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: Any
    ) -> tuple[int, bytes]:
        data = None if body is None else json.dumps(body)
        connection.request(method, path, data, {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read()
