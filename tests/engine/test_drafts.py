"""Decode spans that carry drafts, and steps that come back with less than was planned."""

from __future__ import annotations

import pytest
from engine_rig import EOS, VOCABULARY, Rig

from vivace.engine.drafts.levels import FIRST_LEVEL
from vivace.engine.oracle import Faults, OracleWorker, oracle_token
from vivace.engine.settings import EngineSettings
from vivace.protocol.messages import CacheGroup, LogprobOptions
from vivace.protocol.step import StepPlan, StepResult, window_slack


def rig_with(drafts: int, *, depth: int = 1, **options: object) -> Rig:
    settings = EngineSettings(
        eos_ids=(EOS,), depth=depth, num_speculative_tokens=drafts, prefix_cache=False
    )
    return Rig(settings, **options)  # type: ignore[arg-type]


def counted(rig: Rig) -> list[StepPlan]:
    """Every plan that is submitted from now on."""
    plans: list[StepPlan] = []
    submit = rig.executor.submit

    def spy(plan: StepPlan):  # type: ignore[no-untyped-def]
        plans.append(plan)
        return submit(plan)

    rig.executor.submit = spy  # type: ignore[method-assign]
    return plans


def draft_with(rig: Rig, draft) -> None:  # type: ignore[no-untyped-def]
    worker = rig.executor._worker
    assert isinstance(worker, OracleWorker)
    worker._draft = draft


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("drafts", range(8))
def test_the_same_tokens_in_fewer_steps(drafts: int, depth: int, late: bool) -> None:
    rig = rig_with(drafts, depth=depth, late=late, eos_rate=0.02)
    draft_with(rig, lambda seed, position: oracle_token(seed, position, VOCABULARY))
    plans = counted(rig)
    for key in range(4):
        rig.send(key, [key, 1, 2], 40 + key, ignore_eos=key == 0)
    rig.run()
    rig.at_rest()
    for key in rig.answers:
        rig.check(key)
    longest = max(len(answer.tokens) for answer in rig.answers.values())
    if depth == 1:  # with more in flight the last plans may be for nothing
        assert len(plans) <= longest if not drafts else len(plans) < longest / 2 + 8


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_hostile_drafter_changes_nothing_but_the_speed(depth: int) -> None:
    rig = rig_with(5, depth=depth)
    draft_with(rig, lambda seed, position: (oracle_token(seed, position, VOCABULARY) + 1) % 97)
    rig.send(0, [1, 2, 3], 30, ignore_eos=True, logprobs=LogprobOptions(start=0))
    rig.run()
    rig.check(0)
    assert [scored.token for scored in rig.answers[0].logprobs] == rig.answers[0].tokens
    assert all(delta.tokens == delta.tokens[:1] for delta in rig.answers[0].deltas)


def test_new_requests_expect_what_drafts_of_others_came_to() -> None:
    rig = rig_with(3)
    draft_with(rig, lambda seed, position: (oracle_token(seed, position, VOCABULARY) + 1) % 97)
    for key in range(12):
        rig.send(key, [key], 30, ignore_eos=True)
        rig.run()
    rig.send(12, [12], 30, ignore_eos=True)
    rig.step(2)
    assert 0 < rig.scheduler._table.live[12].draft_level < FIRST_LEVEL - 8
    rig.run()


@pytest.mark.parametrize("how", ["finished", "moved"])
def test_nothing_is_held_of_requests_that_others_end(how: str) -> None:
    """Their drafts end at their level as those of others do."""
    rig = rig_with(3)
    draft_with(rig, lambda seed, position: (oracle_token(seed, position, VOCABULARY) + 1) % 97)
    rig.send(1, [1], 60, ignore_eos=True)
    rig.step(20)
    drafts = rig.scheduler._stats.drafts
    assert drafts._decodes
    rig.cancel(1, **{how: True})
    rig.run()
    assert not drafts._decodes
    assert drafts._level < FIRST_LEVEL


def test_drafts_take_no_page_that_a_sequence_needs() -> None:
    """While pages are short there are fewer drafts, not more retractions."""
    rig = rig_with(7, pages=12, page_size=4, rows=4)
    plain = rig_with(0, pages=12, page_size=4, rows=4)
    for one in (rig, plain):
        for key in range(4):
            one.send(key, [key], 11, ignore_eos=True)
        one.run()
        for key in one.answers:
            one.check(key)
    assert rig.scheduler._stats.counters["num_retracted_requests_total"] == 0
    assert plain.scheduler._stats.counters["num_retracted_requests_total"] == 0


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_what_came_back_short_is_planned_again(depth: int) -> None:
    """Prompts and single tokens, too, down to spans that did not run at all."""
    rig = rig_with(0, depth=depth, faults=Faults(shorten_rate=0.5))
    for key in range(3):
        rig.send(
            key, [*range(key, 20)], 20, ignore_eos=True, logprobs=LogprobOptions(start=key - 1)
        )
    rig.run()
    rig.at_rest()
    for key in rig.answers:
        rig.check(key)
        assert rig.answers[key].request.logprobs is not None
        scored = [entry.token for entry in rig.answers[key].prompt_logprobs or []]
        assert scored == (rig.answers[key].request.tokens[max(0, key - 1) :] if key else [])


def test_a_failed_step_is_tried_again_without_its_drafts() -> None:
    rig = rig_with(6, faults=Faults(raise_on_steps={3, 5}, raise_on_keys={9}))
    for key in (1, 2, 9):
        rig.send(key, [key], 30, ignore_eos=True)
    rig.run()
    rig.at_rest()
    assert rig.answers[9].finish is not None and rig.answers[9].finish.status == 500
    rig.check(1)
    rig.check(2)


def test_tokens_that_come_at_once_share_the_time_between_them() -> None:
    rig = rig_with(3)
    draft_with(rig, lambda seed, position: oracle_token(seed, position, VOCABULARY))
    rig.send(0, [1], 9, ignore_eos=True)
    rig.run()
    histogram = rig.scheduler.state().metrics.histograms["inter_token_latency_seconds"]
    steps = [delta.tokens for delta in rig.answers[0].deltas]
    assert [len(tokens) for tokens in steps] == [1, 4, 4]
    assert histogram.counts[-1] == 8
    times = rig.answers[0].times
    assert histogram.total == pytest.approx(times[-1] - times[0])


@pytest.mark.parametrize("depth", [1, 2])
def test_drafts_behind_an_end_are_no_tokens_of_the_answer(depth: int) -> None:
    """Neither in metrics nor in what an answer says of its steps."""
    rig = rig_with(3, depth=depth, eos_rate=0.05)
    draft_with(rig, lambda seed, position: oracle_token(seed, position, VOCABULARY))
    for key in range(9):
        rig.send(key, [key], 9 + key, ignore_eos=key % 3 == 0)
    rig.run()
    answers = rig.answers.values()
    counters = rig.scheduler.state().metrics.counters
    assert counters["generation_tokens_total"] == sum(len(one.tokens) for one in answers)
    drafted = [one for one in answers if one.deltas[-1].drafts is not None]
    assert len(drafted) > 4
    for one in drafted:
        steps = len([delta for delta in one.deltas if delta.tokens])
        assert (one.deltas[-1].drafts or ())[2:] == (steps - 1,)


@pytest.mark.parametrize("depth", [1, 2])
def test_who_may_stop_at_a_string_is_told_of_drafts_with_every_step(depth: int) -> None:
    """The frontend ends the answer before the engine hears of it."""
    rig = rig_with(3, depth=depth)
    draft_with(rig, lambda seed, position: oracle_token(seed, position, VOCABULARY))
    rig.send(0, [1], 25, ignore_eos=True, stop=("a",))
    rig.send(1, [1], 25, ignore_eos=True)
    rig.run()
    told = [delta.drafts for delta in rig.answers[0].deltas if delta.tokens]
    assert told[0] is None and [(one or ())[2:] for one in told[1:]] == [
        (steps,) for steps in range(1, len(told))
    ]
    assert [one for one in (delta.drafts for delta in rig.answers[1].deltas[:-1]) if one] == []
    rig.check_drafts()


@pytest.mark.parametrize("ahead", [0.0, 0.4])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_the_server_counts_the_drafts_of_its_answers(depth: int, ahead: float) -> None:
    """Not what a step in flight still computes for an answer that is over, as a draft or behind
    tokens that were known; rows are retracted meanwhile, and draw what follows as prompts do."""
    settings = EngineSettings(
        eos_ids=(EOS,), depth=depth, num_speculative_tokens=3, retract_every=5
    )
    rig = Rig(settings, eos_rate=0.02, faults=Faults(ahead_rate=ahead))
    for key in range(8):
        rig.send(key, [key, 1, 2], 30 + key, ignore_eos=key == 0)
        rig.step()
    rig.cancel(2, 5)
    rig.run()
    assert rig.scheduler.state().metrics.counters["num_retracted_requests_total"] > 0
    rig.check_drafts()
    told = [answer.deltas[-1].drafts for answer in rig.answers.values()]
    steps = sum(one[2] for one in told if one is not None)
    assert sum(rig.scheduler.state().spec_draft_widths.values()) == steps


def test_a_span_without_a_token_ends_nothing() -> None:
    """What StepResult allows: nothing advanced, nothing drawn."""
    rig = rig_with(0)
    rig.send(0, [1, 2], 3, ignore_eos=True)
    rig.step(2)
    plan = rig.scheduler.plan(idle=True)
    assert plan is not None and plan.counts == [1]
    rig.scheduler.commit(plan, StepResult(number=plan.number, advanced=[0], tokens=[[]]))
    again = rig.scheduler.plan(idle=True)
    assert again is not None and (again.rows, again.counts) == (plan.rows, [1])


@pytest.mark.parametrize("forced", [2, 3, 8])
def test_tokens_that_were_known_when_a_span_came_back_are_no_drafts(forced: int) -> None:
    """A grammar forces tokens while the next step is in flight: it computes them instead."""
    rig = rig_with(3, eos_rate=0.0)
    rig.send(0, [1, 2], 60)
    rig.step(2)
    drawn = rig.answers[0].deltas
    assert [len(delta.tokens) for delta in drawn] == [1]
    first, second = rig.scheduler.plan(idle=True), rig.scheduler.plan(idle=False)
    assert first is not None and second is not None and first.counts == second.counts == [4]
    answer(rig, first, 1, [EOS + 1] * (1 + forced))
    answer(rig, second, min(1 + forced, 4), [EOS] if forced <= 3 else [])
    if forced > 3:
        rest = rig.scheduler.plan(idle=True)
        assert rest is not None and rest.counts == [forced - 3]
        answer(rig, rest, forced - 3, [EOS])
    ended = rig.scheduler.take_deltas()[-1]
    assert ended.finish is not None
    assert ended.drafts == (3 + max(0, 3 - forced), 0, 2)
    state = rig.scheduler.state()
    assert state.avg_spec_accept_rate == 0 and state.avg_spec_accept_length == 1
    assert sum(state.spec_draft_widths.values()) == 2, "as many steps as the request had"


def test_who_was_spoiled_gets_none_whatever_its_drafter_has() -> None:
    rig = rig_with(3)
    rig.send(0, [1, 2], 60)
    rig.send(1, [1, 2], 60)
    rig.step(2)
    plan = rig.scheduler.plan(idle=True)
    assert plan is not None and plan.counts == [4, 4]
    result = StepResult(
        number=plan.number,
        advanced=[0, 1],
        tokens=[[], [EOS + 1]],
        bad={0: "NaN"},
        ready_drafts=[3, 2],
    )
    rig.scheduler.commit(plan, result)
    plan = rig.scheduler.plan(idle=True)
    assert plan is not None and plan.counts == [1, 3]


def answer(rig: Rig, plan: StepPlan, advanced: int, tokens: list[int]) -> None:
    """Commit a step of one span."""
    result = StepResult(number=plan.number, advanced=[advanced], tokens=[tokens])
    rig.scheduler.commit(plan, result)


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("drafts", [0, 1, 3])
def test_streams_never_have_more_of_a_window_than_is_reserved(
    drafts: int, depth: int, page_size: int
) -> None:
    """So a pool for two is enough for two, and a third one waits."""
    settings = EngineSettings(
        eos_ids=(EOS,), depth=depth, num_speculative_tokens=drafts, prefix_cache=False
    )
    most = CacheGroup(pages=0, reach=4).row_pages(window_slack(depth, drafts), page_size)
    window = CacheGroup(pages=2 * most, reach=4)
    rig = Rig(settings, pages=800 // page_size, page_size=page_size, others=(window,), late=True)
    for key in range(3):
        rig.send(key, [key], 150, ignore_eos=True)
    table = rig.scheduler._table
    for _ in range(600):
        rig.step()
        held = [len(s.lease.parts[0].pages) for s in table.running() if s.lease is not None]
        assert len(held) <= 2 and max(held, default=0) <= most
    rig.at_rest()
    assert rig.scheduler.state().metrics.counters["num_retracted_requests_total"] == 0
    for key in rig.answers:
        rig.check(key)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_numbers_that_go_wrong_beside_drafts_are_computed_without(depth: int) -> None:
    """A request whose numbers are bad by themselves ends; the others have all their tokens."""
    rig = rig_with(3, depth=depth, faults=Faults(bad_drafts={1, 2}, bad_keys={3}))
    plans = counted(rig)
    for key in range(4):
        rig.send(key, [key, 7], 40, ignore_eos=True)
    rig.run()
    rig.at_rest()
    for key in range(3):
        rig.check(key)
    finish = rig.answers[3].finish
    assert finish is not None and finish.status == 500
    row_counts = [dict(zip(plan.rows, plan.counts, strict=True)) for plan in plans]
    assert any(counts.get(0) == 4 for counts in row_counts[depth + 2 :])
    assert not any(counts.get(row, 1) > 1 for counts in row_counts[depth + 2 :] for row in (1, 2))
