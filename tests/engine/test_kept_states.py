"""States that others start from: which are kept, and what finds them."""

from __future__ import annotations

import pytest
from engine_rig import EOS, Rig

from vivace.engine.oracle import Faults
from vivace.engine.settings import EngineSettings
from vivace.protocol.messages import CacheGroup
from vivace.protocol.step import StepPlan


def rig_with(
    drafts: int = 0,
    depth: int = 1,
    states: int = 20,
    prefix_cache: bool = True,
    **options: object,
) -> Rig:
    """Pages of 4 tokens, and a state for each 8."""
    settings = EngineSettings(
        eos_ids=(EOS,),
        depth=depth,
        num_speculative_tokens=drafts,
        state_interval=8,
        prefix_cache=prefix_cache,
    )
    groups = (CacheGroup(pages=states, reach=1, state=True),)
    return Rig(settings, pages=64, page_size=4, others=groups, **options)  # type: ignore[arg-type]


def cached(rig: Rig, key: int, tokens: list[int]) -> int:
    """How many tokens of a prompt are found."""
    before = rig.scheduler.state().metrics.counters["cached_tokens_total"]
    rig.send(key, tokens, 1, ignore_eos=True)
    rig.run()
    rig.check(key)
    return int(rig.scheduler.state().metrics.counters["cached_tokens_total"] - before)


@pytest.mark.parametrize("length", [8, 9, 15, 16, 30, 33])
def test_the_last_state_of_a_prompt_is_found_though_the_prompt_went_on(length: int) -> None:
    rig = rig_with()
    prompt = list(range(length))
    rig.send(0, prompt, 2, ignore_eos=True)
    rig.run()
    assert cached(rig, 1, [*prompt, 90]) == length // 8 * 8
    rig.at_rest()


@pytest.mark.parametrize("shorten", [0.0, 0.3])
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("drafts", [0, 1, 3])
def test_a_conversation_goes_on_behind_its_answer(drafts: int, depth: int, shorten: float) -> None:
    """Drafts, and steps that do less than was planned, may miss a state, but never keep a wrong
    one."""
    rig = rig_with(drafts, depth, late=True, faults=Faults(shorten_rate=shorten))
    prompt = list(range(10))
    rig.send(0, prompt, 60, ignore_eos=True)
    rig.run()
    found = cached(rig, 1, [*prompt, *rig.answers[0].tokens, 5])
    assert found == 64 if not (drafts or shorten) else found % 8 == 0 and found >= 8
    rig.at_rest()


def test_without_a_prefix_cache_nothing_is_saved_and_no_chunk_is_cut() -> None:
    plans: list[StepPlan] = []
    rig = rig_with(prefix_cache=False, cost=lambda plan: plans.append(plan) or 0.01)
    rig.send(0, list(range(30)), 20, ignore_eos=True)
    rig.run()
    rig.check(0)
    assert plans[0].counts == [30]
    assert not any(plan.saves for plan in plans)
    rig.at_rest()


@pytest.mark.parametrize("states", [0, 1])
def test_without_pages_for_states_nothing_is_kept_and_all_is_served(states: int) -> None:
    rig = rig_with(states=states)
    for key in range(4):
        rig.send(key, list(range(key, 30)), 9, ignore_eos=True)
    rig.run()
    for key in range(4):
        rig.check(key)
    rig.at_rest()
