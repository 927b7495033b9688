"""The fault boundary: bisection, numbers gone bad, exceptions in handling one request."""

from __future__ import annotations

import pytest
from engine_rig import EOS, NoEvents, Rig

from vivace.engine.executor import CompletedStep, ExecutorDied, InProcessExecutor, StepSkipped
from vivace.engine.oracle import Faults, InjectedFault, OracleWorker
from vivace.engine.settings import EngineSettings
from vivace.protocol.messages import Cancel, Capacity, Request, SamplingParams
from vivace.protocol.step import Join, StepPlan, StepResult


def rig_with(faults: Faults, depth: int = 2, **options: object) -> Rig:
    return Rig(EngineSettings(eos_ids=(EOS,), depth=depth), faults=faults, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("offender", [0, 3, 6])
def test_bisection_finds_the_offender(depth: int, offender: int) -> None:
    rig = rig_with(Faults(), depth)
    for key in range(7):
        rig.send(key, [key, 1, 2], 12)
    rig.step(6)
    rig.faults.raise_on_keys.add(offender)
    rig.run()
    rig.at_rest()
    for key, answer in rig.answers.items():
        if key == offender:
            assert answer.finish is not None and answer.finish.status == 500
            assert f"request {offender} was told to fail" in str(answer.finish.message)
            assert answer.tokens == rig.expected(key)[: len(answer.tokens)]
            assert answer.tokens, "what was drawn before the fault was delivered"
        else:
            rig.check(key)


def test_a_failure_that_does_not_repeat_costs_nobody_anything() -> None:
    rig = rig_with(Faults(raise_on_steps={0, 4, 9}))
    for key in range(3):
        rig.send(key, [key, 1], 10)
    rig.run()
    for key in range(3):
        rig.check(key)


def test_several_offenders_are_all_found() -> None:
    rig = rig_with(Faults(raise_on_keys={1, 2, 5}))
    for key in range(8):
        rig.send(key, [key], 5)
    rig.run()
    ended = {key for key, answer in rig.answers.items() if answer.finish.status == 500}  # type: ignore[union-attr]
    assert ended == {1, 2, 5}
    for key in {0, 3, 4, 6, 7}:
        rig.check(key)


def test_who_arrives_during_the_bisection_is_served() -> None:
    rig = rig_with(Faults(raise_on_keys={2}))
    for key in range(4):
        rig.send(key, [key], 5)
    rig.step(5)
    rig.send(9, [9, 9], 5)
    rig.cancel(3)
    rig.run()
    rig.check(9)
    rig.check(0)
    rig.at_rest()


def test_bad_numbers_end_one_request_and_leave_no_cache_behind() -> None:
    rig = rig_with(Faults(bad_keys={1}), page_size=1)
    rig.send(1, [4, 5, 6, 7], 5)
    rig.send(2, [8, 9], 5)
    rig.run()
    finish = rig.answers[1].finish
    assert finish is not None and finish.status == 500 and "NaN" in str(finish.message)
    assert finish.bad_numbers
    rig.check(2)
    rig.send(3, [4, 5, 6, 7], 5)
    rig.run()
    rig.check(3)
    assert rig.answers[3].deltas[-1].cached_tokens == 0


def test_numbers_that_go_bad_later_leave_only_what_others_share_already() -> None:
    rig = rig_with(Faults(), page_size=1)
    rig.send(1, [4, 5, 6, 7], 20, ignore_eos=True)
    rig.step(12)
    assert len(rig.answers[1].tokens) > 3
    rig.faults.bad_keys.add(1)
    rig.run()
    assert rig.scheduler.state().cached_tokens == 4, "the prompt, published when it was computed"


def test_after_a_failure_plans_in_flight_hold_what_they_mention() -> None:
    rig = rig_with(Faults(raise_on_steps={2}), depth=1)
    rig.send(1, [1] * 9, 50, ignore_eos=True)
    rig.step(6)
    scheduler = rig.scheduler
    plan = scheduler.plan(idle=True)
    assert plan is not None and [join.key for join in plan.joins] == [1]
    used = scheduler.state().used_tokens
    scheduler.cancel(Cancel(keys=[1]))
    assert scheduler.state().used_tokens == used > 0
    scheduler.commit(plan, rig.executor.submit(plan).result())
    rig.at_rest()


def test_an_exception_in_booking_one_result_ends_that_request_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = rig_with(Faults(), depth=2)
    rig.send(1, [1, 2], 8)
    rig.send(2, [3, 4], 8)
    rig.step(6)
    victim = rig.scheduler._table.live[1]
    monkeypatch.setattr(type(victim), "next_delta", explode_for(1, type(victim).next_delta))
    rig.run()
    finish = rig.answers[1].finish
    assert finish is not None and finish.status == 500 and "boom" in str(finish.message)
    rig.check(2)
    rig.at_rest()


def explode_for(key: int, original):  # type: ignore[no-untyped-def]
    def method(self, *arguments):  # type: ignore[no-untyped-def]
        if self.key == key:
            raise RuntimeError("boom")
        return original(self, *arguments)

    return method


def test_a_request_that_cannot_be_taken_gets_500(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = rig_with(Faults())

    def add(request: Request) -> None:
        raise RuntimeError("no way")

    monkeypatch.setattr(rig.scheduler, "add", add)
    rig.send(5, [1])
    rig.step()
    finish = rig.answers[5].finish
    assert finish is not None and finish.status == 500 and "no way" in str(finish.message)


CAPACITY = Capacity(pages=4, page_size=2, rows=2, context=8, vocabulary=10)


def test_after_a_failure_steps_are_skipped_until_recovery() -> None:
    executor = InProcessExecutor(OracleWorker(CAPACITY, 10, faults=Faults(raise_on_steps={0})))
    sampling = SamplingParams(seed=1)
    join = Join(row=0, key=1, tokens=[1, 2], prompt=2, cached=0, pages=[0], sampling=sampling)
    first = executor.submit(StepPlan(number=0, rows=[0], counts=[2], joins=[join]))
    second = executor.submit(StepPlan(number=1, rows=[0], counts=[1]))
    with pytest.raises(InjectedFault):
        first.result()
    with pytest.raises(StepSkipped):
        second.result()
    executor.recover()
    again = executor.submit(StepPlan(number=2, rows=[0], counts=[2], joins=[join])).result()
    assert again.advanced == [2] and len(again.tokens[0]) == 1


def test_an_executor_that_does_not_recover_is_dead() -> None:
    class Broken(NoEvents):
        capacity = CAPACITY

        def run(self, plan: StepPlan) -> CompletedStep:
            raise RuntimeError("device lost")

        def close(self) -> None: ...

    executor = InProcessExecutor(Broken())
    executor.submit(StepPlan(number=0))
    with pytest.raises(ExecutorDied, match="lost"):
        executor.recover()


def test_what_a_device_says_later_cannot_be_undone() -> None:
    """The rows have moved on, and steps behind it run already: only a new engine helps."""

    class LateFailure:
        here = False

        def result(self) -> StepResult:
            raise RuntimeError("device lost")

    class Device(NoEvents):
        capacity = CAPACITY

        def run(self, plan: StepPlan) -> LateFailure:
            return LateFailure()

        def close(self) -> None: ...

    pending = InProcessExecutor(Device()).submit(StepPlan(number=0))
    with pytest.raises(ExecutorDied):
        pending.result()


def test_the_loop_does_not_hide_a_dead_executor() -> None:
    rig = rig_with(Faults(), depth=1)
    rig.send(1, [1])

    class Dead:
        def result(self) -> StepResult:
            raise ExecutorDied("device lost")

    rig.executor.submit = lambda plan: Dead()  # type: ignore[method-assign, assignment]
    with pytest.raises(ExecutorDied):
        rig.run()
