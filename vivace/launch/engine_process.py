"""The engine process: build, say ready, loop until told to stop."""

from __future__ import annotations

import gc
import logging
import os
import threading
import time
from collections.abc import Iterator
from typing import Protocol

from vivace.config.serialize import decode
from vivace.engine.executor import StepWorker
from vivace.engine.fault_isolation import SoloSteps
from vivace.engine.loop import Mailbox
from vivace.launch.engine import engine_parts
from vivace.observability import log as log_lines
from vivace.observability.gc_pauses import watch_gc
from vivace.observability.timeline import Timeline
from vivace.protocol.channel import EngineMailbox
from vivace.protocol.heartbeat import MIN_ALLOWANCE, EngineHeartbeat, Span
from vivace.protocol.messages import Capacity, Command, Ready, Reply, ToEngine, ToFrontend
from vivace.protocol.shared_memory import attach
from vivace.protocol.step import StepPlan, StepResult
from vivace.supervisor.ipc import MessageSocket, SocketClosed
from vivace.supervisor.messages import FrontendGone, Progress, Setup, Stop, Timed, ToChild

log = logging.getLogger(__name__)

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


class Stoppable(Protocol):
    def stop(self) -> None: ...


class SupervisorThread(threading.Thread):
    """Listens to the supervisor; when the supervisor is gone, so is this process."""

    def __init__(self, line: MessageSocket[ToChild], mailbox: EngineMailbox) -> None:
        super().__init__(name="supervisor line", daemon=True)
        self._line = line
        self._mailbox = mailbox
        self._loop: Stoppable | None = None

    def attach_loop(self, loop: Stoppable) -> None:
        """From now on Stop ends this loop; before, it ends the process."""
        self._loop = loop

    def run(self) -> None:
        try:
            while True:
                self._on_message(self._line.wait())
        except SocketClosed:
            os._exit(1)

    def _on_message(self, message: ToChild) -> None:
        match message:
            case Command():
                self._mailbox.post(message)
            case FrontendGone():
                self._mailbox.frontend_died(message.index)
            case Stop():
                if self._loop is None:
                    os._exit(0)
                self._loop.stop()
            case _:
                log.error("the engine has no use for %s", type(message).__name__)


def run_engine(line: MessageSocket[ToChild], setup: Setup, timeline: Timeline) -> None:
    """Serve until stopped. Raises what ends the engine."""
    timeline.begin("reading the configuration")
    config = decode(setup.config)
    log_lines.setup(config.logging.log_level, "engine")
    watch_gc(config.logging.gc_warning_threshold_secs)
    mailbox = EngineMailbox(
        setup.engine,
        epoch=setup.epoch,
        to_supervisor=lambda message: send_reply(line, message),
    )
    thread = SupervisorThread(line, mailbox)
    thread.start()
    heartbeat = EngineHeartbeat(attach(setup.memory).engine)
    heartbeat.begin()

    def report(stage: str, fraction: float) -> None:
        timeline.begin(stage)
        line.send(Progress(stage, fraction))

    loop, capacity = engine_parts(
        config,
        HeartbeatMailbox(mailbox, heartbeat),
        report,
        epoch=setup.epoch,
        wrap_runner=lambda runner: SoloSteps(HeartbeatRunner(runner, heartbeat)),
    )
    timeline.begin("collecting garbage")
    gc.collect()
    gc.freeze()  # what is loaded stays; the collector need not look at it again
    gc.enable()
    heartbeat.idle()
    thread.attach_loop(loop)
    line.send(Timed(timeline.stages()))
    line.send(Ready(epoch=setup.epoch, capacity=capacity))
    loop.run()
    mailbox.close()


def send_reply(line: MessageSocket[ToChild], message: ToFrontend) -> None:
    if isinstance(message, Reply):
        line.send(message)


class HeartbeatMailbox:
    """A mailbox that beats whenever the loop comes by for messages."""

    def __init__(self, mailbox: Mailbox, heartbeat: EngineHeartbeat) -> None:
        self._mailbox = mailbox
        self._heartbeat = heartbeat
        self.send = mailbox.send
        self.wake = mailbox.wake

    def receive(self, wait: float | None) -> list[ToEngine]:
        if wait != 0:
            self._heartbeat.idle()
        messages = self._mailbox.receive(wait)
        self._heartbeat.schedule()
        return messages


class HeartbeatRunner:
    """A runner that says, before each step, which requests are in it and how long it may take."""

    def __init__(self, runner: StepWorker, heartbeat: EngineHeartbeat) -> None:
        self.capacity: Capacity = runner.capacity
        self.close = runner.close
        self._runner = runner
        self._heartbeat = heartbeat
        self._times = StepTimes(MIN_ALLOWANCE)
        self._members: dict[int, tuple[Span, int]] = {}
        """row -> who is in it, and how many tokens are known of it"""
        self._shown_rows: list[int] | None = None
        """rows whose spans the heartbeat shows"""
        self._steps = 0

    def run(self, plan: StepPlan) -> StepResult:
        if not plan.rows:
            self._update_members(plan)
            return self._runner.run(plan)
        self._steps += 1
        self._update_members(plan)
        work = self._work(plan)
        self._write_heartbeat(plan, work)
        started = time.monotonic()
        result = self._runner.run(plan)
        self._times.learn(work, time.monotonic() - started)
        self._heartbeat.schedule()
        return result

    def _update_members(self, plan: StepPlan) -> None:
        for row in plan.leaves:
            self._members.pop(row, None)
        for join in plan.joins:
            self._members[join.row] = Span(join.key, self._steps), len(join.tokens)
        if plan.leaves or plan.joins:
            self._shown_rows = None

    def _work(self, plan: StepPlan) -> int:
        counts = plan.counts
        decodes = counts.count(1)
        if decodes == len(counts):
            return decodes
        spans = zip(plan.rows, counts, strict=True)
        chunks = [(count, self._members[row][1]) for row, count in spans if count > 1]
        return step_work(chunks, decodes)

    def _write_heartbeat(self, plan: StepPlan, work: int) -> None:
        tokens, allowance = sum(plan.counts), self._times.allowance(work)
        if plan.rows == self._shown_rows:
            self._heartbeat.repeat_step(self._steps, tokens, allowance)
        else:
            self._heartbeat.step(self._steps, tokens, allowance, self._spans(plan))
            self._shown_rows = plan.rows

    def _spans(self, plan: StepPlan) -> Iterator[Span]:
        return (self._members[row][0] for row in plan.rows)


def step_work(chunks: list[tuple[int, int]], decodes: int) -> int:
    """Tokens to compute, those behind a long context counted more. `chunks`: (tokens, context)."""
    return decodes + sum(count + count * context // ATTENTION for count, context in chunks)


class StepTimes:
    """Seconds expected of a step, by its work in powers of two.

    Where no step with as much work has run, a smaller one tells it in proportion: that is too much
    rather than too little, because time grows more slowly than work.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
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
        if size in known:
            return known[size]
        smaller = max((other for other in known if other < size), default=None)
        if smaller is not None:
            return known[smaller] * 2 ** (size - smaller)
        return min((known[other] for other in known), default=None)
