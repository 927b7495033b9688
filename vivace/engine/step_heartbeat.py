"""What the engine says of its steps: who is in those in flight, and how long they may take."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from vivace.protocol.heartbeat import MIN_ALLOWANCE, EngineHeartbeat, Span
from vivace.protocol.step import StepPlan

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
    spans: tuple[Span, ...]
    """who is in it"""
    tokens: int
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
        self._rows: list[int] | None = None
        """of the last step, while those who have them stay"""
        self._spans: tuple[Span, ...] = ()
        """of these rows"""
        self._shown: tuple[Span, ...] = ()
        """what the heartbeat lists"""
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
        allowance = times.allowance(work) if work else 0.0
        spans = self._find_spans(plan) if work else ()
        timing = StepTiming(times, spans, sum(plan.counts), work, allowance, time.monotonic())
        if work:  # the device may have to run others first
            self._show([*self._running, timing])
        return timing

    def follow(self, timing: StepTiming) -> None:
        """It runs beside what the engine does next."""
        if timing.work:
            self._running.append(timing)

    def schedule(self) -> None:
        """The engine reads messages, plans or commits, for no longer than what runs beside that."""
        if self._running:
            self._show(self._running)
        else:
            self._heartbeat.schedule()

    def end(self, timing: StepTiming) -> None:
        """It has run, and whatever was launched before it."""
        if not timing.work:
            return
        while self._running and self._running.popleft() is not timing:
            pass
        now = time.monotonic()
        timing.times.learn(timing.work, now - max(timing.started, self._ended))
        self._ended = now
        self.schedule()

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
            self._rows = None

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

    def _find_spans(self, plan: StepPlan) -> tuple[Span, ...]:
        """The same object for the same rows."""
        if plan.rows != self._rows:
            self._rows, self._spans = plan.rows, tuple(self._members[row][0] for row in plan.rows)
        return self._spans

    def _show(self, steps: Sequence[StepTiming]) -> None:
        """Steps in flight: any of them may be what ends the engine."""
        tokens = sum(step.tokens for step in steps)
        allowance = sum(step.allowance for step in steps)
        if all(step.spans is self._shown for step in steps):
            self._heartbeat.repeat_step(self._steps, tokens, allowance)
            return
        listed = {span for step in steps for span in step.spans}
        latest = steps[-1].spans
        self._shown = latest if len(latest) == len(listed) else tuple(listed)
        self._heartbeat.step(self._steps, tokens, allowance, self._shown)


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
