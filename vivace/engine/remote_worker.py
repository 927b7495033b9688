"""Rank 0 of an engine where that is in another process: its device is not here."""

from __future__ import annotations

from vivace.engine.executor import ExecutorDied, PendingStep
from vivace.engine.process_group import RankLink
from vivace.protocol.messages import Capacity
from vivace.protocol.ranks import StepDone, StepRefusal
from vivace.protocol.step import ExecutorEvent, StepPlan, StepResult
from vivace.protocol.workers import WorkerCommand, WorkerState


class RemoteWorker:
    """A `StepWorker` that computes nothing: its rank has heard what was broadcast to all. Its
    engine is one of several that share layers, and a step that those wait for (`StepPlan.together`)
    cannot be undone: where it is refused the engine ends."""

    def __init__(self, link: RankLink, capacity: Capacity) -> None:
        self.capacity = capacity
        self.wake_with = link.wake_with
        self.close = link.close
        self._link = link

    def run(self, plan: StepPlan) -> PendingStep:
        return RemoteStep(self._link, plan.number)

    def events(self) -> list[ExecutorEvent]:
        return []

    def control(self, command: WorkerCommand) -> WorkerState:
        answer = self._link.wait()
        if not isinstance(answer, WorkerState):
            raise ExecutorDied(f"{self._link.name} answers {answer} to {type(command).__name__}")
        return answer


class RemoteStep:
    """A step that it runs."""

    here = False

    def __init__(self, link: RankLink, number: int) -> None:
        self._link = link
        self._number = number

    def result(self) -> StepResult:
        """Raises RankLost, ExecutorDied."""
        answer = self._link.wait()
        match answer:
            case StepResult() if answer.number == self._number:
                return answer
            case StepDone() if answer.number == self._number:  # a later stage has its result
                counts = answer.expert_counts
                return StepResult(
                    number=answer.number, advanced=[], tokens=[], expert_counts=counts
                )
            case StepRefusal():
                raise ExecutorDied(
                    f"{self._link.name} refuses step {answer.number}: {answer.reason}"
                )
            case _:
                raise ExecutorDied(f"{self._link.name} answers {answer} to step {self._number}")
