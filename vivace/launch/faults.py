"""Failures on request, for the tests of the supervisor: `VIVACE_TEST_FAULT=engine-exit@20`.

`engine-start@N`   the engine raises while it starts, after N seconds
`engine-exit@N`    the engine raises out of its loop at step N
`engine-kill@N`    the engine is killed at step N, as by the kernel
`engine-hang@N`    step N never returns
`engine-raise@N`   every step from N on raises
`engine-kill-token@ID`  every step with a request whose prompt holds this token kills the engine
`rank-start@N`     rank 1 takes N seconds longer to start
`rank-hang@N`      its step N never returns in rank 1
`rank-slow@MS`     each step of rank 1 takes so many milliseconds more
`rank-kill-token@ID`  every step with a request whose prompt holds this token kills rank 1
`rank-differs@N`   rank 1 says of each step from N on that it has drawn other tokens
`frontend-kill@N`  frontend 0 is killed after N messages from the engine

Only the first engine (epoch 0) and frontend 0 misbehave: what replaces them is sound, except that
`engine-kill-token` kills every engine, and rank 1 misbehaves in each.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Protocol

from msgspec.structs import replace

from vivace.engine.executor import ExecutorDied, ForwardingWorker, PendingStep, StepWorker
from vivace.protocol.messages import Draining, EngineDown, Ready, ToFrontend
from vivace.protocol.step import StepPlan, StepResult


class InjectedDeath(ExecutorDied):
    """A death that the test asked for."""


def parse(text: str) -> tuple[str, int]:
    """(kind, step); ("", 0) when nothing is asked for."""
    kind, _, step = text.partition("@")
    return kind, int(step or 0)


def fail_at(worker: StepWorker, kind: str, at: int) -> StepWorker:
    """It works until step `at`."""
    left = at

    def run(plan: StepPlan) -> PendingStep:
        nonlocal left
        left -= bool(plan.rows)
        if plan.rows and left < 0:
            fail(kind)
        return worker.run(plan)

    return ForwardingWorker(worker, run)


def fail(kind: str) -> None:
    if kind == "engine-kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "engine-raise":
        raise RuntimeError("this step was told to fail")
    while kind in ("engine-hang", "rank-hang"):
        time.sleep(1)
    if kind == "engine-exit":
        os._exit(7)


def die_of_token(worker: StepWorker, token: int) -> StepWorker:
    """It dies of every step with a request whose prompt holds the token."""
    poisoned: set[int] = set()
    """rows"""

    def run(plan: StepPlan) -> PendingStep:
        poisoned.difference_update(plan.leaves)
        for join in plan.joins:
            if token in join.tokens[: join.prompt]:
                poisoned.add(join.row)
        if not poisoned.isdisjoint(plan.rows):
            os.kill(os.getpid(), signal.SIGKILL)
        return worker.run(plan)

    return ForwardingWorker(worker, run)


def with_fault(runner: StepWorker, text: str, epoch: int) -> StepWorker:
    """`runner`, or one that fails as `text` says when this is the first engine."""
    kind, at = parse(text)
    if kind == "engine-kill-token":
        return die_of_token(runner, at)
    if not kind.startswith("engine-") or epoch > 0:
        return runner
    if kind == "engine-start":
        time.sleep(at)
        raise InjectedDeath("this engine was told not to start")
    return fail_at(runner, kind, at)


def differ(runner: StepWorker, at: int) -> StepWorker:
    """It says from step `at` on that each token which it has drawn is the next one."""
    left = at

    def run(plan: StepPlan) -> PendingStep:
        nonlocal left
        pending = runner.run(plan)
        left -= bool(plan.rows)
        return pending if left >= 0 else DifferingStep(pending)

    return ForwardingWorker(runner, run)


def slow_down(runner: StepWorker, seconds: float) -> StepWorker:
    """Its steps take so much more."""

    def run(plan: StepPlan) -> PendingStep:
        time.sleep(seconds if plan.rows else 0.0)
        return runner.run(plan)

    return ForwardingWorker(runner, run)


class DifferingStep:
    def __init__(self, pending: PendingStep) -> None:
        self._pending = pending
        self.here = pending.here

    def result(self) -> StepResult:
        result = self._pending.result()
        return replace(result, tokens=[[token + 1 for token in row] for row in result.tokens])


def with_rank_fault(runner: StepWorker, text: str, rank: int) -> StepWorker:
    """`runner`, or one that fails as `text` says when this is rank 1."""
    kind, at = parse(text)
    match kind if rank == 1 else "":
        case "rank-start":
            time.sleep(at)
            return runner
        case "rank-hang":
            return fail_at(runner, kind, at)
        case "rank-slow":
            return slow_down(runner, at / 1000)
        case "rank-kill-token":
            return die_of_token(runner, at)
        case "rank-differs":
            return differ(runner, at)
        case _:
            return runner


class Inbox(Protocol):
    """A frontend's end of the channel, as far as it reads."""

    async def deliver(self, take: Callable[[ToFrontend], None]) -> None: ...
    def accept(self, message: Ready | EngineDown | Draining) -> None: ...


class FaultyInbox:
    """An inbox whose process is killed by the message after so many."""

    def __init__(self, inbox: Inbox, left: int) -> None:
        self.accept = inbox.accept
        self._inbox = inbox
        self._left = left

    async def deliver(self, take: Callable[[ToFrontend], None]) -> None:
        def count_and_take(message: ToFrontend) -> None:
            self._left -= 1
            if self._left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            take(message)

        await self._inbox.deliver(count_and_take)


def with_frontend_fault(inbox: Inbox, text: str, index: int) -> Inbox:
    """`inbox`, or one that kills frontend 0 as `text` says."""
    kind, left = parse(text)
    return FaultyInbox(inbox, left) if kind == "frontend-kill" and index == 0 else inbox
