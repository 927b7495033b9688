"""Plans in flight against plans that mention one sequence: what keeps every stage of a pipeline
busy, in the pipeline's own time."""

from __future__ import annotations

import pytest
from engine_rig import EOS, Rig, VirtualClock

from vivace.engine.executor import PendingStep
from vivace.engine.settings import EngineSettings
from vivace.protocol.step import StepPlan, StepResult

STAGE = 1.0
"""seconds of a step in one stage"""


class Pipeline:
    """Stages in a row; the first one draws from what the last one computes, so a step whose row
    has a step under way waits for it. It only keeps the time: what is computed is the oracle's."""

    def __init__(self, rig: Rig, stages: int) -> None:
        self._clock: VirtualClock = rig.clock
        self._submit = rig.executor.submit
        self._free = [0.0] * stages
        self._drawn: dict[int, float] = {}
        """row -> when its last token is known"""
        self.busy = 0.0
        rig.executor.submit = self.submit  # type: ignore[method-assign]

    def submit(self, plan: StepPlan) -> PipelineStep:
        step = self._submit(plan)
        known = [
            self._drawn.get(row, 0.0)
            for row, n in zip(plan.rows, plan.counts, strict=True)
            if n == 1
        ]
        end = max([self._clock.now, *known])
        for stage, free in enumerate(self._free):
            end = max(end, free) + STAGE
            self._free[stage] = end
            self.busy += STAGE
        self._drawn.update(dict.fromkeys(plan.rows, end))
        return PipelineStep(step, end, self._clock)


class PipelineStep:
    def __init__(self, step: PendingStep, end: float, clock: VirtualClock) -> None:
        self._step, self._end, self._clock = step, end, clock

    def result(self) -> StepResult:
        self._clock.now = max(self._clock.now, self._end)
        return self._step.result()


def run(
    stages: int, sequence_depth: int | None, depth: int, requests: int = 6
) -> tuple[Rig, float]:
    """A rig that has answered, and the share of the time in which its stages were busy."""
    settings = EngineSettings(
        eos_ids=(EOS,), depth=depth, sequence_depth=sequence_depth, stall_target=0.0
    )
    rig = Rig(settings, pages=400, cost=lambda plan: 0.0)
    pipeline = Pipeline(rig, stages)
    begin = rig.clock.now
    for key in range(requests):
        rig.send(key, [key, 5], 60, ignore_eos=True)
    rig.run()
    rig.at_rest()
    for key in rig.answers:
        rig.check(key)
    return rig, pipeline.busy / (stages * (rig.clock.now - begin))


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_every_stage_is_busy(stages: int) -> None:
    _, busy = run(stages, sequence_depth=1, depth=stages)
    assert busy > 0.9


def test_with_every_row_in_every_plan_one_stage_works_at_a_time() -> None:
    _, busy = run(3, sequence_depth=None, depth=3)
    assert busy < 0.4


@pytest.mark.parametrize(("depth", "limit"), [(3, 1), (4, 2), (4, 1), (2, 2)])
def test_no_plan_mentions_a_sequence_too_often(depth: int, limit: int) -> None:
    settings = EngineSettings(eos_ids=(EOS,), depth=depth, sequence_depth=limit)
    rig = Rig(settings, late=True)
    submit, commit = rig.executor.submit, rig.scheduler.commit
    flying: list[StepPlan] = []
    most = 0

    def watch(plan: StepPlan):  # type: ignore[no-untyped-def]
        nonlocal most
        flying.append(plan)
        decodes = [
            row for one in flying for row, n in zip(one.rows, one.counts, strict=True) if n == 1
        ]
        most = max([most, *(decodes.count(row) for row in decodes)])
        return submit(plan)

    def landed(plan: StepPlan, result: StepResult) -> None:
        flying.remove(plan)
        commit(plan, result)

    rig.executor.submit, rig.scheduler.commit = watch, landed  # type: ignore[method-assign]
    for key in range(5):
        rig.send(key, [key, 1, 2], 20, ignore_eos=True)
    rig.run()
    for key in rig.answers:
        rig.check(key)
    assert most == limit


def test_cohorts_take_turns() -> None:
    """Nobody waits for others that have had a token since: each gets one in every round."""
    rig, _ = run(3, sequence_depth=1, depth=3, requests=7)
    for answer in rig.answers.values():
        assert max(answer.gaps()[2:]) <= 4 * STAGE
