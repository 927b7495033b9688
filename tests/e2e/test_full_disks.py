"""Disks, pipes and tables that are full or gone under a running server: it serves on."""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from running_server import RunningServer, is_alive

from vivace.server.routes import ROUTES

ORACLE = {"VIVACE_EXECUTOR": "oracle:0.002"}
FLAGS = ("--skip-tokenizer-init", "--random-seed", "1", "--enable-metrics")
METHODS = ("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "BREW")
START_SECONDS = 60.0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """256 KiB of file system."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k,mode=1777", "vivace-test", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"cannot mount a tmpfs here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Leave not a byte free."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (4096, 1):
            try:
                while file.write(b"x" * size):
                    pass
            except OSError:
                pass
    return ballast


def ask_everything(server: RunningServer) -> list[int]:
    """Every method on every path: each a new counter."""
    answers = []
    for path in {route.path for route in ROUTES}:
        for method in METHODS:
            status, _ = server.call(method, path.replace("{", "").replace("}", ""))
            answers.append(status)
    return answers


def test_a_disk_that_fills_up(small_disk: Path, tmp_path: Path) -> None:
    """TMPDIR, request log and crash dumps lie there; then space is made again."""
    logs = small_disk / "logs"
    flags = (*FLAGS, "--log-requests", "--log-requests-target", str(logs), "stdout")
    flags = (*flags, "--crash-dump-folder", str(small_disk / "dumps"))
    environment = {**ORACLE, "TMPDIR": str(small_disk)}
    with RunningServer(*flags, environment=environment, log=tmp_path / "log") as server:
        server.wait_ready()
        pids = server.children()
        ballast = fill(small_disk)
        answers = ask_everything(server)
        assert len(answers) > 180 and max(answers) < 500, answers
        ask = {"input_ids": [5, 6], "sampling_params": {"max_new_tokens": 3}}
        for _ in range(20):
            assert server.call("POST", "/generate", ask)[0] == 200
        assert server.children() == pids, server.text()
        assert server.text().count("requests.log: No space left on device") == 1
        os.kill(pids["engine"], signal.SIGKILL)
        server.wait_for("The engine is back")
        server.wait_for("cannot write the crash dump")
        assert server.call("POST", "/generate", ask)[0] == 200
        assert server.children()["frontend"] == pids["frontend"]
        ballast.unlink()
        assert server.call("POST", "/generate", {**ask, "rid": "at-last"})[0] == 200
        server.wait_for("requests.log works again")
        assert "rid='at-last'" in (logs / "requests.log").read_text()
        assert list(small_disk.glob("dumps/*.part")) == []


@contextlib.contextmanager
def gone(folder: Path) -> Iterator[None]:
    folder.rename(folder.with_name("elsewhere"))
    yield
    folder.with_name("elsewhere").rename(folder)


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """PermissionError where this user may not mount."""
    for flags in (["--bind"], ["-o", "remount,bind,ro"]):
        done = subprocess.run(["mount", *flags, str(folder), str(folder)], capture_output=True)
        if done.returncode != 0:
            raise PermissionError(done.stderr.decode().strip())
    yield
    subprocess.run(["umount", "-l", str(folder)], check=True)


def template_processes(frontend: int) -> list[int]:
    tasks = Path(f"/proc/{frontend}/task").iterdir()
    found = [int(child) for task in tasks for child in (task / "children").read_text().split()]
    return [
        pid
        for pid in found
        if b"vivace.frontend.template_process" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]


def test_a_temporary_folder_that_is_lost(tmp_path: Path) -> None:
    """It vanishes, or becomes read-only, after the start: every process can be replaced still."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))  # short enough for a socket's path
    environment = {**ORACLE, "TMPDIR": str(folder)}
    ask = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}

    def chat(server: RunningServer) -> None:
        """Once there is somebody to answer."""
        deadline = time.monotonic() + START_SECONDS
        while (answer := chat_once(server))[0] != 200:
            assert time.monotonic() < deadline, (answer, server.text())
            time.sleep(0.05)

    def chat_once(server: RunningServer) -> tuple[int, bytes]:
        try:
            return server.call("POST", "/v1/chat/completions", ask)
        except OSError as error:
            return 0, str(error).encode()

    with RunningServer("--enable-metrics", environment=environment, log=tmp_path / "log") as server:
        server.wait_ready()
        chat(server)
        assert list(folder.iterdir()) == [], "nothing lives there"
        for lose in (gone, read_only):
            with contextlib.suppress(PermissionError), lose(folder):
                dead = server.children()
                os.kill(dead["engine"], signal.SIGKILL)
                os.kill(template_processes(dead["frontend"])[0], signal.SIGKILL)
                chat(server)
                os.kill(dead["frontend"], signal.SIGKILL)
                chat(server)
                alive = server.children()
                assert alive.keys() == dead.keys() and not set(alive.values()) & set(dead.values())
        server.signal()
        assert server.wait(30) == 0
    folder.rmdir()


def wait_for_health(server: RunningServer) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        assert server.process.poll() is None
        try:
            if server.call("GET", "/health")[0] == 200:
                return
        except OSError:
            pass
        time.sleep(0.1)
    raise AssertionError("it does not come up")


@pytest.mark.parametrize("kind", ["full", "unread"])
def test_a_log_that_goes_nowhere(kind: str, tmp_path: Path) -> None:
    """`vivace serve > /full/log`, and `| something that has stopped reading`."""
    log = Path("/dev/full")
    if kind == "unread":
        log = tmp_path / "pipe"
        os.mkfifo(log)
        reader = os.open(log, os.O_RDWR)
        fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 4096)
    with RunningServer(*FLAGS, environment=ORACLE, log=log) as server:
        wait_for_health(server)
        for _ in range(100):
            assert server.call("GET", "/v1/models")[0] == 200
        dead = server.children()["engine"]
        os.kill(dead, signal.SIGKILL)
        deadline = time.monotonic() + START_SECONDS
        while server.children().get("engine", dead) == dead and time.monotonic() < deadline:
            time.sleep(0.05)
        wait_for_health(server)
        server.signal()
        assert server.wait(30) == 0


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_no_descriptors_are_left_for_connections(tmp_path: Path) -> None:
    with RunningServer(*FLAGS, environment=ORACLE, log=tmp_path / "log") as server:
        server.wait_ready()
        frontend = server.children()["frontend"]
        limits = resource.prlimit(frontend, resource.RLIMIT_NOFILE)
        assert limits[0] == min(limits[1], 1 << 16), "raised as far as it may"
        used = len(list(Path(f"/proc/{frontend}/fd").iterdir()))
        resource.prlimit(frontend, resource.RLIMIT_NOFILE, (used + 10, limits[1]))
        connections = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(60)]
        begun, spent = time.monotonic(), cpu_seconds(frontend)
        time.sleep(2.0)
        share = (cpu_seconds(frontend) - spent) / (time.monotonic() - begun)
        assert share < 0.5, "it spins"
        for connection in connections:
            connection.close()
        wait_for_health(server)
        assert server.children()["frontend"] == frontend and is_alive(frontend)
        assert server.call("POST", "/generate", {"input_ids": [5]})[0] == 200
