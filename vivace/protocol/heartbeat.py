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
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from vivace.protocol.ranks import MOST_RANKS
from vivace.protocol.shared_memory import ENGINE_BYTES, SharedMemory, words
from vivace.protocol.step import StepPlan

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


# -- steps -----------------------------------------------------------------------------------------

FACTOR = 4.0
"""A step may take so many times what was expected of it."""
FADING = 0.98
"""Per step: how slowly a long step is forgotten."""
LARGEST_RISE = 2.0
"""One step raises what is expected by at most this factor: a stopped process is no slow device."""
UNKNOWN = 60.0
"""Seconds for the first step, before anything was measured."""
ATTENTION = 1024
"""A token of a chunk this far into its context counts double."""
SCORED = 8
"""A token with log-probabilities counts so many more: it needs the logits of the vocabulary."""


@dataclass(frozen=True, slots=True)
class StepTiming:
    """A step that was launched."""

    times: StepTimes
    """of steps like it: with log-probabilities, or without"""
    work: int
    """0: it computes nothing"""
    allowance: float
    """seconds"""
    started: float


class StepHeartbeat:
    """Says, before each step, which requests are in it and how long it may take."""

    def __init__(self, heartbeat: EngineHeartbeat) -> None:
        self._heartbeat = heartbeat
        self._plain_times = StepTimes(MIN_ALLOWANCE)
        self._scored_times = StepTimes(MIN_ALLOWANCE, similar=self._plain_times)
        self._members: dict[int, tuple[Span, int]] = {}
        """row -> who is in it, and how many tokens are known of it"""
        self._scored: dict[int, bool] = {}
        """row that wants log-probabilities -> of its prompt too"""
        self._shown_rows: list[int] | None = None
        """rows whose spans the heartbeat shows"""
        self._steps = 0
        self._running: deque[StepTiming] = deque()
        self._ended = 0.0
        """when the last step did"""

    def begin(self, plan: StepPlan) -> StepTiming:
        """The step is launched now. One that raises stays the one to blame."""
        self._steps += bool(plan.rows)
        self._update_members(plan)
        work = self._plan_work(plan) if plan.rows else 0
        scored = self._scored_tokens(plan) if self._scored else 0
        times = self._scored_times if scored else self._plain_times
        work += SCORED * scored
        timing = StepTiming(times, work, times.allowance(work) if work else 0.0, time.monotonic())
        if work:  # the device may have to run others first
            self._show(plan, timing.allowance + sum(one.allowance for one in self._running))
        return timing

    def follow(self, timing: StepTiming) -> None:
        """It runs beside what the engine does next."""
        self._running.append(timing)

    def end(self, timing: StepTiming) -> None:
        """It has run, and whatever was launched before it."""
        if not timing.work:
            return
        while self._running and self._running.popleft() is not timing:
            pass
        now = time.monotonic()
        timing.times.learn(timing.work, now - max(timing.started, self._ended))
        self._ended = now
        if not self._running:
            self._heartbeat.schedule()

    def _update_members(self, plan: StepPlan) -> None:
        for row in plan.leaves:
            self._members.pop(row, None)
            self._scored.pop(row, None)
        for join in plan.joins:
            self._scored.pop(join.row, None)
            if join.logprobs is not None:
                self._scored[join.row] = join.logprobs.start >= 0
            self._members[join.row] = Span(join.key, self._steps), len(join.tokens)
        if plan.leaves or plan.joins:
            self._shown_rows = None

    def _plan_work(self, plan: StepPlan) -> int:
        counts = plan.counts
        decodes = counts.count(1)
        if decodes == len(counts):
            return decodes
        spans = zip(plan.rows, counts, strict=True)
        chunks = [(count, self._members[row][1]) for row, count in spans if count > 1]
        return step_work(chunks, decodes)

    def _scored_tokens(self, plan: StepPlan) -> int:
        """At most so many of the step have log-probabilities."""
        spans = zip(plan.rows, plan.counts, strict=True)
        return sum(count if self._scored[row] else 1 for row, count in spans if row in self._scored)

    def _show(self, plan: StepPlan, allowance: float) -> None:
        tokens = sum(plan.counts)
        if plan.rows == self._shown_rows:
            self._heartbeat.repeat_step(self._steps, tokens, allowance)
        else:
            spans = (self._members[row][0] for row in plan.rows)
            self._heartbeat.step(self._steps, tokens, allowance, spans)
            self._shown_rows = plan.rows


def step_work(chunks: list[tuple[int, int]], decodes: int) -> int:
    """Tokens to compute, those behind a long context counted more. `chunks`: (tokens, context)."""
    return decodes + sum(count + count * context // ATTENTION for count, context in chunks)


class StepTimes:
    """Seconds expected of a step, by its work in powers of two.

    Where no step with as much work has run, a smaller one tells it in proportion: that is too much
    rather than too little, because time grows more slowly than work. `similar`: of other steps,
    which tell it before any of these has run.
    """

    def __init__(self, patience: float, similar: StepTimes | None = None) -> None:
        self._patience = patience
        self._similar = similar
        self._seconds: dict[int, float] = {}

    def allowance(self, work: int) -> float:
        """Seconds after which a step with so much work is overdue; never below the patience."""
        expected = self._expected(work.bit_length())
        return UNKNOWN if expected is None else max(self._patience, FACTOR * expected)

    def learn(self, work: int, seconds: float) -> None:
        """A step with so much work took so long."""
        size = work.bit_length()
        before = self._seconds.get(size)
        if before is None:
            expected = self._expected(size)
            overdue = expected is not None and seconds > max(self._patience, FACTOR * expected)
            self._seconds[size] = LARGEST_RISE * expected if overdue and expected else seconds
        else:
            self._seconds[size] = max(min(seconds, LARGEST_RISE * before), FADING * before)

    def _expected(self, size: int) -> float | None:
        known = self._seconds
        if not known and self._similar is not None:
            return self._similar._expected(size)
        if size in known:
            return known[size]
        smaller = max((other for other in known if other < size), default=None)
        if smaller is not None:
            return known[smaller] * 2 ** (size - smaller)
        return min((known[other] for other in known), default=None)
