"""Who is alive, and at what: a few numbers per process in shared memory.

Beating is a store of some bytes: no system call, no thread, no lock, and it shows a stall even
while the writer holds the interpreter lock or is stopped from outside. All times are nanoseconds of
`time.monotonic_ns`, one clock for all processes of a machine.

Readers look at any moment, also in the middle of a store. A word is stored at once (`words`;
`struct.pack_into` clears its place first). What takes several words has two places, which are
written in turn: the number of beats says which of them is valid.
"""

from __future__ import annotations

import itertools
import struct
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from vivace.protocol.ranks import MOST_RANKS
from vivace.protocol.shared_memory import ENGINE_BYTES, SharedMemory, words

SECOND = 10**9
WORD_BYTES = 8
ACTIVITY = struct.Struct("=qqqq")
"""activity, since, allowance, tokens"""
ACTIVITIES_AT = WORD_BYTES, WORD_BYTES + ACTIVITY.size
"""where the activity lies while the number of beats, which is before them, is even, and odd"""
LIST_AT = WORD_BYTES + 2 * ACTIVITY.size + 2 * WORD_BYTES
STEP, COUNT = LIST_AT // WORD_BYTES - 2, LIST_AT // WORD_BYTES - 1
"""words: the step, and how many spans are listed behind"""
MAX_SPANS = 4000
REQUESTS, TOKENS = ENGINE_BYTES // WORD_BYTES - 2, ENGINE_BYTES // WORD_BYTES - 1
"""words at the end: what the engine holds"""
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
        self._words = words(memory)

    # -- the engine ------------------------------------------------------------------------------

    def begin(self) -> None:
        """Forget what an engine before this one was at."""
        self._words[STEP] = self._words[COUNT] = 0
        self.report_load(0, 0)
        self.idle()

    def report_load(self, requests: int, tokens: int) -> None:
        """That run and wait, of all frontends; and how many tokens they have KV of or wait
        with."""
        self._words[REQUESTS], self._words[TOKENS] = requests, tokens

    def idle(self) -> None:
        """From now on it waits for messages."""
        self._beat(IDLE, 0, 0)

    def schedule(self) -> None:
        """From now on it reads messages, plans or commits."""
        self._beat(SCHEDULING, int(MIN_ALLOWANCE * SECOND), 0)

    def step(self, number: int, tokens: int, allowance: float, spans: Iterable[Span]) -> None:
        """From now on it runs step `number`, for at most `allowance` seconds."""
        listed = list(itertools.islice(spans, MAX_SPANS))
        pairs = [word for span in listed for word in (span.key, span.joined)]
        self._words[COUNT] = 0
        struct.pack_into(f"={len(pairs)}q", self._memory, LIST_AT, *pairs)
        self._words[COUNT] = len(listed)
        self.repeat_step(number, tokens, allowance)

    def repeat_step(self, number: int, tokens: int, allowance: float) -> None:
        """Like `step`, with the spans of the step before."""
        self._words[STEP] = number
        self._beat(STEPPING, int(allowance * SECOND), tokens)

    def _beat(self, kind: int, allowance: int, tokens: int) -> None:
        beats = self._words[0] + 1
        place = ACTIVITIES_AT[beats & 1]
        ACTIVITY.pack_into(self._memory, place, kind, time.monotonic_ns(), allowance, tokens)
        self._words[0] = beats

    # -- everybody else --------------------------------------------------------------------------

    def read(self) -> Activity:
        while True:
            beats = self._words[0]
            activity = ACTIVITY.unpack_from(self._memory, ACTIVITIES_AT[beats & 1])
            if self._words[0] == beats:  # otherwise its place may have been written again
                return Activity(beats, *activity)

    @property
    def load(self) -> tuple[int, int]:
        """(requests, tokens) as it last reported them"""
        return self._words[REQUESTS], self._words[TOKENS]

    @property
    def step_number(self) -> int:
        """Of the step that was begun last."""
        return self._words[STEP]

    def fatal_spans(self) -> tuple[int, Sequence[Span]]:
        """(step, who is in it) of an engine that died; no spans when it died between steps."""
        step, count = self._words[STEP], self._words[COUNT]
        if self.read().kind != STEPPING or not 0 <= count <= MAX_SPANS:
            return step, []
        pairs = struct.unpack_from(f"={2 * count}q", self._memory, LIST_AT)
        return step, [Span(*pair) for pair in zip(pairs[::2], pairs[1::2], strict=True)]


class FrontendHeartbeat:
    """One frontend writes, everybody reads: when it last beat (0 = nobody is there), and when it
    last sent something to each engine."""

    def __init__(self, memory: memoryview) -> None:
        self._words = words(memory)

    def begin(self) -> None:
        """A new process takes the place over."""
        self.end()
        self.beat()

    def end(self) -> None:
        """Nobody is there any more."""
        for word in range(1 + MOST_RANKS):
            self._words[word] = 0

    def beat(self) -> None:
        self._words[0] = time.monotonic_ns()

    def mark_sent(self, engine: int = 0) -> None:
        self._words[1 + engine] = time.monotonic_ns()

    @property
    def alive(self) -> bool:
        return self.last_beat > 0

    @property
    def last_beat(self) -> int:
        return self._words[0]

    def last_sent(self, engine: int = 0) -> int:
        return self._words[1 + engine]


class EngineProgress:
    """Is the engine getting on with its work? For any process that shares the memory."""

    def __init__(self, memory: SharedMemory, engine: int = 0) -> None:
        self._engine = engine
        self._heartbeat = EngineHeartbeat(memory.engine(engine))
        self._frontends = [
            FrontendHeartbeat(memory.heartbeat(place)) for place in range(memory.places)
        ]
        self._asked = 0

    def mark_asked(self) -> None:
        """This process has sent the engine something, on a line of its own."""
        self._asked = time.monotonic_ns()

    def activity(self) -> Activity:
        """What it is at. An engine that rests though a message came for it is deciding since."""
        seen = self._heartbeat.read()
        if seen.kind != IDLE:
            return seen
        times = (heartbeat.last_sent(self._engine) for heartbeat in self._frontends)
        sent = max(self._asked, *times)
        if sent <= seen.since:
            return seen
        return Activity(seen.beats, SCHEDULING, sent, int(MIN_ALLOWANCE * SECOND), 0)

    def steps(self) -> int:
        """How many steps this engine has begun."""
        return self._heartbeat.step_number

    def load(self) -> tuple[int, int]:
        """(requests, tokens)"""
        return self._heartbeat.load

    def computes(self) -> bool:
        """Whether it is in a step."""
        return self._heartbeat.read().kind == STEPPING

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
