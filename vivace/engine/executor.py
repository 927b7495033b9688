"""The seam between deciding and doing: an Executor runs StepPlans and knows nothing else."""

from __future__ import annotations

from typing import Protocol

from vivace.protocol.messages import Capacity
from vivace.protocol.step import StepPlan, StepResult


class StepSkipped(RuntimeError):
    """The step was not run because an earlier one failed; `recover()` makes steps run again."""


class ExecutorDied(RuntimeError):
    """The executor cannot run any further step: the engine has to be restarted."""


class PendingStep(Protocol):
    """A step under way."""

    def result(self) -> StepResult:
        """Wait for the step and return its result; raises what the step raised."""
        ...


class Executor(Protocol):
    """Runs plans in the order of submission.

    A step that raises leaves every span of that plan and of the plans behind it undone: the plans
    behind it raise `StepSkipped`. `recover()` empties all rows and lets later submits run; the
    scheduler joins its sequences again (their KV pages keep their content).
    """

    capacity: Capacity

    def submit(self, plan: StepPlan) -> PendingStep: ...

    def recover(self) -> None: ...

    def close(self) -> None: ...


class StepWorker(Protocol):
    """What InProcessExecutor drives: `worker.Worker`, or the oracle's."""

    capacity: Capacity

    def run(self, plan: StepPlan) -> StepResult: ...

    def close(self) -> None: ...


class CompletedStep:
    """A step that has already run: its result, or what it raised."""

    __slots__ = ("_error", "_result")

    def __init__(self, result: StepResult | None, error: BaseException | None) -> None:
        self._result = result
        self._error = error

    def result(self) -> StepResult:
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result


class InProcessExecutor:
    """Runs a worker in the engine's own thread, synchronously, at `submit`."""

    def __init__(self, worker: StepWorker) -> None:
        self.capacity = worker.capacity
        self._worker = worker
        self._occupied: set[int] = set()
        self._failed = False

    def submit(self, plan: StepPlan) -> CompletedStep:
        if self._failed:
            return CompletedStep(None, StepSkipped(f"step {plan.number} follows a failed step"))
        try:
            result = self._worker.run(plan)
        except Exception as error:
            self._failed = True
            self._note_rows(plan)
            return CompletedStep(None, error)
        self._note_rows(plan)
        return CompletedStep(result, None)

    def _note_rows(self, plan: StepPlan) -> None:
        if plan.leaves:
            self._occupied.difference_update(plan.leaves)
        for join in plan.joins:
            self._occupied.add(join.row)

    def recover(self) -> None:
        """Empty every row; ExecutorDied when the worker does not even manage that."""
        try:
            self._worker.run(StepPlan(number=-1, leaves=sorted(self._occupied)))
        except Exception as error:
            raise ExecutorDied(
                f"the worker does not recover from a failed step: {error}"
            ) from error
        self._occupied.clear()
        self._failed = False

    def close(self) -> None:
        self._worker.close()
