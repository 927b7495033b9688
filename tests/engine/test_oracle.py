"""The oracle notices each way in which a scheduler could go wrong."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prompt_parts import collect_rows

from vivace.engine.oracle import (
    OracleMismatch,
    OracleWorker,
    oracle_answer,
    oracle_logprob,
    oracle_token,
)
from vivace.protocol.messages import Capacity, LogprobOptions, SamplingParams, TokenLogprob
from vivace.protocol.step import Copy, Grant, Join, StepPlan

CAPACITY = Capacity(pages=8, page_size=2, rows=3, context=16, vocabulary=50)


def join(row: int = 0, tokens: list[int] | None = None, **options: object) -> Join:
    tokens = tokens or [1, 2, 3]
    known = {"prompt": len(tokens), "cached": 0, "pages": [0, 1], "key": row, **options}
    return Join(row=row, tokens=tokens, sampling=SamplingParams(seed=7), **known)  # type: ignore[arg-type]


def worker(*plans: StepPlan) -> OracleWorker:
    oracle = OracleWorker(CAPACITY, 50)
    for plan in plans:
        oracle.compute(plan)
    return oracle


FIRST = StepPlan(number=0, rows=[0], counts=[3], joins=[join()])


def test_chunks_and_decoding_draw_the_expected_tokens() -> None:
    oracle = worker()
    plan = StepPlan(number=0, rows=[0], counts=[2], joins=[join()])
    assert oracle.compute(plan).tokens == [[]]
    drawn = [oracle.compute(StepPlan(number=n, rows=[0], counts=[1])).tokens[0][0] for n in (1, 2)]
    assert drawn == oracle_answer(7, 3, 2, 50)


@pytest.mark.parametrize(
    ("plan", "complaint"),
    [
        (StepPlan(number=1, leaves=[2]), "is empty"),
        (StepPlan(number=1, rows=[2], counts=[1]), "nobody joined"),
        (StepPlan(number=1, rows=[0], counts=[2]), "known tokens"),
        (StepPlan(number=1, rows=[0, 0], counts=[1, 1]), "two spans"),
        (StepPlan(number=1, joins=[join()]), "taken"),
        (StepPlan(number=1, joins=[join(9)]), "row 9 of 3"),
        (StepPlan(number=1, grants=[Grant(0, [8])]), "outside the pool"),
        (StepPlan(number=1, joins=[join(1, cached=3)]), "cached of"),
        (StepPlan(number=1, rows=[1], counts=[1], joins=[join(1, cached=2, pages=[5])]), "nothing"),
        (
            StepPlan(number=1, rows=[1], counts=[1], joins=[join(1, [9, 9, 3], cached=2)]),
            "prefix",
        ),
        (StepPlan(number=1, rows=[1], counts=[3], joins=[join(1, pages=[5])]), "no slot"),
    ],
)
def test_mistakes_are_noticed(plan: StepPlan, complaint: str) -> None:
    oracle = worker(FIRST)
    with pytest.raises(OracleMismatch, match=complaint):
        oracle.compute(plan)


def test_a_page_that_was_overwritten_is_noticed() -> None:
    thief = StepPlan(number=1, rows=[1], counts=[2], joins=[join(1, [8, 8], pages=[0])])
    oracle = worker(FIRST, thief)
    with pytest.raises(OracleMismatch, match="prefix"):
        oracle.compute(StepPlan(number=2, rows=[0], counts=[1]))


def test_a_copied_page_is_as_good_as_the_original() -> None:
    sharer = join(1, cached=2, pages=[6, 7])
    plan = StepPlan(number=1, rows=[1], counts=[1], joins=[sharer], copies=[Copy(0, 6)])
    assert len(worker(FIRST).compute(plan).tokens[0]) == 1


def test_prompt_logprobs_cover_each_asked_position_once() -> None:
    scored = []
    oracle = OracleWorker(CAPACITY, 50)
    options = LogprobOptions(start=0)
    plans = [StepPlan(number=0, rows=[0], counts=[1], joins=[join(logprobs=options)])]
    plans += [StepPlan(number=n, rows=[0], counts=[1]) for n in (1, 2)]
    for plan in plans:
        scored += oracle.compute(plan).prompt_logprobs.get(0, [])
    rows = collect_rows([1, 2, 3], options, scored)
    assert rows == [TokenLogprob(1, None), oracle_logprob(2, 1), oracle_logprob(3, 2)]


@given(st.integers(0, 2**63), st.integers(0, 5000), st.integers(1, 200000))
def test_tokens_are_in_the_vocabulary(seed: int, position: int, vocabulary: int) -> None:
    assert 0 <= oracle_token(seed, position, vocabulary) < vocabulary


def test_eos_comes_at_its_rate_and_never_while_masked() -> None:
    draws = [oracle_token(1, p, 50, eos_rate=0.25, stop_ids=(49,)) for p in range(4000)]
    assert 0.2 < draws.count(49) / 4000 < 0.32
    masked = [
        oracle_token(1, p, 50, eos_rate=0.25, stop_ids=(49, 0), masked=True) for p in range(500)
    ]
    assert not set(masked) & {49, 0}
