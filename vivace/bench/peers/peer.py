"""What a server must offer to be compared, and how one is started and stopped."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from vivace.bench.environment import instruction_set
from vivace.bench.errors import BenchError
from vivace.bench.http_json import ask_or_none

Run = Callable[[Sequence[str]], None]
"""Runs one set-up command; raises BenchError when it fails."""

LOCALHOST = "127.0.0.1"
STOP_SECONDS = 20.0
LOG_TAIL = 2000
TOP_PRIORITY = "-20"


class Peer(Protocol):
    """A server that can be installed, started, and measured through one of the back ends."""

    name: str
    backend: str
    """Name in `vivace.bench.backends.BACKENDS`. Prompts are sent as token ids."""
    model: str
    """Model name in requests."""
    connection_per_request: bool
    ready_seconds: float
    """How long it may take to start."""

    def setup(self, directory: Path, run: Run) -> None:
        """Install it and prepare its model under `directory`. Only on the user's word."""
        ...

    def missing(self, directory: Path) -> str:
        """What is not there of what `setup` makes; empty when it can be started."""
        ...

    def command(self, directory: Path, port: int) -> list[str]:
        """The command that starts the server on 127.0.0.1:port."""
        ...

    def version(self, directory: Path) -> str: ...


@dataclass(frozen=True, kw_only=True)
class RunningPeer:
    """A started server. `session` is its session id: every process of it can be found by that."""

    peer: Peer
    base_url: str
    session: int
    command: list[str]
    seconds_to_ready: float
    instructions: str
    """with which it computes, where it says so"""


@contextlib.contextmanager
def run_server(
    peer: Peer, directory: Path, logs: Path, *, priority: bool = False
) -> Iterator[RunningPeer]:
    """Start a server in a session of its own, wait until /health answers, stop it at the end.

    With `priority` its session gets the highest scheduling weight of the kernel's autogroups
    (needs root); plain niceness does nothing between sessions.
    """
    port = free_port()
    command = peer.command(directory, port)
    file = logs / f"{peer.name}.log"
    started = time.monotonic()
    with file.open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
        try:
            if priority:
                raise_priority(process.pid)
            base_url = f"http://{LOCALHOST}:{port}"
            wait_for(f"{base_url}/health", process, peer, file)
            seconds = time.monotonic() - started
            described = ask_or_none(f"{base_url}/server_info")
            yield RunningPeer(
                peer=peer,
                base_url=base_url,
                session=process.pid,
                command=command,
                seconds_to_ready=seconds,
                instructions=instruction_set(described if isinstance(described, dict) else {}),
            )
        finally:
            stop(process)


def wait_for(url: str, process: subprocess.Popen[bytes], peer: Peer, log: Path) -> None:
    """Until `url` answers 200; BenchError with the end of the log when the server ends first."""
    deadline = time.monotonic() + peer.ready_seconds
    while True:
        if process.poll() is not None:
            raise BenchError(
                f"{peer.name} ended with code {process.returncode}; the end of {log}:\n{tail(log)}"
            )
        try:
            with urllib.request.urlopen(url, timeout=5.0) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            pass
        if time.monotonic() > deadline:
            raise BenchError(
                f"{peer.name} was not ready after {peer.ready_seconds:g} s; the end of {log}:\n"
                f"{tail(log)}"
            )
        time.sleep(0.1)


def stop(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM to the server's process group, SIGKILL when that does not end it."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            continue
        break
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def raise_priority(process: int) -> None:
    """Give a process's session the highest autogroup weight; BenchError when not permitted."""
    try:
        Path(f"/proc/{process}/autogroup").write_text(TOP_PRIORITY)
    except OSError as error:
        raise BenchError(f"--priority needs root and kernel autogroups: {error}") from error


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOCALHOST, 0))
        return probe.getsockname()[1]


def tail(file: Path) -> str:
    with contextlib.suppress(OSError):
        return file.read_bytes()[-LOG_TAIL:].decode("utf-8", "replace")
    return ""


def run_shown(command: Sequence[str]) -> None:
    """Print a set-up command and run it (a list of words, no shell); its output only on failure."""
    print(f"+ {shlex.join(command)}", flush=True)
    try:
        subprocess.run(list(command), check=True, capture_output=True)
    except subprocess.CalledProcessError as error:
        text = (error.stdout + error.stderr)[-LOG_TAIL:].decode("utf-8", "replace")
        raise BenchError(f"{shlex.join(command)} ended with {error.returncode}:\n{text}") from error
    except OSError as error:
        raise BenchError(f"{shlex.join(command)} cannot be run: {error}") from error


def command_output(command: Sequence[str]) -> str:
    """Standard output of a command, empty when it fails."""
    try:
        done = subprocess.run(list(command), capture_output=True, timeout=60, check=True)
    except (subprocess.SubprocessError, OSError):
        return ""
    return done.stdout.decode("utf-8", "replace").strip()
