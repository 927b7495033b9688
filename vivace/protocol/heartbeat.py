"""Who is alive, and at what: a few numbers per process in shared memory.

Beating is a store of some bytes: no system call, no thread, no lock, and it shows a stall even
while the writer holds the interpreter lock or is stopped from outside. All times are nanoseconds of
`time.monotonic_ns`, one clock for all processes of a machine.
"""

from __future__ import annotations

import itertools
import struct
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from vivace.protocol.shared_memory import SharedMemory

SECOND = 10**9
WORD = struct.Struct("=q")
ACTIVITY = struct.Struct("=qqqqq")
"""beats, activity, since, allowance, tokens"""
SPANS = struct.Struct("=qq")
"""step, how many spans are listed behind"""
SPANS_AT = ACTIVITY.size
LIST_AT = SPANS_AT + SPANS.size
MAX_SPANS = 4000
IDLE, SCHEDULING, STEPPING = range(3)
MIN_ALLOWANCE = 2.0
"""Seconds: what an engine may take to look at a message, or to decide; no step is allowed less."""


@dataclass(frozen=True, slots=True)
class Activity:
    """What an engine does. `beats` changes with every sign of life."""

    beats: int
    kind: int
    since: int
    allowance: int
    """nanoseconds that this may take; beyond them the engine counts as stalled"""
    tokens: int
    """how much work the step is, when `kind` is STEPPING"""


@dataclass(frozen=True, slots=True)
class Span:
    """A request in the step that is run, and in which step it joined its row."""

    key: int
    joined: int


class EngineHeartbeat:
    """The engine writes, everybody reads. A new engine takes the memory over with `begin`."""

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory
        self._beats = 0

    # -- the engine ------------------------------------------------------------------------------

    def begin(self) -> None:
        """Forget what an engine before this one was at."""
        SPANS.pack_into(self._memory, SPANS_AT, 0, 0)
        self.idle()

    def idle(self) -> None:
        """From now on it waits for messages."""
        self._beat(IDLE, 0, 0)

    def schedule(self) -> None:
        """From now on it reads messages, plans or commits."""
        self._beat(SCHEDULING, int(MIN_ALLOWANCE * SECOND), 0)

    def step(self, number: int, tokens: int, allowance: float, spans: Iterable[Span]) -> None:
        """From now on it runs step `number`, for at most `allowance` seconds."""
        listed = list(itertools.islice(spans, MAX_SPANS))
        words = [word for span in listed for word in (span.key, span.joined)]
        SPANS.pack_into(self._memory, SPANS_AT, number, 0)
        struct.pack_into(f"={len(words)}q", self._memory, LIST_AT, *words)
        SPANS.pack_into(self._memory, SPANS_AT, number, len(listed))
        self.repeat_step(number, tokens, allowance)

    def repeat_step(self, number: int, tokens: int, allowance: float) -> None:
        """Like `step`, with the spans of the step before."""
        WORD.pack_into(self._memory, SPANS_AT, number)
        self._beat(STEPPING, int(allowance * SECOND), tokens)

    def _beat(self, kind: int, allowance: int, tokens: int) -> None:
        self._beats += 1
        now = time.monotonic_ns()
        ACTIVITY.pack_into(self._memory, 0, self._beats, kind, now, allowance, tokens)

    # -- everybody else --------------------------------------------------------------------------

    def read(self) -> Activity:
        return Activity(*ACTIVITY.unpack_from(self._memory, 0))

    def fatal_spans(self) -> tuple[int, Sequence[Span]]:
        """(step, who is in it) of an engine that died; no spans when it died between steps."""
        step, count = SPANS.unpack_from(self._memory, SPANS_AT)
        if self.read().kind != STEPPING or not 0 <= count <= MAX_SPANS:
            return step, []
        words = struct.unpack_from(f"={2 * count}q", self._memory, LIST_AT)
        return step, [Span(*pair) for pair in zip(words[::2], words[1::2], strict=True)]


class FrontendHeartbeat:
    """One frontend writes, everybody reads."""

    LAYOUT = struct.Struct("=qq")
    """when it last beat (0 = nobody is there), when it last sent something to the engine"""

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory

    def begin(self) -> None:
        """A new process takes the place over."""
        self.LAYOUT.pack_into(self._memory, 0, time.monotonic_ns(), 0)

    def end(self) -> None:
        """Nobody is there any more."""
        self.LAYOUT.pack_into(self._memory, 0, 0, 0)

    def beat(self) -> None:
        WORD.pack_into(self._memory, 0, time.monotonic_ns())

    def sent(self) -> None:
        WORD.pack_into(self._memory, WORD.size, time.monotonic_ns())

    @property
    def alive(self) -> bool:
        return self.last_beat > 0

    @property
    def last_beat(self) -> int:
        return WORD.unpack_from(self._memory, 0)[0]

    @property
    def last_sent(self) -> int:
        return WORD.unpack_from(self._memory, WORD.size)[0]


class EngineProgress:
    """Is the engine getting on with its work? For any process that shares the memory."""

    def __init__(self, memory: SharedMemory) -> None:
        self._heartbeat = EngineHeartbeat(memory.engine)
        self._frontends = [
            FrontendHeartbeat(memory.heartbeat(place)) for place in range(memory.places)
        ]

    def activity(self) -> Activity:
        """What it is at. An engine that rests though a message came for it is deciding since."""
        seen = self._heartbeat.read()
        if seen.kind != IDLE:
            return seen
        sent = max((heartbeat.last_sent for heartbeat in self._frontends), default=0)
        if sent <= seen.since:
            return seen
        return Activity(seen.beats, SCHEDULING, sent, int(MIN_ALLOWANCE * SECOND), 0)

    def stall(self, now: int | None = None) -> str:
        """What is wrong, in words; "" while the engine rests or needs no longer than it may."""
        seen = self.activity()
        now = time.monotonic_ns() if now is None else now
        if seen.kind == IDLE or now - seen.since <= seen.allowance:
            return ""
        if self._heartbeat.read().beats != seen.beats:
            return ""
        return describe(seen, now)


def describe(seen: Activity, now: int) -> str:
    doing = f"in a step of {seen.tokens} tokens" if seen.kind == STEPPING else "between two steps"
    seconds, allowed = (now - seen.since) / SECOND, seen.allowance / SECOND
    return f"the engine has made no progress for {seconds:.1f} s {doing} (allowed: {allowed:.1f} s)"
