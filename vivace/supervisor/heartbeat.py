"""The engine's parts that beat its pulse: at each look for messages, and around each step."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Protocol

from vivace.engine.executor import Runner
from vivace.engine.step_times import StepTimes, work_of
from vivace.protocol.channel import ToEngine, ToFrontend
from vivace.protocol.control import Capacity
from vivace.protocol.heartbeat import PATIENCE, EngineHeartbeat, Span
from vivace.protocol.step import StepPlan, StepResult


class Receiver(Protocol):
    def receive(self, wait: float | None) -> list[ToEngine]: ...
    def send(self, frontend: int, message: ToFrontend) -> None: ...
    def wake(self) -> None: ...


class HeartbeatMailbox:
    """A mailbox that beats whenever the loop comes by for messages."""

    def __init__(self, mailbox: Receiver, pulse: EngineHeartbeat) -> None:
        self._mailbox = mailbox
        self._pulse = pulse
        self.send = mailbox.send
        self.wake = mailbox.wake

    def receive(self, wait: float | None) -> list[ToEngine]:
        if wait != 0:
            self._pulse.rest()
        messages = self._mailbox.receive(wait)
        self._pulse.decide()
        return messages


class HeartbeatRunner:
    """A runner that says, before each step, which requests are in it and how long it may take."""

    def __init__(self, runner: Runner, pulse: EngineHeartbeat) -> None:
        self.capacity: Capacity = runner.capacity
        self.close = runner.close
        self._runner = runner
        self._pulse = pulse
        self._times = StepTimes(PATIENCE)
        self._members: dict[int, tuple[Span, int]] = {}
        """row -> who is in it, and how many tokens are known of it"""
        self._listed: list[int] | None = None
        """rows whose spans the pulse shows"""
        self._steps = 0

    def run(self, plan: StepPlan) -> StepResult:
        if not plan.rows:
            self._seat(plan)
            return self._runner.run(plan)
        self._steps += 1
        self._seat(plan)
        work = self._work(plan)
        self._announce(plan, work)
        started = time.monotonic()
        result = self._runner.run(plan)
        self._times.learn(work, time.monotonic() - started)
        self._pulse.decide()
        return result

    def _seat(self, plan: StepPlan) -> None:
        for row in plan.leaves:
            self._members.pop(row, None)
        for join in plan.joins:
            self._members[join.row] = Span(join.key, self._steps), len(join.tokens)
        if plan.leaves or plan.joins:
            self._listed = None

    def _work(self, plan: StepPlan) -> int:
        counts = plan.counts
        decodes = counts.count(1)
        if decodes == len(counts):
            return decodes
        spans = zip(plan.rows, counts, strict=True)
        chunks = [(count, self._members[row][1]) for row, count in spans if count > 1]
        return work_of(chunks, decodes)

    def _announce(self, plan: StepPlan, work: int) -> None:
        tokens, allowance = sum(plan.counts), self._times.allowance(work)
        if plan.rows == self._listed:
            self._pulse.step_again(self._steps, tokens, allowance)
        else:
            self._pulse.step(self._steps, tokens, allowance, self._spans(plan))
            self._listed = plan.rows

    def _spans(self, plan: StepPlan) -> Iterator[Span]:
        return (self._members[row][0] for row in plan.rows)
