"""One child process: started with a control socket to it, described when it has died."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from vivace.config.child_process import (
    block_signals,
    child_environment,
    describe_exit,
    python_module,
)
from vivace.errors import CANNOT_START, says_no_memory
from vivace.observability.awaited_processes import find_parent, list_processes
from vivace.protocol.message_socket import MessageSocket
from vivace.supervisor.ipc import supervisor_end
from vivace.supervisor.messages import FromChild, Setup
from vivace.system_calls import open_process, send_signal

Role = Literal["engine", "frontend", "ray"]
NAMES: dict[Role, str] = {"engine": "engine", "ray": "process that talks to Ray"}
Command = Callable[[Role, int], Sequence[str]]
"""(role, descriptor of its control socket) -> command line"""
FAILED = 1
EXIT_SECONDS = 5.0
"""From closing its socket to the end of a process; normally far less than a millisecond."""


@dataclass(frozen=True, kw_only=True)
class OutOfMemory:
    """A process that found no memory: which one, and at which stage of its start, or serving."""

    role: Role
    stage: str
    serving: bool


Advice = Callable[[OutOfMemory], str]


@dataclass(kw_only=True, eq=False)
class Child:
    """A running child. Its control socket closes the moment it dies, whatever it dies of."""

    role: Role
    process: subprocess.Popen[bytes]
    control: MessageSocket[FromChild]
    out_of_memory_kills: int
    output: int | None = None
    """descriptor to read what it prints from; None when it prints by itself"""
    setup: Setup | None = field(default=None, repr=False)
    """what it was told to be, keys included; None while it only warms its imports"""
    started: float = field(default_factory=time.monotonic)
    stage: str = ""
    """of its start, as it last said"""
    progressed: float = field(default_factory=time.monotonic)
    """when it last said something of its start"""
    serving: bool = False
    """a frontend that accepts connections, an engine that is ready"""
    live: int | None = None
    """requests of a frontend that was told to drain; None: it has not said yet"""
    failure: str = ""
    """the exception it reported before it died"""
    passing: bool = False
    """whether another start may do"""
    killed_because: str = ""
    """why we killed it ourselves"""

    @property
    def name(self) -> str:
        several = self.setup is not None and self.setup.count > 1
        if self.role == "frontend":
            return f"frontend {self.index}"
        return f"{self.role} {self.index}" if several else NAMES[self.role]

    @property
    def index(self) -> int:
        return self.setup.index if self.setup is not None else 0

    @property
    def place(self) -> int:
        return self.setup.place if self.setup is not None else 0

    def begin(self, setup: Setup) -> None:
        """Hand it its setup: now it builds and runs."""
        self.setup = setup
        self.control.send(setup)

    def kill(self, reason: str = "") -> None:
        """As `kill_all`."""
        kill_all([self], reason)

    def signal(self, number: int) -> None:
        if self.process.poll() is None:
            self.process.send_signal(number)

    def cause(self, memory_advice: Advice = lambda lack: "") -> str:
        """Why it died, in one line. Call it once the socket is closed. `memory_advice`: what to do
        when there was no memory."""
        try:
            code = self.process.wait(EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill("it closed its control socket and did not end")
            code = self.process.wait()
        if self.killed_because:
            return self.killed_because
        if self.cannot_start:
            return self.failure
        ending = describe_exit(code)
        killed = code == -signal.SIGKILL and out_of_memory_kills() > self.out_of_memory_kills
        if killed:
            ending += " (the kernel's out-of-memory killer was at work)"
        text = f"{self.failure} ({ending})" if self.failure else ending
        if not killed and not says_no_memory(self.failure):
            return text
        when = "while serving" if self.serving else f"at the start ({self.stage or 'imports'})"
        lack = OutOfMemory(role=self.role, stage=self.stage, serving=self.serving)
        threads = " or more threads (pids limit, ulimit -u)" if "thread" in self.failure else ""
        return f"{text}, no memory{threads} {when}: {memory_advice(lack)}"

    @property
    def cannot_start(self) -> bool:
        """It ended over something the user can put right, and said what."""
        return bool(self.failure) and self.process.returncode == CANNOT_START

    @property
    def lost_node(self) -> bool:
        """Another start may do, for which it has not waited itself."""
        return self.passing and not self.cannot_start

    @property
    def exit_code(self) -> int:
        """Of a server that ends because this child did not start."""
        return CANNOT_START if self.cannot_start and not self.passing else FAILED

    def close(self) -> None:
        self.control.close()


def spawn(role: Role, command: Command, *inherited: int, piped: bool = False) -> Child:
    """Start a child. It waits for its setup; `inherited` are descriptors it gets.
    `piped`: what it prints is for us to read, not for our own standard streams."""
    ours, theirs = socket.socketpair()
    before = out_of_memory_kills()
    reader, writer = line_pipe() if piped else (None, None)
    try:
        with block_signals():
            process = subprocess.Popen(
                command(role, theirs.fileno()),
                pass_fds=[theirs.fileno(), *inherited],
                stdin=subprocess.DEVNULL,
                stdout=writer,
                stderr=writer,
                env=child_environment(),
            )
    except OSError:
        ours.close()
        if reader is not None:
            os.close(reader)
        raise
    finally:
        theirs.close()
        if writer is not None:
            os.close(writer)
    return Child(
        role=role,
        process=process,
        control=supervisor_end(ours),
        out_of_memory_kills=before,
        output=reader,
    )


def kill_all(children: Iterable[Child], reason: str = "") -> None:
    """And what they have started: who was stopped before it could ask the kernel to die with its
    parent would stay for ever. The list of all processes is read once."""
    live: list[subprocess.Popen[bytes]] = []
    for child in children:
        child.killed_because = child.killed_because or reason
        if child.process.poll() is None:
            live.append(child.process)
    started = open_children({process.pid for process in live}) if live else []
    for process in live:
        process.kill()
    for descriptor in started:
        with contextlib.suppress(OSError):
            send_signal(descriptor, signal.SIGKILL)
        os.close(descriptor)


def open_children(parents: Collection[int]) -> list[int]:
    """Descriptors of their children, which mean them whoever has their numbers later. None where
    the system has no such thing or no room: then they end only if they asked for it."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for child, _, _, parent in list_processes():
            if parent not in parents:
                continue
            with contextlib.suppress(ProcessLookupError):
                found.append(open_process(child))
                if find_parent(child) != parent:  # it has ended, and its number is another one's
                    os.close(found.pop())
    return found


def line_pipe() -> tuple[int, int]:
    """(reader, writer); a full one does not block its writers."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    return reader, writer


def process_command(role: Role, control: int) -> list[str]:
    """`python -m vivace.launch.child <role>`; `control` is the child's end of the socket."""
    words = ["--control", str(control), "--parent", str(os.getpid())]
    return [*python_module("vivace.launch.child"), role, *words]


def with_preload(command: Command) -> Command:
    """The same command for a child that imports what it needs before it has its setup."""
    return lambda role, control: [*command(role, control), "--preload"]


def out_of_memory_kills() -> int:
    """How often the kernel has killed for memory since it was booted."""
    try:
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    except OSError:
        pass
    return 0
