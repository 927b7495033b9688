"""Who may run: estimate, queue limit, priorities, retraction, timeouts, prefix waits."""

from __future__ import annotations

import pytest
from engine_rig import EOS, Rig

from vivace.engine.settings import EngineSettings
from vivace.engine.step_builder import NewTokenEstimate
from vivace.protocol.messages import Finish


def rig_with(*, pages: int = 64, page_size: int = 1, **options: object) -> Rig:
    chosen = {"eos_ids": (EOS,), "depth": 1, **options}
    return Rig(EngineSettings(**chosen), pages=pages, page_size=page_size)  # type: ignore[arg-type]


def get_finish(rig: Rig, key: int) -> Finish:
    finish = rig.answers[key].finish
    assert finish is not None
    return finish


def running(rig: Rig) -> set[int]:
    return {sequence.key for sequence in rig.scheduler._table.running()}


def test_the_ratio_decays_to_its_floor_and_jumps_after_a_retraction() -> None:
    settings = EngineSettings(conservativeness=0.5, ratio_decay_steps=10)
    estimate = NewTokenEstimate(settings, 1)
    assert estimate.ratio == pytest.approx(0.35)
    for _ in range(5):
        estimate.decay()
    assert estimate.ratio == pytest.approx(0.35 - 5 * (0.35 - 0.049) / 10)
    for _ in range(20):
        estimate.decay()
    assert estimate.ratio == pytest.approx(0.35 * 0.14)
    rig = rig_with()
    rig.send(1, [1], 40, ignore_eos=True)
    rig.step(12)
    (sequence,) = rig.scheduler._table.running()
    estimate.on_retraction([sequence])
    assert estimate.ratio == pytest.approx((sequence.num_output_tokens + 20) / 40)


def test_admission_waits_while_running_requests_are_expected_to_grow() -> None:
    rig = rig_with(pages=60)
    rig.send(1, [1, 2], 50, ignore_eos=True)
    rig.step(4)
    rig.send(2, [3, 4], 30, ignore_eos=True)
    rig.step(4)
    assert running(rig) == {1}
    rig.run()
    rig.check(1)
    rig.check(2)
    assert rig.answers[1].deltas[-1].retractions == 0


def test_a_careless_estimate_ends_in_retraction_but_changes_no_token() -> None:
    rig = rig_with(pages=40, initial_ratio=0.01, clip_new_tokens=4)
    for key in range(4):
        rig.send(key, [key, 1, 2], 25, ignore_eos=True)
    rig.run()
    for key in range(4):
        rig.check(key)
    assert sum(answer.deltas[-1].retractions for answer in rig.answers.values()) > 0
    counters = rig.scheduler.state().metrics.counters
    assert counters["num_retracted_requests_total"] > 0
    rig.at_rest()


def test_retraction_takes_who_has_generated_least() -> None:
    rig = rig_with(pages=64, retract_every=6, prefix_cache=False)
    rig.send(1, [1, 1], 30, ignore_eos=True)
    rig.step(10)
    rig.send(2, [2, 2], 30, ignore_eos=True)
    rig.run()
    assert rig.answers[1].deltas[-1].retractions == 0
    assert rig.answers[2].deltas[-1].retractions > 0
    rig.check(1)
    rig.check(2)


def test_a_full_queue_answers_503_with_a_time_to_come_back() -> None:
    rig = rig_with(rows=1, max_queued=2)
    for key in range(4):
        rig.send(key, [key], 5)
        rig.step()
    finish = get_finish(rig, 3)
    assert (finish.type, finish.status) == ("abort", 503)
    assert finish.retry_after is not None and 1 <= finish.retry_after <= 60
    rig.run()
    for key in range(3):
        rig.check(key)


def test_a_burst_into_an_idle_engine_is_not_a_full_queue() -> None:
    rig = rig_with(rows=4, max_queued=1)
    for key in range(6):
        rig.send(key, [key], 3)
    rig.run()
    assert [key for key in range(6) if get_finish(rig, key).status == 503] == [5]


def test_a_more_important_newcomer_takes_the_place_of_the_least_important_waiting() -> None:
    rig = rig_with(rows=1, max_queued=1, priorities=True, preemption_threshold=100)
    rig.send(0, [1], 20, priority=5)
    rig.step(2)
    rig.send(1, [1], 5, priority=1)
    rig.step()
    rig.send(2, [1], 5, priority=3)
    rig.run()
    dropped = get_finish(rig, 1)
    assert dropped.status == 503 and dropped.retry_after and 1 <= dropped.retry_after <= 60
    rig.check(0)
    rig.check(2)


def test_a_priority_that_is_not_welcome_says_when_to_come_back() -> None:
    rig = rig_with(abort_on_priority_when_disabled=True)
    rig.send(1, [1], 5, priority=1)
    rig.send(2, [1], 5)
    rig.run()
    refused = get_finish(rig, 1)
    assert refused.status == 503 and refused.retry_after == 60
    rig.check(2)


def test_priorities_decide_the_order_and_preempt_beyond_the_threshold() -> None:
    rig = rig_with(rows=1, priorities=True, preemption_threshold=3)
    rig.send(1, [1], 20, priority=0, ignore_eos=True)
    rig.step(6)
    rig.send(2, [2], 3, priority=3, ignore_eos=True)
    rig.step(2)
    assert running(rig) == {1}
    rig.send(3, [3], 3, priority=4, ignore_eos=True)
    rig.step(2)
    assert running(rig) == {3}
    rig.run()
    for key in (1, 2, 3):
        rig.check(key)
    assert rig.answers[1].deltas[-1].retractions == 1


def test_low_values_first_turns_importance_around() -> None:
    rig = rig_with(rows=1, priorities=True, low_values_first=True, preemption_threshold=0)
    rig.send(1, [1], 20, priority=9, ignore_eos=True)
    rig.step(3)
    rig.send(2, [2], 3, priority=1, ignore_eos=True)
    rig.step(2)
    assert running(rig) == {2}


def test_pages_are_freed_for_the_important() -> None:
    rig = rig_with(pages=32, rows=4, priorities=True, preemption_threshold=1)
    for key in range(2):
        rig.send(key, [key] * 8, 8, priority=0, ignore_eos=True)
    rig.step(3)
    rig.send(9, [9] * 20, 10, priority=5, ignore_eos=True)
    rig.step(2)
    assert 9 in running(rig)
    rig.run()
    for key in (0, 1, 9):
        rig.check(key)


def test_priorities_may_be_unwelcome() -> None:
    rig = rig_with(abort_on_priority_when_disabled=True)
    rig.send(1, [1], 3, priority=1)
    rig.run()
    finish = get_finish(rig, 1)
    assert finish.status == 503 and "--enable-priority-scheduling" in str(finish.message)


@pytest.mark.parametrize(
    ("tokens", "reason"),
    [
        ([], "empty"),
        ([1] * 201, "context length is 200"),
        ([1] * 70, "KV cache holds 64"),
        ([-1], "token ids"),
        ([97], "token ids"),
    ],
)
def test_impossible_prompts_are_refused_at_once(tokens: list[int], reason: str) -> None:
    rig = rig_with()
    rig.send(1, tokens, 3)
    rig.step()
    finish = get_finish(rig, 1)
    assert (finish.type, finish.status) == ("abort", 400) and reason in str(finish.message)


def test_the_largest_request_that_fits_the_pool_runs() -> None:
    rig = rig_with(pages=64)
    rig.send(1, [1] * 60, 100, ignore_eos=True)
    rig.send(2, [2] * 3, 5, ignore_eos=True)
    rig.run()
    rig.check(1)
    rig.check(2)
    assert get_finish(rig, 1).length == 4


def test_waiting_too_long_and_running_too_long() -> None:
    rig = rig_with(rows=1, waiting_timeout=0.05, running_timeout=0.3)
    rig.send(1, [1], 100, ignore_eos=True)
    rig.step()
    rig.send(2, [2], 5)
    rig.run()
    assert get_finish(rig, 2).status == 503 and "queue" in str(get_finish(rig, 2).message)
    assert get_finish(rig, 1).status == 503 and "running" in str(get_finish(rig, 1).message)
    assert rig.answers[1].tokens == rig.expected(1)[: len(rig.answers[1].tokens)]
    rig.at_rest()


def test_requests_wait_for_a_prefix_that_is_being_computed() -> None:
    rig = rig_with(pages=300, rows=8, shared_prefix_wait=32, chunk=16, depth=2)
    stem = list(range(40))
    for key in range(5):
        rig.send(key, [*stem, key], 3, ignore_eos=True)
    rig.run()
    cached = [rig.answers[key].deltas[0].cached_tokens for key in range(5)]
    assert cached == [0, 40, 40, 40, 40]
    for key in range(5):
        rig.check(key)


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("chunk", [None, 16, 64])
def test_who_waits_for_a_prefix_goes_on_when_its_prompt_ends_in_an_error(
    depth: int, chunk: int | None
) -> None:
    """The last look at what waits was before the step came back in which that prompt ended."""
    rig = rig_with(pages=300, shared_prefix_wait=1, chunk=chunk, depth=depth)
    rig.faults.bad_keys.add(1)
    rig.send(1, list(range(40)), 1, ignore_eos=True)
    rig.send(2, [*range(40), 1], 3, ignore_eos=True)
    rig.run()
    assert get_finish(rig, 1).status == 500
    rig.check(2)


def test_who_shares_nothing_overtakes_who_waits_for_a_prefix() -> None:
    rig = rig_with(pages=300, chunk=30)
    stem = list(range(40))
    rig.send(1, stem, 3, ignore_eos=True)
    rig.send(2, [*stem, 1], 3, ignore_eos=True)
    rig.send(3, [7, 7], 3, ignore_eos=True)
    rig.step(3)
    assert running(rig) == {1, 3}
    rig.run()
    for key in (1, 2, 3):
        rig.check(key)


@pytest.mark.parametrize("mixed", [False, True])
def test_chunks_respect_the_budget(mixed: bool) -> None:
    rig = rig_with(pages=300, chunk=8, mixed=mixed)
    seen: list[tuple[int, int]] = []
    submit = rig.executor.submit

    def spy(plan):  # type: ignore[no-untyped-def]
        seen.append((sum(plan.counts), max(plan.counts)))
        return submit(plan)

    rig.executor.submit = spy  # type: ignore[method-assign]
    rig.send(1, [1], 30, ignore_eos=True)
    rig.step(4)
    rig.send(2, list(range(62)), 4, ignore_eos=True)
    rig.run()
    assert max(total for total, _ in seen) == 8
    chunks = [longest for _, longest in seen if longest > 1]
    assert chunks[:4] == ([7, 7, 7, 7] if mixed else [8, 8, 8, 8])
    assert sum(chunks) == 62


def test_one_newcomer_per_step_when_asked() -> None:
    rig = rig_with(prefill_max_requests=1)
    for key in range(3):
        rig.send(key, [key, 1], 20, ignore_eos=True)
    rig.step(2)
    assert len(running(rig)) == 1
    rig.step(4)
    assert len(running(rig)) == 2


def test_continuous_decode_steps_postpone_newcomers() -> None:
    rig = rig_with(continuous_decode_steps=8)
    rig.send(1, [1], 40, ignore_eos=True)
    rig.step(4)
    rig.send(2, [2], 5, ignore_eos=True)
    rig.step(4)
    assert running(rig) == {1}
    rig.run()
    rig.check(2)
