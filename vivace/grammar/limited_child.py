"""What a process does that ends when a constraint takes too much (`limited_process.py`)."""

from __future__ import annotations

import contextlib
import resource
import signal
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

from vivace.config.child_process import STOPPING, die_with
from vivace.config.time_slices import be_less_urgent, yield_often
from vivace.grammar.limited_process import TrialLimits, encode, frame, receive
from vivace.grammar.limits import STACK
from vivace.protocol.constraints import Constraint

Answer = Callable[[Constraint], msgspec.Struct]


def answer_constraints(begin: Callable[[bytes], tuple[Answer, TrialLimits]]) -> None:
    """The whole life of such a process. `begin`: of its first message, what answers constraints,
    and its limits."""
    with contextlib.suppress(OSError):  # the end of the socket is watched as well
        die_with(int(sys.argv[1]))
    obey_the_engine_only()
    sock = socket.socket(fileno=0)
    threading.stack_size(STACK)
    with contextlib.suppress(EOFError, OSError):
        answer, limits = begin(receive(sock))
        limit_resources(limits)
        sock.sendall(frame(b""))
        worker = threading.Thread(target=serve, args=(sock, answer, limits), daemon=True)
        worker.start()
        worker.join()


def obey_the_engine_only() -> None:
    """The timer's signal must kill, even when whoever started the server ignores or blocks it."""
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPROF})


def limit_resources(limits: TrialLimits) -> None:
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limit = mapped + STACK + limits.memory
    _, allowed = resource.getrlimit(resource.RLIMIT_AS)
    if allowed != resource.RLIM_INFINITY:  # `ulimit -v` of whoever started this
        limit = min(limit, allowed)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def serve(sock: socket.socket, answer: Answer, limits: TrialLimits) -> None:
    """One constraint after the other, to the end of the socket."""
    with contextlib.suppress(EOFError, OSError):
        while True:
            constraint = msgspec.msgpack.decode(receive(sock), type=Constraint)
            signal.setitimer(signal.ITIMER_PROF, limits.cpu_seconds)
            with yield_often():
                message = encode(answer(constraint))
            signal.setitimer(signal.ITIMER_PROF, 0.0)
            sock.sendall(frame(message))
            be_less_urgent()  # what is only loaded for the first answer is part of the start
