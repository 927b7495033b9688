"""Drafts in the worker: verified by drawing, so the tokens are those of a worker without."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from drafted_rows import KINDS, PROMPT, run_beside, run_row
from toy_model import CONTEXT, VOCABULARY, Driver, toy_worker

from vivace.errors import CannotStart
from vivace.layers.layout import SINGLE, share_all_layers
from vivace.platforms.groups import AbsentRank
from vivace.protocol.messages import LogprobOptions
from vivace.worker.drafters.build import load_divided
from vivace.worker.drafters.scripted import RememberedAnswers, ScriptedDrafter


def run(kind, width, script=None, *, operations=None, logprobs=None, poison=None):
    """(tokens, StepResults) of one row whose decode spans have `width` drafts."""
    drafter = None if script is None else ScriptedDrafter(width, script)
    tokens, results, _ = run_row(
        kind,
        width,
        drafter,
        operations=operations,
        wanted={"logprobs": logprobs},
        poison=poison,
    )
    return tokens, results


@cache
def plain_run(kind, operations):
    return run(kind, 0, operations=operations)


def knows(tokens, *, wrong=0):
    """A script that proposes what comes, but every `wrong`-th token is another one."""

    def script(known, count):
        ahead = [*tokens, *[0] * count][len(known) : len(known) + count]
        return [
            (token + 1) % VOCABULARY if wrong and (len(known) + i) % wrong == 0 else token
            for i, token in enumerate(ahead)
        ]

    return script


@pytest.mark.parametrize("operations", ["torch", "eager", "captured"])
@pytest.mark.parametrize("width", [1, 3, 7])
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_tokens_whatever_is_proposed(kind, width, operations):
    plain, steps = plain_run(kind, operations)
    for wrong in (0, 1, 3):
        script = knows(plain, wrong=wrong)
        tokens, results = run(kind, width, script, operations=operations)
        assert tokens[: len(plain)] == plain
        assert all(sum(r.advanced) >= 1 for r in results)
        if wrong == 0:
            assert len(results) <= -(-len(steps) // (1 + width)) + 1
        if wrong == 1:
            assert len(results) == len(steps)


@pytest.mark.parametrize("width", [2, 5])
def test_log_probabilities_are_those_of_single_tokens(width):
    wanted = LogprobOptions(start=-1, top=3, token_ids=(4, 5))
    plain, steps = run("penalties", 0, logprobs=wanted, operations="eager")
    script = knows(plain, wrong=4)
    tokens, results = run("penalties", width, script, logprobs=wanted, operations="eager")
    expected = [one for step in steps for one in step.logprobs[0]]
    found = [one for result in results for one in result.logprobs[0]]
    assert tokens[: len(plain)] == plain
    assert found[: len(expected)] == expected


def test_rows_with_and_without_drafts_share_a_step():
    alone = [run(kind, 0)[0] for kind in KINDS]
    random = np.random.default_rng(0)
    right = {tuple(tokens[: len(PROMPT) + 1]): tokens for tokens in alone}

    def script(known, count):
        """What comes for some row, which may be another one."""
        found = right.get(tuple(known[: len(PROMPT) + 1]), [])[len(known) : len(known) + count]
        return [*found, *random.integers(0, VOCABULARY, count)][:count]

    drafter = ScriptedDrafter(5, script)
    found = run_beside(drafter, tuple(KINDS), lambda: 1 + int(random.integers(0, 6)), (5,))
    for tokens, wanted in zip(found, alone, strict=True):
        assert tokens[: len(wanted)] == wanted


@pytest.mark.parametrize("operations", ["eager", "captured"])
def test_a_draft_whose_numbers_are_none_is_refused_and_harms_nobody(operations):
    """With the kernels, whose attention looks at nothing behind a token."""
    plain, _ = run("sampled", 0, poison=96, operations=operations)
    assert 96 not in plain
    script = knows(plain)

    def poisoned(known, count):
        return [*script(known, count - 1), 96]

    tokens, results = run("sampled", 3, poisoned, poison=96, operations=operations)
    assert tokens[: len(plain)] == plain and not any(result.bad for result in results)
    assert all(len(result.tokens[0]) == 3 for result in results[1:-1])


def test_no_more_drafts_than_the_drafter_has_nor_beyond_what_a_row_holds():
    worker, _ = toy_worker(drafter=ScriptedDrafter(2, lambda known, count: [0] * count))
    driver = Driver(worker)
    driver.join(0, PROMPT)
    driver.step({0: len(PROMPT)})
    with pytest.raises(ValueError, match="known"):
        driver.step({0: 4})
    driver.step({0: 3})
    worker, _ = toy_worker(drafter=ScriptedDrafter(64, lambda known, count: [0] * count))
    driver = Driver(worker)
    driver.join(0, [1] * (CONTEXT - 64))
    driver.step({0: CONTEXT - 64})
    with pytest.raises(ValueError, match="positions"):
        driver.step({0: 65})
    driver.step({0: 64})


@pytest.mark.parametrize("acceptance", [0.0, 0.6, 1.0])
def test_remembered_answers_are_right_as_often_as_asked(acceptance):
    texts = [[text, *range(2, 4000)] for text in range(2)]
    script, right, said = RememberedAnswers(acceptance), 0, 0
    for known in range(1, 3999):
        assert not known % 50 or len(script(texts[known % 2][:known], 3)) == 3
    for text in texts:
        script(text, 3)
        for known in range(1, 3000, 3):
            drafts = script(text[:known], 3)
            right += sum(map(int.__eq__, drafts, text[known : known + 3]))
            said += 3
    assert right / said == pytest.approx(acceptance, abs=0.03)


def test_drafts_are_remembered_across_answers():
    script = RememberedAnswers(1.0)
    tokens, _ = run("greedy", 3, script)
    again, results = run("greedy", 3, script)
    assert (again, plain_run("greedy", None)[0]) == (tokens, tokens)
    assert [len(result.tokens[0]) for result in results[1:9]] == [4] * 8


def test_no_rank_has_a_part_where_another_has_all():
    class Together(AbsentRank):
        """The other one could not divide it."""

        def minimum(self, numbers):
            return [0 for _ in numbers]

    layouts = []
    layout = share_all_layers(Together(0, 2))
    found = load_divided(layout, lambda own: layouts.append(own) or own)
    assert found.layers is SINGLE and len(layouts) == 2 and "another rank" in found.undivided


def test_a_draft_that_ranks_cannot_divide_says_why():
    def load(own):
        if own.attention.size > 1:
            raise CannotStart("3 heads")
        return own

    found = load_divided(share_all_layers(AbsentRank(0, 2)), load)
    assert (found.layers, found.undivided) == (SINGLE, "3 heads")
    assert not load_divided(SINGLE, load).undivided
