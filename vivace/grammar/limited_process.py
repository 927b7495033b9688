"""The engine's end of a process that tries something, and ends when that is too much.

Libraries of grammars have cases that take exponential time, or all memory, or end their process. So
a constraint first goes through one that may end, and only what comes out of that is compiled in the
engine. Messages are msgpack.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import msgspec

from vivace.config.child_process import bare_environment, python_module
from vivace.config.time_slices import is_less_urgent
from vivace.config.trial_process import frame, receive
from vivace.grammar.backend import LIBRARY_FAILED, GrammarError, GrammarUnavailable, LibraryFault
from vivace.protocol.constraints import REGEX, Constraint

MAX_FRAME = 64 << 20
START_SECONDS = 60.0
"""until it has imported what it needs"""
ATTEMPTS = 2
"""Somebody may kill a process that is not to blame."""
LESS = "allow fewer repetitions ({0,N}, maxLength, maxItems) and alternatives that begin alike"
ANY_CONSTRAINT = Constraint(kind=REGEX, text="a")
encode = msgspec.msgpack.Encoder().encode


class TrialLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Of one constraint."""

    cpu_seconds: float = 1.5
    """of processor time: a busy machine makes no constraint slow"""
    wall_seconds: float = 25.0
    """by the clock: a busy machine leaves little time to who is so little urgent"""
    memory: int = 512 << 20
    """bytes beyond what the idle process has mapped"""


class TrialAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What such a process sends."""

    answer: msgspec.Raw = msgspec.Raw()
    failure: str = ""
    """the traceback of an error that it has not foreseen"""


class CompilerFailure(Exception):
    """An internal error of the compiler, with its traceback in the other process: whoever sent the
    constraint is not to blame."""


class ThreadLink(threading.local):
    """None where nothing was asked yet."""

    own: ProcessLink | None = None


class LimitedProcess:
    """It starts with the first message. Each thread that calls has one of its own, which ends with
    the thread."""

    def __init__(self, module: str, begin: msgspec.Struct, limits: TrialLimits) -> None:
        """`python -m module` hears `begin`, and the limits are its own."""
        self._limits = limits
        self._start = partial(ProcessLink, module, encode(begin), limits.wall_seconds)
        self._link = ThreadLink()
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="trials")
        """Its thread stays as urgent as the first who asked was then, and so does what it starts:
        who asks later may get a hundredth of a core, in which no process gets ready in time."""

    @property
    def pid(self) -> int | None:
        return self._link.own and self._link.own.pid

    def ask(self, message: bytes) -> msgspec.Raw:
        """The answer. Raises GrammarError; LibraryFault; GrammarUnavailable where the machine is to
        blame; CompilerFailure."""
        for _ in range(ATTEMPTS):
            try:
                if (link := self._link.own) is None:
                    link = self._link.own = self._starter.submit(self._start).result()
                    if is_less_urgent():
                        link.exchange(encode(ANY_CONSTRAINT))  # the first is as urgent
                return read_answer(link.exchange(message))
            except (OSError, EOFError, subprocess.SubprocessError) as error:
                self._judge(error)
        raise LibraryFault(f"{LIBRARY_FAILED}: it ends its process; write it in other words")

    def _judge(self, error: Exception) -> None:
        """Of a process that has ended, or does not get on. Raises unless another one may do it."""
        link, self._link.own = self._link.own, None
        if link is None:
            reason = f"cannot be compiled: no process can be started for it ({error})"
            raise GrammarUnavailable(reason) from error
        code = link.end()
        if isinstance(error, TimeoutError):
            seconds = self._limits.wall_seconds
            reason = f"was not compiled in {seconds:g} s: the machine is busy; try again later"
            raise GrammarUnavailable(reason)
        if code == -signal.SIGPROF:
            limit = f"{self._limits.cpu_seconds:g} s"
            raise GrammarError(f"takes longer than {limit} to compile; {LESS}")
        if code in (-signal.SIGABRT, -signal.SIGSEGV):
            limit = f"{self._limits.memory >> 20} MiB"
            raise GrammarError(f"takes more than {limit} to compile; {LESS}")


def read_answer(message: bytearray) -> msgspec.Raw:
    """Raises CompilerFailure."""
    found = msgspec.msgpack.decode(message, type=TrialAnswer)
    if found.failure:
        raise CompilerFailure(found.failure)
    return found.answer


class ProcessLink:
    """A process and the socket to it. Raises OSError where there can be none."""

    def __init__(self, module: str, begin: bytes, seconds: float) -> None:
        """`seconds`: that an answer may take."""
        ours, theirs = socket.socketpair()
        with theirs, contextlib.ExitStack() as undo:
            undo.callback(ours.close)
            self._process = subprocess.Popen(
                [*python_module(module), str(os.getpid())],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # what a library says of somebody's constraint
                env=bare_environment(),
                process_group=0,  # Ctrl-C is for who started it: it ends with its parent
            )
            undo.pop_all()
        self._socket = ours
        self._end = weakref.finalize(self, end_process, ours, self._process)
        try:
            ours.settimeout(START_SECONDS)
            self.exchange(begin)
            ours.settimeout(seconds)
        except BaseException:
            self._end()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def exchange(self, message: bytes) -> bytearray:
        """The answer. Raises OSError or EOFError; `end` the process then."""
        self._socket.sendall(frame(message))
        return receive(self._socket, MAX_FRAME)

    def end(self) -> int:
        """Its exit status as subprocess has it."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0.5)  # its socket closes a moment before it is gone
        self._end()
        return self._process.returncode


def end_process(sock: socket.socket, process: subprocess.Popen[bytes]) -> None:
    sock.close()
    process.kill()
    process.wait()
