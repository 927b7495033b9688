"""The frontend's end of a process that renders chat templates: what the two say to each other, and
what the end of the process means.

Messages are JSON toward the process (what requests bring is JSON, with numbers of any size),
msgpack back.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import weakref
from pathlib import Path
from typing import Any

import msgspec

from vivace.config.child_process import bare_environment, python_module
from vivace.config.trial_process import LENGTH, frame
from vivace.frontend.errors import BadRequest, OverLimit


class RenderLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Of one rendering, whatever the template does."""

    cpu_seconds: float = 2.0
    """of processor time: a busy machine does not make a template slow"""
    wall_seconds: float = 60.0
    memory: int = 512 << 20
    """bytes beyond what the idle process has mapped"""
    characters: int = 16 << 20
    """of the text that comes out"""

    @property
    def largest_answer(self) -> int:
        """Bytes of an answer's frame: four for each character, and what stands around them."""
        return 4 * self.characters + 4096


class LoadTemplates(msgspec.Struct, frozen=True, tag="load"):
    """The first message: templates by name, to be compiled."""

    sources: dict[str, str]
    limits: RenderLimits


class Render(msgspec.Struct, frozen=True, tag="render"):
    template: str
    variables: dict[str, Any]


class LoadResult(msgspec.Struct, frozen=True, tag="loaded"):
    walks_content: list[str]
    """names of the templates that loop over a message's content as a list of parts"""


class RenderResult(msgspec.Struct, frozen=True, tag="rendered"):
    text: str


class RenderError(msgspec.Struct, frozen=True, tag="refused"):
    reason: str
    """a clause whose subject is the chat template"""
    over_limit: bool = False
    template: str = ""
    """the name of the one that cannot be loaded"""


RenderMessage = LoadTemplates | Render
RenderReply = LoadResult | RenderResult | RenderError


CHUNK = 256 << 10
LOOK, LOOKS = 0.5, 6
"""Seconds between two looks at a process, and how many of them may find no progress."""
MODULE = "vivace.frontend.template_process"

decode = msgspec.msgpack.Decoder(RenderReply).decode


class ProcessEnded(Exception):
    """The process is gone. `code`: its exit status as subprocess has it."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code

    @property
    def too_slow(self) -> bool:
        return self.code == -signal.SIGPROF


class RenderProcess:
    """A process and the socket to it; nothing here waits, except for its end once that is certain.

    It needs its `LoadTemplates` first, and gives one answer to each message, in order. To a fork of
    the process that started it, it has ended: two that share a socket would read each other's
    answers.
    """

    def __init__(self, limits: RenderLimits) -> None:
        self._limits = limits
        self._owner = os.getpid()
        self._unread = bytearray()
        self._unsent = bytearray()
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [*python_module(MODULE), str(os.getpid())],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                env=bare_environment(),
                process_group=0,  # Ctrl-C is for who started it: it ends with its parent
            )
        ours.setblocking(False)
        self._socket = ours
        self.end = weakref.finalize(self, end, ours, self._process)

    @property
    def pid(self) -> int:
        return self._process.pid

    def cpu_time(self) -> int | None:
        """Of the process so far, in a unit of the system's; None where that is not told."""
        for name in ("schedstat", "stat"):
            try:
                text = Path(f"/proc/{self.pid}/{name}").read_text()
                fields = text.rpartition(")")[2].split()
                return int(fields[0]) if name == "schedstat" else int(fields[11]) + int(fields[12])
            except (OSError, ValueError, IndexError):
                continue
        return None

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: bytes) -> bool:
        """Whether all is on its way; otherwise `flush` when the socket takes more. Raises
        ProcessEnded in a fork."""
        if os.getpid() != self._owner:
            raise ProcessEnded(0)
        self._unsent += frame(message)
        return self.flush()

    def flush(self) -> bool:
        while self._unsent:
            try:
                del self._unsent[: self._socket.send(memoryview(self._unsent)[:CHUNK])]
            except BlockingIOError:
                return False
            except OSError:
                return True  # it is gone, which `receive` will say
        return True

    def receive(self) -> list[RenderReply]:
        """The answers that are complete; call it when there is something to read.

        Raises ProcessEnded, also for an answer that is longer than any may be. `end` it then.
        """
        try:
            chunk = self._socket.recv(CHUNK)
        except BlockingIOError:
            return []
        except OSError:
            chunk = b""
        if not chunk:
            raise ProcessEnded(self._exit_code())
        self._unread += chunk
        answers: list[RenderReply] = []
        while (body := self._body()) is not None:
            answers.append(decode(body))
        return answers

    def _body(self) -> bytes | None:
        """The next whole message, out of what has been read."""
        if len(self._unread) < LENGTH.size:
            return None
        (length,) = LENGTH.unpack_from(self._unread)
        if length > self._limits.largest_answer:
            self._process.kill()
            raise ProcessEnded(self._exit_code())
        end = LENGTH.size + length
        if len(self._unread) < end:
            return None
        body = bytes(memoryview(self._unread)[LENGTH.size : end])
        del self._unread[:end]
        return body

    def _exit_code(self) -> int:
        try:
            return self._process.wait(1.0)  # its socket closes a moment before it is gone
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


class ProgressWatch:
    """Whether a process that has something to do gets on with it. One that is stopped, or waits
    for the disk for ever, uses no processor time; `look` says so when LOOKS in a row found none.

    Looks are counted, not seconds: a frontend that was itself stopped judges nobody by that.
    """

    def __init__(self, process: RenderProcess) -> None:
        self._process = process
        self._used = process.cpu_time()
        self._still = 0

    def look(self) -> bool:
        """Call it every LOOK seconds."""
        used, self._used = self._used, self._process.cpu_time()
        self._still = self._still + 1 if used is not None and used == self._used else 0
        return self._still >= LOOKS


def end(sock: socket.socket, process: subprocess.Popen[bytes]) -> None:
    sock.close()
    process.kill()
    process.wait()


FIELD = "messages"
MAX_ATTEMPTS = 3


def to_bad_request(answer: RenderReply) -> BadRequest:
    """Of a message that the process refused."""
    if not isinstance(answer, RenderError):
        raise TypeError(f"{type(answer).__name__} is no answer to a rendering")
    kind = OverLimit if answer.over_limit else BadRequest
    return kind(answer.template or FIELD, f"the chat template {answer.reason}")


def process_error(ended: ProcessEnded, attempt: int, limits: RenderLimits) -> BadRequest | None:
    """Of the message at which a process ended, the `attempt`-th; None: try it again.

    A process also ends of its own accord, or because somebody killed it.
    """
    if ended.too_slow:
        seconds = f"{limits.cpu_seconds:g} s"
        return OverLimit(FIELD, f"the chat template takes longer than the limit of {seconds}")
    if attempt < MAX_ATTEMPTS:
        return None
    return OverLimit(FIELD, "the process that renders the chat template dies of them")


def stall_error(limits: RenderLimits) -> BadRequest:
    return BadRequest(
        FIELD,
        f"the chat template got no processor time for {limits.wall_seconds:g} s",
        503,
        retry_after=5,
    )


def no_process(error: OSError) -> BadRequest:
    reason = f"no process can be started for the chat template: {error}"
    return BadRequest(FIELD, reason, 503, retry_after=5)


def closed_error() -> BadRequest:
    return BadRequest(FIELD, "the server is stopping", 503)


def too_many() -> BadRequest:
    reason = "too many conversations wait for the chat template"
    return BadRequest(FIELD, reason, 503, retry_after=1)
