"""The seam between deciding and doing: an Executor runs StepPlans and knows nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from vivace.engine.step_heartbeat import StepHeartbeat
from vivace.errors import RankLost
from vivace.protocol.messages import Capacity
from vivace.protocol.step import ExecutorEvent, StepPlan, StepResult
from vivace.protocol.workers import WorkerCommand, WorkerState


class StepSkipped(RuntimeError):
    """The step was not run because an earlier one failed; `recover()` makes steps run again."""


class ExecutorDied(RuntimeError):
    """The executor cannot run any further step: the engine has to be restarted."""


class PendingStep(Protocol):
    """A step under way."""

    here: bool
    """`result` does not wait"""

    def result(self) -> StepResult:
        """Wait for the step and return its result; raises what the step raised."""
        ...


class LocalRank(Protocol):
    """A rank that is another process of this machine."""

    @property
    def name(self) -> str: ...

    @property
    def pid(self) -> int: ...

    def kill(self) -> None:
        """Whatever it does; from any thread. Of one that has ended nothing."""
        ...


class Executor(Protocol):
    """Runs plans in the order of submission.

    A step that raises leaves every span of that plan and of the plans behind it undone: the plans
    behind it raise `StepSkipped`. `recover()` empties all rows and lets later submits run; the
    scheduler joins its sequences again (their KV pages keep their content). The transfers of a plan
    begin with it, also when its spans then fail; those of a plan that is skipped do not.

    Where several ranks run a step only `StepRefused` is such a failure: all of them refuse it,
    before they wait for each other. Whatever else happens to one of them raises `ExecutorDied` with
    its name.
    """

    capacity: Capacity
    local_ranks: Sequence[LocalRank]

    def submit(self, plan: StepPlan) -> PendingStep: ...

    def recover(self) -> None:
        """Transfers go on."""
        ...

    def events(self) -> list[ExecutorEvent]:
        """What has happened beside the steps since the last call; never waits. ExecutorDied where
        a rank has died."""
        ...

    def control(self, command: WorkerCommand) -> list[WorkerState]:
        """Ask all ranks, with no step in flight; rank 0's answer is the first. Where there are
        several, what any of them raises is ExecutorDied."""
        ...

    def wake_with(self, ring: Callable[[], None]) -> None:
        """`ring` is to be called, from any thread, when there are events."""
        ...

    def close(self, cause: str = "") -> None:
        """`cause`: what its engine ends of, which other nodes hear; empty: it was told to."""
        ...


class StepWorker(Protocol):
    """What InProcessExecutor drives: `worker.Worker`, or the oracle's."""

    capacity: Capacity

    def run(self, plan: StepPlan) -> PendingStep:
        """Launch a step. What raises here is of this step, which is then undone. What raises later,
        in `PendingStep.result`, is of the device: nothing runs on it any more."""
        ...

    def events(self) -> list[ExecutorEvent]: ...

    def control(self, command: WorkerCommand) -> WorkerState: ...

    def wake_with(self, ring: Callable[[], None]) -> None: ...

    def close(self) -> None: ...


class CompletedStep:
    """A step that has run."""

    here = True

    def __init__(self, result: StepResult) -> None:
        self._result = result

    def result(self) -> StepResult:
        return self._result


class FailedStep:
    """A step that did not run, or was undone."""

    here = True

    def __init__(self, error: Exception) -> None:
        self._error = error

    def result(self) -> StepResult:
        raise self._error


class LaunchedStep:
    """A step that was launched and cannot be undone: when it fails, its device is lost."""

    def __init__(self, pending: PendingStep) -> None:
        self._pending = pending
        self.here = pending.here

    def result(self) -> StepResult:
        try:
            return self._pending.result()
        except (ExecutorDied, RankLost):
            raise
        except Exception as error:
            raise ExecutorDied(f"the device failed in a step under way: {error}") from error


class InProcessExecutor:
    """Launches a worker's steps in the engine's own thread, at `submit`."""

    local_ranks: Sequence[LocalRank] = ()

    def __init__(self, worker: StepWorker) -> None:
        self.capacity = worker.capacity
        self.events = worker.events
        self.wake_with = worker.wake_with
        self._worker = worker
        self._occupied: set[int] = set()
        self._failed = False

    def submit(self, plan: StepPlan) -> PendingStep:
        if self._failed:
            return FailedStep(StepSkipped(f"step {plan.number} follows a failed step"))
        try:
            pending = self._worker.run(plan)
        except Exception as error:
            self._failed = True
            self._note_rows(plan)
            return FailedStep(error)
        self._note_rows(plan)
        return LaunchedStep(pending)

    def _note_rows(self, plan: StepPlan) -> None:
        if plan.leaves:
            self._occupied.difference_update(plan.leaves)
        for join in plan.joins:
            self._occupied.add(join.row)

    def recover(self) -> None:
        """Empty every row; ExecutorDied when the worker does not even manage that."""
        try:
            self._worker.run(StepPlan(number=-1, leaves=sorted(self._occupied))).result()
        except Exception as error:
            raise ExecutorDied(
                f"the worker does not recover from a failed step: {error}"
            ) from error
        self._occupied.clear()
        self._failed = False

    def control(self, command: WorkerCommand) -> list[WorkerState]:
        return [self._worker.control(command)]

    def close(self, cause: str = "") -> None:
        self._worker.close()


# --- workers around a worker ---------------------------------------------------------------


class ForwardingWorker:
    """A `StepWorker` that leaves everything to `worker` but steps, which `run` runs."""

    def __init__(self, worker: StepWorker, run: Callable[[StepPlan], PendingStep]) -> None:
        self.capacity: Capacity = worker.capacity
        self.events = worker.events
        self.control = worker.control
        self.wake_with = worker.wake_with
        self.close = worker.close
        self._run = run

    def run(self, plan: StepPlan) -> PendingStep:
        return self._run(plan)


def with_heartbeat(worker: StepWorker, steps: StepHeartbeat) -> StepWorker:
    """It tells of every step before it runs."""

    def run(plan: StepPlan) -> PendingStep:
        timing = steps.begin(plan)
        pending = worker.run(plan)
        if pending.here:
            steps.end(timing)
            return pending
        steps.follow(timing)
        return TimedStep(pending, lambda: steps.end(timing))

    return ForwardingWorker(worker, run)


class TimedStep:
    """A step whose end somebody wants to hear of."""

    def __init__(self, pending: PendingStep, tell: Callable[[], None]) -> None:
        self._pending = pending
        self._tell = tell
        self.here = pending.here

    def result(self) -> StepResult:
        result = self._pending.result()
        self._tell()
        return result


def first_stage(worker: StepWorker) -> StepWorker:
    """Rank 0's worker where the last stage is elsewhere: no step ends here."""
    return ForwardingWorker(worker, lambda plan: StageStep(worker.run(plan)))


class StageStep:
    """A step that later stages go on with."""

    here = False

    def __init__(self, pending: PendingStep) -> None:
        self.result = pending.result
