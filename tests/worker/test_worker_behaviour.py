"""What a worker answers, refuses and survives."""

from __future__ import annotations

import math

import pytest
import torch
from prompt_parts import collect_rows
from toy_model import CONTEXT, VOCABULARY, Driver, toy_worker

from vivace.protocol.messages import LogprobOptions
from vivace.protocol.step import Copy, EngineShare, Grant, Join, Save, StepPlan
from vivace.sampling.sampler import BAD_NUMBERS
from vivace.worker.rows import PlanError

pytestmark = pytest.mark.usefixtures("operations")
PROMPT = [5, 9, 2, 44, 60, 3, 17, 80, 1, 33, 21]


@pytest.fixture
def driver():
    return Driver(toy_worker()[0])


def test_a_chunk_in_the_middle_draws_nothing(driver):
    driver.join(0, PROMPT)
    result = driver.step({0: 4})
    assert (result.advanced, result.tokens) == ([4], [[]])
    result = driver.step({0: 7})
    assert result.advanced == [7] and len(result.tokens[0]) == 1


def test_a_step_that_raises_changes_no_position():
    worker, model = toy_worker()
    driver, other = Driver(worker), Driver(toy_worker()[0])
    for one in (driver, other):
        one.join(0, PROMPT, temperature=1.0, seed=3)
        one.generate(0, 4)
    forward, model.forward = model.forward, lambda step: 1 / 0
    driver.join(1, [7] * 13)  # too long for a replay
    with pytest.raises(ZeroDivisionError):
        driver.step({0: 1, 1: 13})
    model.forward = forward
    assert driver.step({0: 1, 1: 13}).advanced == [1, 13]
    assert driver.generate(0, 12) == other.generate(0, 12)


def test_numbers_that_go_wrong_end_only_their_own_request():
    worker, _ = toy_worker(poison=77)
    driver, clean = Driver(worker), Driver(toy_worker()[0])
    for one in (driver, clean):
        one.join(0, PROMPT)
        one.generate(0, 2)
        one.join(1, [50, 51, 52])
        one.join(2, [40, 77, 41, 42])
    result = driver.step({0: 1, 2: 4, 1: 3})
    expected = clean.step({0: 1, 2: 4, 1: 3})
    assert result.bad == {1: BAD_NUMBERS}
    assert result.advanced == [1, 0, 3]
    assert result.tokens == [expected.tokens[0], [], expected.tokens[2]]
    poisoned = driver.leave(2)["pages"]
    for kv in worker._kv.layers.values():
        assert torch.isfinite(kv[poisoned]).all()


def test_bad_numbers_are_found_before_a_token_is_due():
    driver = Driver(toy_worker(poison=77)[0])
    driver.join(0, [1, 77, 2, 3, 4, 5])
    assert driver.step({0: 3}).bad == {0: BAD_NUMBERS}


def test_bad_numbers_while_decoding():
    """The second token of a prompt fed one by one: a captured step finds it like any other."""
    driver, clean = Driver(toy_worker(poison=77)[0]), Driver(toy_worker()[0])
    for one in (driver, clean):
        one.join(0, [1, 77, 2])
        one.join(1, PROMPT)
        one.step({0: 1, 1: 11})
    result, expected = driver.step({0: 1, 1: 1}), clean.step({0: 1, 1: 1})
    assert result.bad == {0: BAD_NUMBERS}
    assert result.advanced == [0, 1] and result.tokens[1] == expected.tokens[1]
    driver.leave(0)
    assert driver.generate(1, 8) == clean.generate(1, 8)


def test_bad_logits_without_bad_hidden_states():
    worker, model = toy_worker()
    driver = Driver(worker)
    driver.join(0, PROMPT)
    driver.join(1, PROMPT[:3], logprobs=LogprobOptions())
    head = model.lm_head
    model.lm_head = lambda hidden: head(hidden).index_fill_(0, torch.tensor([1]), torch.nan)
    result = driver.step({0: 11, 1: 3})
    assert result.bad == {1: BAD_NUMBERS}
    assert result.advanced == [11, 0] and len(result.tokens[0]) == 1 and result.tokens[1] == []
    assert result.logprobs == {}


def naive_logprobs(model, worker_tokens):
    """Log-softmax at every position, from a fresh worker that computes the tokens at once."""
    worker, model = toy_worker()
    seen = []
    forward = model.forward
    model.forward = lambda step: seen.append(forward(step)) or seen[-1]
    driver = Driver(worker)
    driver.join(0, worker_tokens)
    driver.step({0: len(worker_tokens)})
    return model.lm_head(seen[0]).log_softmax(-1)


@pytest.mark.parametrize("start", [0, 1, 6, 10])
@pytest.mark.parametrize("chunk", [1, 4, 50])
def test_prompt_logprobs(monkeypatch, start, chunk):
    monkeypatch.setattr("vivace.worker.heads.SCORE_ELEMENTS", 3 * VOCABULARY)
    worker, model = toy_worker()
    driver = Driver(worker)
    options = LogprobOptions(start=start, top=2, token_ids=(8,))
    driver.join(4, PROMPT, logprobs=options)
    results = []
    while driver.sequences[4]["done"] < len(PROMPT):
        results.append(driver.step({4: driver.advance(4, chunk)}))
    parts = [part for result in results for part in result.prompt_logprobs.get(0, [])]
    found = collect_rows(PROMPT, options, parts)
    assert [one.token for one in found] == PROMPT[start:]
    table = naive_logprobs(model, PROMPT)
    for position, one in enumerate(found, start):
        if position == 0:
            assert one.logprob is None
            continue
        row = table[position - 1]
        assert one.logprob is not None and one.top is not None and one.chosen is not None
        assert math.isclose(one.logprob, row[one.token].item(), abs_tol=1e-4)
        assert [token for _, token in one.top] == row.topk(2).indices.tolist()
        assert math.isclose(one.chosen[0][0], row[8].item(), abs_tol=1e-4)
    assert len(results[-1].logprobs[0]) == 1
    assert driver.step({4: 1}).prompt_logprobs == {}


def test_output_logprobs_have_one_entry_per_token(driver):
    driver.join(0, PROMPT, logprobs=LogprobOptions(top=3))
    driver.join(1, PROMPT)
    result = driver.step({0: 11, 1: 11})
    assert list(result.logprobs) == [0]
    (one,) = result.logprobs[0]
    assert one.token == result.tokens[0][0] == one.top[0][1]
    assert one.logprob == pytest.approx(one.top[0][0])


def test_a_row_can_be_reused_in_the_same_plan(driver):
    driver.join(0, PROMPT, temperature=1.0, seed=1, logit_bias={4: 100.0})
    assert driver.generate(0, 3) == [4, 4, 4]
    driver.leave(0)
    driver.join(0, PROMPT)
    reused = driver.generate(0, 5)
    fresh = Driver(toy_worker()[0])
    fresh.join(3, PROMPT)
    assert reused == fresh.generate(3, 5)


def test_leaving_an_empty_row_is_harmless(driver):
    """An executor that recovers empties every row it knows of."""
    result = driver.worker.run(StepPlan(number=-1, leaves=list(range(8)))).result()
    assert result.advanced == []


def test_a_step_of_others_computes_a_token_of_nobody(driver):
    """Layers that engines share wait for all of them; what a row knows and stores stays."""
    driver.join(0, PROMPT)
    driver.generate(0, 3)
    worker, computed = driver.worker, []
    forward = worker._runner.forward
    worker._runner.forward = lambda step: computed.append(len(step.input_ids)) or forward(step)
    result = worker.run(
        StepPlan(number=77, shares=[EngineShare(), EngineShare(5, single=False)])
    ).result()
    assert (result.advanced, result.tokens) == ([], [])
    assert (
        worker.run(StepPlan(number=78, shares=[EngineShare(), EngineShare()])).result().number == 78
    )
    assert computed == [1]
    fresh = Driver(toy_worker()[0])
    fresh.join(3, PROMPT)
    assert driver.generate(0, 7) == fresh.generate(3, 7)


def test_grants_extend_a_row(driver):
    driver.join(0, PROMPT)
    pages = driver.sequences[0]["pages"]
    driver.leave(0)
    driver.leaves = []
    driver.joins = [
        Join(row=0, key=1, tokens=PROMPT, prompt=11, cached=0, pages=[], sampling=params())
    ]
    driver.sequences[0] = {"tokens": list(PROMPT), "done": 0, "pages": pages, "prompt": 11}
    result = driver.step({0: 11}, grants=[Grant(0, pages[:1])])
    assert result.advanced == [11]


def params():
    from vivace.protocol.messages import SamplingParams

    return SamplingParams(temperature=0.0)


def join(**changes):
    values = {"row": 0, "key": 1, "tokens": [1, 2], "prompt": 2, "cached": 0, "pages": [0]}
    return Join(**{**values, **changes}, sampling=params())


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (StepPlan(number=0, rows=[3], counts=[1]), "nobody joined"),
        (StepPlan(number=0, joins=[join(row=99)]), "row 99 of 8"),
        (StepPlan(number=0, joins=[join(), join()]), "taken"),
        (StepPlan(number=0, joins=[join(cached=2)]), "cached"),
        (StepPlan(number=0, joins=[join(tokens=[1] * (CONTEXT + 1), prompt=1)]), "the row holds"),
        (StepPlan(number=0, joins=[join(pages=[50])]), "outside the pool"),
        (StepPlan(number=0, joins=[join()], rows=[0], counts=[3]), "span 0..3 of 2"),
        (StepPlan(number=0, joins=[join(pages=[])], rows=[0], counts=[2]), "pages for 0"),
        (StepPlan(number=0, joins=[join()], rows=[0, 0], counts=[1, 1]), "two spans"),
        (StepPlan(number=0, joins=[join(row=7)], rows=[7, -1], counts=[1, 1]), "there are 8 rows"),
        (StepPlan(number=0, joins=[join()], rows=[0, 8], counts=[1, 1]), "there are 8 rows"),
        (StepPlan(number=0, grants=[Grant(2, [1])]), "holds no request"),
        (StepPlan(number=0, joins=[join()], grants=[Grant(0, [1], 1)]), "of group 1"),
        (StepPlan(number=0, saves=[Save(0, 1, 1)]), "pages of states"),
        (StepPlan(number=0, leaves=[8]), "there are 8 rows"),
        (StepPlan(number=0, copies=[Copy(0, 50)]), "outside the pool"),
    ],
)
def test_a_plan_that_contradicts_the_rows_is_refused(plan, message):
    worker, model = toy_worker()
    before = model.forwards
    with pytest.raises(ValueError, match=message) as caught:
        worker.run(plan)
    assert model.forwards == before
    assert isinstance(caught.value, PlanError) or plan.copies


@pytest.mark.parametrize("page", [10**6, -1, 800 // 16 + 1])
def test_a_page_outside_of_the_memory_stops_the_step(page):
    """Whatever spoiled the rows' own table: with kernels nothing else stands before the address."""
    worker, _ = toy_worker()
    driver = Driver(worker)
    driver.join(0, PROMPT)
    driver.step({0: 11})
    kept = [kv.clone() for kv in worker._kv.layers.values()]
    worker._rows.columns.pages[0][0, 0] = page
    with pytest.raises((ValueError, IndexError)):
        driver.step({0: 1})
    if page > 0:  # torch's operations take -1 for the last page, which nobody reads
        assert all(
            torch.equal(*both) for both in zip(kept, worker._kv.layers.values(), strict=True)
        )


def test_step_buffers_grow():
    worker, _ = toy_worker(step_tokens=4)
    driver = Driver(worker)
    driver.join(0, PROMPT * 3)
    small = Driver(toy_worker()[0])
    small.join(0, PROMPT * 3)
    assert driver.generate(0, 4) == small.generate(0, 4)
