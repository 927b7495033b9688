"""An idle engine gives memory back: cached prefixes stay, and nobody reads what is gone.

The oracle forgets what lies in vacated pages and checks every page that is read.
"""

from __future__ import annotations

import pytest
from engine_rig import EOS, Rig

from vivace.engine.settings import EngineSettings
from vivace.kv.leases import FORGET_SECONDS, IDLE_SECONDS, MAX_COPIES, TRIM_SECONDS

PROMPT = list(range(10, 50))
SETTINGS = EngineSettings(eos_ids=(EOS,), depth=1)


def burst(rig: Rig, first: int, count: int = 6) -> None:
    """Requests that run together, with nothing in common."""
    for key in range(first, first + count):
        rig.send(key, [key] * 20, 12, ignore_eos=True)
    rig.run()
    for key in range(first, first + count):
        rig.check(key)


def touched(rig: Rig) -> int:
    return rig.scheduler._leases.touched_in[0]


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("late", [False, True])
def test_after_a_burst_memory_goes_back_and_the_conversation_stays(depth: int, late: bool) -> None:
    settings = EngineSettings(eos_ids=(EOS,), depth=depth)
    rig = Rig(settings, pages=200, cache_share=16, late=late)
    burst(rig, 1)
    rig.send(7, PROMPT, 8, ignore_eos=True)
    rig.run()
    assert touched(rig) > 16
    rig.rest(IDLE_SECONDS)
    assert touched(rig) == rig.scheduler._leases.cached == 16
    rig.send(8, PROMPT + rig.answers[7].tokens + [5], 8, ignore_eos=True)
    rig.run()
    rig.check(8)
    assert rig.answers[8].deltas[-1].cached_tokens == (len(PROMPT) + 7) // 4 * 4
    rig.at_rest()


def test_nothing_happens_before_its_time_or_twice() -> None:
    rig = Rig(SETTINGS, pages=200, cache_share=16)
    rig.rest(TRIM_SECONDS)
    burst(rig, 1)
    before = touched(rig)
    timeout = rig.loop.wait_timeout()
    assert timeout is not None and 0 < timeout <= IDLE_SECONDS
    rig.rest(IDLE_SECONDS / 2)
    assert touched(rig) == before
    rig.rest(IDLE_SECONDS)
    assert touched(rig) == 16
    assert rig.loop.wait_timeout() is None


def test_the_worker_gives_back_soon_and_pages_later() -> None:
    rig = Rig(SETTINGS, pages=200, cache_share=16)
    rig.rest(TRIM_SECONDS)
    burst(rig, 1)
    before, steps = touched(rig), rig.scheduler._next_step
    rig.rest(TRIM_SECONDS)
    assert touched(rig) == before and rig.scheduler._next_step == steps + 1
    timeout = rig.loop.wait_timeout()
    assert timeout is not None and timeout > IDLE_SECONDS / 2
    rig.rest(IDLE_SECONDS)
    assert touched(rig) == 16


def test_what_the_start_left_behind_goes_back_soon() -> None:
    rig = Rig(SETTINGS, pages=200, cache_share=16)
    burst(rig, 1)
    timeout = rig.loop.wait_timeout()
    assert timeout is not None and timeout <= TRIM_SECONDS < IDLE_SECONDS
    rig.rest(TRIM_SECONDS)
    assert touched(rig) == 16


def test_a_pause_is_told_to_the_worker_in_one_plan_or_two() -> None:
    """It keeps memory for the next step; pages that go back later are a second plan."""
    rig = Rig(SETTINGS, pages=200, cache_share=200)
    plans: list[list[int]] = []
    rig.executor.submit = lambda plan, run=rig.executor.submit: (  # type: ignore[method-assign]
        plans.append(plan.vacant),
        run(plan),
    )[1]
    for _ in range(2):
        rig.send(1, PROMPT, 8, ignore_eos=True)
        rig.run()
        plans.clear()
        rig.rest(TRIM_SECONDS)
        assert len(plans) == 1
        rig.rest(IDLE_SECONDS)
        rig.rest(10 * IDLE_SECONDS)
        assert 1 <= len(plans) <= 2 and plans[-1] == [touched(rig)]
    assert rig.scheduler.state().cached_tokens > 40


def test_a_device_that_has_its_memory_anyway_is_left_alone() -> None:
    rig = Rig(SETTINGS, pages=200)
    burst(rig, 1)
    cached = rig.scheduler.state().cached_tokens
    assert rig.loop.wait_timeout() is None
    rig.rest(10 * IDLE_SECONDS)
    assert rig.scheduler.state().cached_tokens == cached


def test_a_request_that_comes_meanwhile_waits_for_one_small_step() -> None:
    pages = 4 * MAX_COPIES
    settings = EngineSettings(eos_ids=(EOS,), depth=2, rows=64)
    rig = Rig(settings, pages=pages, page_size=1, rows=64, cache_share=pages // 2, late=True)
    for key in range(1, 21):
        rig.send(key, [key] * 4, 8, ignore_eos=True)
    rig.run()
    rig.clock.now += IDLE_SECONDS
    rig.step()
    rig.send(30, [3] * 4, 2, ignore_eos=True)
    rig.step(3)
    rig.run()
    rig.check(30)
    rig.at_rest()


def test_copies_that_fail_cost_the_cache_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(SETTINGS, pages=200, cache_share=16)
    burst(rig, 1)
    worker = rig.executor._worker
    monkeypatch.setattr(worker, "_apply", lambda plan: 1 / 0 if plan.copies else None)
    rig.rest(IDLE_SECONDS)
    monkeypatch.undo()
    assert rig.scheduler.state().cached_tokens == 0
    burst(rig, 20)
    rig.at_rest()


def test_giving_memory_back_may_fail_and_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(SETTINGS, pages=200, cache_share=200)
    rig.rest(TRIM_SECONDS)
    burst(rig, 1)
    cached = rig.scheduler.state().cached_tokens
    worker = rig.executor._worker
    monkeypatch.setattr(worker, "_apply", lambda plan: 1 / 0 if plan.vacant else None)
    rig.rest(TRIM_SECONDS)
    monkeypatch.undo()
    assert rig.scheduler.state().cached_tokens == cached > 0
    burst(rig, 20)
    rig.at_rest()


def test_what_prefixes_have_earned_is_lost_when_nobody_comes_for_long() -> None:
    rig = Rig(SETTINGS, pages=200, cache_share=16)
    for _ in range(4):
        for key in range(5):
            rig.send(key, [key] * 20, 8, ignore_eos=True)
            rig.run()
    assert touched(rig) > 16
    rig.rest(IDLE_SECONDS)
    assert touched(rig) > 16
    rig.rest(FORGET_SECONDS)
    assert touched(rig) == 16
    assert rig.loop.wait_timeout() is None
