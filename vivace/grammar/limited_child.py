"""What a process does that ends when a constraint takes too much (`limited_process.py`)."""

from __future__ import annotations

import contextlib
import resource
import socket
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

import msgspec

from vivace.config.time_slices import be_less_urgent, yield_often
from vivace.config.trial_process import frame, limit_memory, open_parent, processor_time, receive
from vivace.errors import is_panic
from vivace.grammar.limited_process import TrialAnswer, TrialLimits, encode
from vivace.grammar.limits import STACK
from vivace.protocol.constraints import Constraint

MAX_TRACEBACK = 8000
"""characters, the last ones: the error itself may quote a constraint"""
Answer = Callable[[Constraint], msgspec.Struct | None]
"""nothing where it is enough that it comes"""


def answer_constraints(begin: Callable[[bytearray], tuple[Answer, TrialLimits]]) -> None:
    """The whole life of such a process. `begin`: of its first message, what answers constraints,
    and its limits."""
    sock = open_parent()
    threading.stack_size(STACK)
    with contextlib.suppress(EOFError, OSError):
        answer, limits = begin(receive(sock))
        mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        limit_memory(mapped + STACK + limits.memory)
        sock.sendall(frame(b""))
        worker = threading.Thread(target=serve, args=(sock, answer, limits), daemon=True)
        worker.start()
        worker.join()


def serve(sock: socket.socket, answer: Answer, limits: TrialLimits) -> None:
    """One constraint after the other, to the end of the socket."""
    with contextlib.suppress(EOFError, OSError):
        while True:
            constraint = msgspec.msgpack.decode(receive(sock), type=Constraint)
            with processor_time(limits.cpu_seconds), yield_often():
                message = encode(answered(answer, constraint))
            sock.sendall(frame(message))
            be_less_urgent()  # what is only loaded for the first answer is part of the start


def answered(answer: Answer, constraint: Constraint) -> TrialAnswer:
    """With what went wrong, where that is an error of this program."""
    try:
        return TrialAnswer(answer=msgspec.Raw(encode(answer(constraint))))
    except MemoryError:
        raise  # nobody knows what it has left undone: the process ends
    except BaseException as error:
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        said = traceback.format_exc()[-MAX_TRACEBACK:]
        # A path of this program need not be UTF-8.
        return TrialAnswer(failure=said.encode(errors="backslashreplace").decode())
