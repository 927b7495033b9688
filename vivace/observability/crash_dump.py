"""The requests of the last minutes, written as JSON lines when something breaks.

A frontend keeps what it sent to the engine, encoded, for five minutes and up to a number of bytes.
When the engine goes down or a request ends with status 500, all of it is written to a new file in
the folder, one request per line, so that the failure can be played again. Prompts are in there as
token ids; keys, headers and cache salts are not. The folder holds a limited number of dumps and of
bytes in them: the oldest make room for new ones.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import msgspec

from vivace.files import open_own_file
from vivace.protocol.messages import Delta, Finish, LogprobOptions, Request, SamplingParams
from vivace.protocol.tasks import GENERATE, Task

log = logging.getLogger(__name__)

WINDOW_SECONDS = 300.0
LARGEST_MEMORY = 64 << 20
"""Bytes of encoded requests kept at most; the oldest go first."""
QUIET_SECONDS = 10.0
"""At most one file per this many seconds for failed requests."""
MOST_FILES = 64
MOST_BYTES = 1 << 30
"""Of all dumps in the folder, of all servers and frontends that write there."""
PATTERN = "crash-*-frontend*.jsonl"
FAILED_STATUS = 500


class DumpedRequest(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One line of a dump."""

    key: int
    rid: str
    at: float
    """Seconds since the epoch (wall clock) when it was sent to the engine"""
    tokens: list[int]
    sampling: SamplingParams
    logprobs: LogprobOptions | None = None
    priority: int | None = None
    stream: bool = False
    resumed: list[int] = []
    task: Task = GENERATE


class DumpHead(msgspec.Struct, kw_only=True):
    """The first line of a dump. `unfinished` and `failed` are request keys."""

    reason: str
    at: float
    version: str
    requests: int
    unfinished: list[int]
    failed: dict[str, str]


class CrashDump:
    """What one frontend remembers. `clock` is monotonic and in seconds, `wall` the time of day."""

    def __init__(
        self,
        folder: Path,
        *,
        version: str,
        index: int = 0,
        window: float = WINDOW_SECONDS,
        memory: int = LARGEST_MEMORY,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        background: Callable[[Callable[[], None]], object] = lambda save: save(),
    ) -> None:
        """`background` runs what touches the disk, which may take long."""
        self._folder = folder
        self._version = version
        self._index = index
        self._window = window
        self._memory = memory
        self._clock = clock
        self._wall = wall
        self._background = background
        self._trouble = ""
        """why the last dump could not be written"""
        self._removed = False
        """whether dumps had to make room before"""
        self._encoder = msgspec.json.Encoder()
        self._lines: deque[tuple[float, int, bytes]] = deque()
        self._bytes = 0
        self._unfinished: set[int] = set()
        self._failed: dict[int, str] = {}
        self._written = 0
        self._quiet_until = float("-inf")

    @property
    def bytes(self) -> int:
        return self._bytes

    def add(self, request: Request) -> None:
        """Remember a request on its way to the engine."""
        line = self._encoder.encode(
            DumpedRequest(
                key=request.key,
                rid=request.rid,
                at=self._wall(),
                tokens=request.tokens,
                sampling=request.sampling,
                logprobs=request.logprobs,
                priority=request.priority,
                stream=request.stream,
                resumed=request.resumed,
                task=request.task,
            )
        )
        self._lines.append((self._clock(), request.key, line))
        self._bytes += len(line)
        self._unfinished.add(request.key)
        self._trim()

    def finish(self, delta: Delta) -> Path | None:
        """Book a request's end; a failure of ours (status 500) writes a dump."""
        if delta.finish is None:
            return None
        self._unfinished.discard(delta.key)
        if not is_our_failure(delta.finish):
            return None
        self._failed[delta.key] = delta.finish.message or "no message"
        if self._clock() < self._quiet_until:
            return None
        return self.write(f"a request failed: {delta.finish.message}")

    def blame(self, keys: list[int], reason: str) -> None:
        """These requests were found to kill engines; the dump that is written next says so."""
        for key in keys:
            if key in self._unfinished:
                self._failed[key] = reason

    def forget(self, keys: list[int]) -> None:
        """These requests were cancelled."""
        self._unfinished.difference_update(keys)

    def write(self, reason: str) -> Path:
        """Write what is remembered to this file; when that is impossible the log says so once."""
        self._trim()
        self._quiet_until = self._clock() + QUIET_SECONDS
        self._written += 1
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(self._wall()))
        name = f"crash-{stamp}-frontend{self._index}-{os.getpid()}-{self._written}.jsonl"
        head = DumpHead(
            reason=reason,
            at=self._wall(),
            version=self._version,
            requests=len(self._lines),
            unfinished=sorted(self._unfinished),
            failed={str(key): message for key, message in self._failed.items()},
        )
        lines = [self._encoder.encode(head), *(line for _, _, line in self._lines)]
        path = self._folder / name
        self._background(lambda: self._try_to_save(path, lines))
        return path

    def _try_to_save(self, path: Path, lines: list[bytes]) -> None:
        data = b"\n".join(lines) + b"\n"
        try:
            if make_room(self._folder, len(data)) and not self._removed:
                self._removed = True
                limit = f"{MOST_FILES} dumps and {MOST_BYTES >> 20} MiB"
                log.warning("%s keeps at most %s; the oldest are removed", self._folder, limit)
            save(path, data)
        except OSError as error:
            reason = error.strerror or str(error)
            if reason != self._trouble:
                log.error("cannot write the crash dump to %s: %s", self._folder, reason)
            self._trouble = reason
        else:
            self._trouble = ""
            log.warning("wrote %d requests to %s", len(lines) - 1, path)

    def _trim(self) -> None:
        oldest = self._clock() - self._window
        while self._lines and (self._lines[0][0] < oldest or self._bytes > self._memory):
            _, key, line = self._lines.popleft()
            self._bytes -= len(line)
            self._failed.pop(key, None)
            self._unfinished.discard(key)


def make_room(folder: Path, coming: int) -> int:
    """Remove the oldest dumps until one of `coming` bytes has its place; returns how many. Other
    files are not touched. Raises OSError."""
    found = []
    for path in folder.glob(PATTERN):
        with contextlib.suppress(FileNotFoundError):  # another frontend made room
            status = path.lstat()
            found.append((status.st_mtime_ns, path, status.st_size))
    found.sort()
    size, removed = sum(size for _, _, size in found) + coming, 0
    while len(found) - removed >= MOST_FILES or (size > MOST_BYTES and removed < len(found)):
        _, path, freed = found[removed]
        path.unlink(missing_ok=True)
        size, removed = size - freed, removed + 1
    return removed


def save(path: Path, data: bytes) -> None:
    """A whole file or none: half of one would only take the last space. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    try:
        descriptor = open_own_file(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        part.rename(path)
    except OSError:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise


def is_our_failure(finish: Finish) -> bool:
    return finish.status is not None and finish.status == FAILED_STATUS
