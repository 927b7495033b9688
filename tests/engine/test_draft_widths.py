"""How many drafts each row gets."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vivace.engine.drafts.gains import DraftShape
from vivace.engine.drafts.levels import (
    FIRST_LEVEL,
    LEVELS,
    SPOILED,
    level_table,
    next_level,
    probability,
)
from vivace.engine.drafts.stats import DraftStats, tally
from vivace.engine.drafts.widths import (
    AdaptiveWidth,
    DraftWidths,
    FixedWidth,
    choose_widths,
    probe_period,
)
from vivace.engine.settings import EngineSettings
from vivace.protocol.metrics import StepCosts
from vivace.protocol.step import StepResult

FLAT = StepCosts(tokens=[1, 64], seconds=[1.0, 1.0])
DRAFT_OF_A_TENTH = StepCosts(tokens=[1, 100], seconds=[1.0, 1.0], draft_seconds=[0.1, 10.0])
STEEP = StepCosts(tokens=[1, 64], seconds=[1.0, 64.0])


def drawn(advanced: list[int], known: int = 0) -> StepResult:
    """A step of spans; `known`: so many of each one's tokens were known when it was computed."""
    tokens = [[0] * (count - known) for count in advanced]
    return StepResult(number=1, advanced=advanced, tokens=tokens)


def sequence(level: int, ready: int, row: int = 0) -> Any:
    return SimpleNamespace(
        draft_level=level,
        ready_drafts=ready,
        row=row,
        tokens=[1] * 4,
        drafted_len=4,
    )


def widths(chosen: DraftWidths, rows: list[Any]) -> list[int]:
    return [count - 1 for count in chosen.choose(rows)]


def test_drafts_that_cost_nothing_are_all_tried_and_those_that_cost_a_step_are_not() -> None:
    rows = [sequence(25, 4), sequence(3, 4), sequence(25, 1), sequence(25, 0)]
    assert widths(AdaptiveWidth(DraftShape(4, 4), FLAT), rows) == [4, 4, 1, 0]
    assert sum(widths(AdaptiveWidth(DraftShape(4, 4), STEEP), rows)) <= 1, "one row is tried"
    assert widths(FixedWidth(), rows) == [4, 4, 1, 0]


def test_what_is_not_measured_limits_nothing() -> None:
    settings = EngineSettings(num_speculative_tokens=3)
    assert isinstance(choose_widths(settings, StepCosts()), FixedWidth)
    assert isinstance(choose_widths(settings, FLAT), AdaptiveWidth)


@given(
    st.lists(st.tuples(st.integers(0, LEVELS - 1), st.integers(0, 3)), min_size=1, max_size=4),
    st.lists(st.floats(0.01, 0.5), min_size=15, max_size=15),
    st.sampled_from([0.0, 0.1]),
)
def test_no_other_widths_bring_more_tokens_per_second(
    rows: list[tuple[int, int]], growth: list[float], draft: float
) -> None:
    """Rows of one level have one width, up to what is ready: then none is better."""
    seconds = list(itertools.accumulate([1.0, *sorted(growth)]))
    costs = StepCosts(
        tokens=list(range(1, 17)), seconds=seconds, draft_seconds=[draft] * 16 if draft else []
    )

    def rate(widths: tuple[int, ...]) -> float:
        gained = sum(
            sum(probability(level) ** place for place in range(width + 1))
            for (level, _), width in zip(rows, widths, strict=True)
        )
        tokens = sum(widths) + len(rows)
        known = [(at, took) for at, took in zip(costs.tokens, seconds, strict=True)]
        lower = max(one for one in known if one[0] <= tokens)
        return gained / (lower[1] + max(widths) * draft)

    drafter = AdaptiveWidth(DraftShape(3, 3), costs)
    chosen = tuple(widths(drafter, [sequence(*row) for row in rows]))
    assert all(width <= ready for width, (_, ready) in zip(chosen, rows, strict=True))
    every = itertools.product(*(range(ready + 1) for _, ready in rows))
    assert rate(chosen) >= 0.75 * max(rate(widths) for widths in every)


@pytest.mark.parametrize("told", [True, False])
def test_who_gets_none_is_tried_again_now_and_then(told: bool) -> None:
    """The sooner, the less is missing; and where there are many, some in turn."""
    chosen, tried = AdaptiveWidth(DraftShape(4, 4), STEEP, told=told), [0] * 40
    rows = [sequence(2, 4), *(sequence(20, 4) for _ in range(39))]
    for _ in range(3200):
        for index, width in enumerate(widths(chosen, rows)):
            assert width <= 1
            tried[index] += width
    assert min(tried) > 10
    assert sum(tried) <= 8 * 3200 / 8
    assert probe_period(2, 20) == 8 and probe_period(20, 20) == 1 and probe_period(15, 20) == 2


@pytest.mark.parametrize("depth", [1, 3])
def test_nobody_looks_for_drafts_of_rows_that_get_none(depth: int) -> None:
    """But now and then for all, so that each is tried, and all have drafts again where they pay.
    Where several steps are in flight, groups of rows take turns."""
    costs = StepCosts(tokens=[1, 64], seconds=[32.0, 64.0])
    chosen = AdaptiveWidth(DraftShape(4, 4), costs, depth=depth)
    groups = [[sequence(2, 4, row) for row in range(20)] for _ in range(depth)]
    tried, looked = Counter[int](), 0

    def step(number: int) -> list[int]:
        rows = groups[number % depth]
        found = widths(chosen, rows)
        undrafted = chosen.undrafted(rows)
        for one, width in zip(rows, found, strict=True):
            tried[id(one)] += width
            one.ready_drafts = 0 if one.row in undrafted else 4
        return undrafted

    for number in range(3200):
        looked += 20 - len(step(number))
    assert len(+tried) == 20 * depth and max(tried.values()) < 3200 / 8
    assert looked <= (depth / 8 + 0.05) * 3200 * 20
    for rows in groups:
        for one in rows:
            one.draft_level = LEVELS - 1
    for number in range(8 * depth):
        step(number)
    assert all(width > 1 for rows in groups for width in widths(chosen, rows))


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("draft", [0.0, 0.1, 0.3])
@pytest.mark.parametrize("accepted", [0.0, 0.3, 0.6, 0.9])
def test_a_row_comes_near_to_the_best_width(accepted: float, draft: float, told: bool) -> None:
    """Whatever a pass of the drafter takes, and what its steps take is learned meanwhile."""
    draw, table = random.Random(1), level_table(3)

    def seconds(drafts: int) -> float:
        return 1 + 0.05 * drafts + drafts * draft

    costs = StepCosts(tokens=[1, 2, 3, 4], seconds=[1, 1.05, 1.1, 1.15], draft_seconds=[draft] * 4)
    chosen, row = AdaptiveWidth(DraftShape(3, 3), costs, told=told), sequence(FIRST_LEVEL, 3)
    took = tokens = 0.0
    for _ in range(2000):
        (drafts,) = widths(chosen, [row])
        right = next((done for done in range(drafts) if draw.random() >= accepted), drafts)
        row.draft_level = table[row.draft_level][drafts][right]
        chosen.observe([1 + drafts], seconds(drafts), drawn([1 + right]))
        took, tokens = took + seconds(drafts), tokens + 1 + right
    best = max(
        sum(accepted**place for place in range(width + 1)) / seconds(width) for width in range(4)
    )
    assert tokens / took > 0.87 * best


@pytest.mark.parametrize("slope", [0.02, 0.05, 0.1])
@pytest.mark.parametrize(("accepted", "draft"), [(0.1, 0.4), (0.4, 0.4), (0.4, 0.15), (0.1, 0.02)])
def test_a_new_engine_loses_little_where_steps_take_longer_than_at_its_start(
    accepted: float, draft: float, slope: float
) -> None:
    """By the same factor for all sizes: a size that was not seen yet does not look cheap."""
    draw, table, busy = random.Random(2), level_table(4), 1.4
    sizes = [1, 2, 4, 8, 16, 32, 64]
    costs = StepCosts(
        tokens=sizes,
        seconds=[1 + slope * (size - 1) for size in sizes],
        draft_seconds=[draft] * len(sizes),
    )
    chosen = AdaptiveWidth(DraftShape(4, 4), costs)
    rows = [sequence(FIRST_LEVEL, 4, row) for row in range(8)]
    took = tokens = 0.0
    for _ in range(100):
        drafts = widths(chosen, rows)
        seconds = busy * (1 + slope * (7 + sum(drafts)) + draft * max(drafts))
        seconds *= 1 + 0.1 * abs(draw.gauss(0, 1))
        advanced = list[int]()
        for row, width in zip(rows, drafts, strict=True):
            right = next((done for done in range(width) if draw.random() >= accepted), width)
            row.draft_level = table[row.draft_level][width][right] if width else row.draft_level
            advanced.append(1 + right)
        chosen.observe([1 + width for width in drafts], seconds, drawn(advanced))
        took, tokens = took + seconds, tokens + sum(advanced)
    plain = 8 / (busy * (1 + slope * 7) * 1.08)
    assert tokens / took > 0.95 * plain


@pytest.mark.parametrize("rows", [1, 8, 32])
@pytest.mark.parametrize("told", [True, False])
def test_a_drafter_that_has_to_catch_up_costs_little(rows: int, told: bool) -> None:
    """A draft model computes all that came since it was last asked: however seldom that is, for
    each token it takes a fifth of a step. New rows tell of drafts that became better."""
    table, length, steps = level_table(4), 500, 4000
    costs = StepCosts(tokens=[1, 256], seconds=[1.0, 3.0], draft_seconds=[0.3, 0.3 + 0.2 * 255])
    chosen = AdaptiveWidth(DraftShape(4, 4), costs, told=told)
    running, taken, tried = [sequence(FIRST_LEVEL, 4, row) for row in range(rows)], 0.0, 0
    for number in range(steps):
        counts = [1 + width for width in widths(chosen, running)]
        seconds = 1 + 2 * (sum(counts) - 1) / 255 + 0.3 * (max(counts) - 1)
        for row, count in zip(running, counts, strict=True):
            if count > 1:
                seconds += 0.2 * (len(row.tokens) - row.drafted_len)
                row.drafted_len, tried = len(row.tokens), tried + 1
                row.draft_level = table[row.draft_level][count - 1][0]
            row.tokens.append(1)
        chosen.observe(counts, seconds, drawn([1] * rows))
        taken += seconds
        if number % length == length - 1:
            running = [sequence(running[0].draft_level, 4, row) for row in range(rows)]
    assert taken / steps < 1.06 * (1 + 2 * (rows - 1) / 255)
    assert tried > 4, "what rows write may change"


def test_prompts_are_read_while_drafts_pay_for_it() -> None:
    rows = [sequence(20, 4, row) for row in range(3)]
    chosen = AdaptiveWidth(DraftShape(4, 4), DRAFT_OF_A_TENTH, catches_up=True)
    read = [chosen.unread(rows, 100) for _ in range(30)]
    assert read[0] == [] and read[-1] == [0, 1, 2], "ten steps each, and nothing comes of it"
    assert rows[0].drafted_len == 0
    others = [sequence(20, 4, row) for row in range(3)]
    for _ in range(200):  # who was read before has good drafts still
        chosen.choose(others)
        chosen.observe([5] * 3, 1.4, drawn([5] * 3))
    assert chosen.unread(rows, 100) == []
    other = AdaptiveWidth(DraftShape(4, 4), DRAFT_OF_A_TENTH)
    assert [other.unread(rows, 100) for _ in range(30)] == [[]] * 30


def test_nothing_is_read_while_drafts_are_paused() -> None:
    rows = [sequence(20, 4, row) for row in range(3)]
    chosen = AdaptiveWidth(DraftShape(4, 4), FLAT, catches_up=True)
    assert chosen.unread(rows, 1) == []
    for _ in range(20):
        chosen.choose(rows)
        chosen.observe([5] * 3, 9.0, drawn([1] * 3))
    assert chosen.unread(rows, 1) == [0, 1, 2]


def test_tokens_that_were_known_are_no_drafts_that_pay() -> None:
    """As those that a grammar has forced while the step was on its way."""
    for known, pays in ((0, True), (4, False)):
        chosen, rows = AdaptiveWidth(DraftShape(4, 4), FLAT), [sequence(25, 4)]
        for _ in range(40):
            chosen.choose(rows)
            chosen.observe([5], 3.0, drawn([5], known))
        assert (sum(widths(chosen, rows)[0] for _ in range(16)) > 40) is pays


def test_drafts_that_pay_survive_an_accident() -> None:
    chosen, rows = AdaptiveWidth(DraftShape(4, 4), FLAT), [sequence(25, 4)]
    for step in range(100):
        (width,) = widths(chosen, rows)
        chosen.observe([1 + width], 500.0 if step == 60 else 1.0, drawn([1 + width]))
    assert sum(widths(chosen, rows) == [4] for _ in range(16)) >= 15


def test_now_and_then_a_step_has_no_drafts() -> None:
    """Ever more seldom; of drafts that take more than they did is known then that they do not pay,
    though all steps had some."""
    chosen, rows = AdaptiveWidth(DraftShape(4, 4), FLAT), [sequence(25, 4)]
    plain = [step for step in range(2000) if widths(chosen, rows) == [0]]
    assert plain[:3] == [3, 11, 27] and 8 < len(plain) < 20
    chosen = AdaptiveWidth(DraftShape(4, 4), FLAT)
    for _ in range(200):
        (width,) = widths(chosen, rows)
        chosen.observe([1 + width], 1.0 + width, drawn([1 + width]))
    assert sum(widths(chosen, rows)[0] for _ in range(50)) < 60


def test_steps_that_take_longer_than_they_did_count() -> None:
    chosen, rows = AdaptiveWidth(DraftShape(4, 4), FLAT), [sequence(20, 4)]
    assert widths(chosen, rows) == [4]
    for _ in range(200):
        chosen.observe([5], 9.0, drawn([5]))
    assert sum(widths(chosen, rows)[0] for _ in range(16)) < 64


def test_where_all_have_as_many_as_they_may_widths_stay_for_some_steps() -> None:
    chosen, rows = AdaptiveWidth(DraftShape(4, 4), FLAT, told=False), [sequence(20, 4)]
    first = chosen.choose(rows)
    assert chosen.choose(rows) is first
    assert chosen.choose([sequence(20, 4)] * 2) == [5, 5]


def test_who_was_spoiled_stays_so() -> None:
    assert level_table(4)[SPOILED][4] == [SPOILED] * 5


@pytest.mark.parametrize("drafts", [1, 3, 7])
def test_levels_follow_what_is_accepted(drafts: int) -> None:
    table = level_table(drafts)
    for level in range(LEVELS):
        after = [next_level(level, drafts, accepted) for accepted in range(drafts + 1)]
        assert after == sorted(after) == table[level][drafts]
        assert after[0] <= level <= after[-1]
        assert after[0] < level or level == 0
        assert after[-1] > level or level == LEVELS - 1


def test_a_level_settles_at_the_share_that_is_accepted() -> None:
    level = 0
    for step in range(400):
        level = next_level(level, 1, int(step % 5 < 4))
    assert abs(level / (LEVELS - 1) - 0.8) < 0.2


def test_new_rows_start_at_the_level_that_others_reached() -> None:
    stats = DraftStats()
    assert stats.first_level == FIRST_LEVEL
    for _ in range(40):
        stats.end(ended(2))
    low = stats.first_level
    assert 2 <= low < 5
    stats.end(ended(SPOILED))
    assert low <= stats.first_level < FIRST_LEVEL, "bad numbers say nothing of drafts"
    for _ in range(40):
        stats.end(ended(low, drafts=0))
    assert stats.first_level >= FIRST_LEVEL - 1, "where nobody drafts somebody tries"
    for _ in range(40):
        stats.end(ended(LEVELS - 1))
    assert FIRST_LEVEL < stats.first_level < LEVELS


class Ended:
    """What statistics look at; each is one of its own."""

    def __init__(self, level: int, drafts: int) -> None:
        self.draft_level = level
        self.num_drafts = drafts
        self.num_draws, self.num_output_tokens, self.num_resumed, self.num_forced = 1, 1, 0, 0


def ended(level: int, drafts: int = 1) -> Any:
    return Ended(level, drafts)


@given(st.data())
def test_each_row_has_its_own_drafts_and_steps(data: st.DataObject) -> None:
    rows, stats = [ended(20, 0) for _ in range(4)], DraftStats()
    drafts, draws, drawn = [0] * 4, [1] * 4, [1] * 4
    spans = st.integers(1, 4).flatmap(lambda plan: st.tuples(st.just(plan), st.integers(0, plan)))
    for _ in range(data.draw(st.integers(0, 6))):
        same = data.draw(st.booleans())
        who = [0, 1, 2] if same else data.draw(st.lists(st.integers(0, 3), unique=True))
        step = [(4, 4) if same else data.draw(spans) for _ in who]
        planned, advanced = [plan for plan, _ in step], [came for _, came in step]
        stats.record([rows[index] for index in who], planned, advanced, tally(advanced))
        for index, (plan, came) in zip(who, step, strict=True):
            drafts[index] += (plan - 1) * (came > 0)
            draws[index] += came > 0
            drawn[index] += came
    for row, output in zip(rows, drawn, strict=True):
        row.num_output_tokens = output
    for row, *counts in zip(rows, drafts, drawn, draws, strict=True):
        told, output, steps = counts
        assert stats.end(row) == ((told, output - steps, steps - 1) if told else None)


@given(st.lists(st.integers(0, 6)) | st.lists(st.integers(0, 300)))
def test_numbers_are_tallied(numbers):
    assert tally(numbers) == Counter(numbers)


def record(stats: DraftStats, planned: list[int], advanced: list[int]) -> None:
    stats.record([ended(20) for _ in planned], planned, advanced, tally(advanced))


def test_stats_tell_lengths_and_rates() -> None:
    stats = DraftStats()
    assert stats.accept_length is None and stats.accept_rate is None and stats.log_part() == ""
    record(stats, [1, 1, 4, 4], [1, 1, 3, 2])
    assert stats.accept_length == 1.75 and stats.accept_rate == 0.5
    assert stats.widths == {0: 2, 3: 2}
    stats.restart()
    assert stats.accept_length is None and stats.accept_rate is None
    record(stats, [3], [3])
    assert stats.accept_length == 3 and stats.accept_rate == 1
    assert stats.widths == {0: 2, 2: 1, 3: 2}, "counts go on"
