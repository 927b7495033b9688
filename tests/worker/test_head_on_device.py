"""The head on a device: everything is launched before anybody reads, whatever rows ask for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_delayed_steps import DeviceDrafter, WatchedPlatform
from toy_model import VOCABULARY, Driver, toy_worker

from vivace.platforms.ops.platform import ReferencePlatform
from vivace.platforms.platform import detect
from vivace.platforms.rows import Spans
from vivace.platforms.trees import accept_drafts
from vivace.protocol.messages import LogprobOptions
from vivace.sampling.sampler import BAD_NUMBERS
from vivace.worker.drafter import NO_DRAFTS
from vivace.worker.heads import find_bad_spans

POISON = 96
PROMPT = [5, 9, 1, 40, 7, 3, 3, 60]
EVERYTHING = LogprobOptions(start=1, top=3, token_ids=(4, 5))
KINDS = (
    {},
    {"temperature": 1.1, "seed": 11, "logprobs": LogprobOptions(token_ids=(8,))},
    {"temperature": 0.9, "seed": 3, "top_p": 0.8, "top_k": 20, "min_p": 0.01},
    {
        "temperature": 0.8,
        "seed": 2**64 - 1,
        "frequency_penalty": 0.9,
        "presence_penalty": 0.4,
        "repetition_penalty": 1.3,
        "top_p": 0.95,
        "logprobs": EVERYTHING,
    },
    {"min_new_tokens": 12, "stop_ids": tuple(range(40)), "logit_bias": {3: 4.0, 8: -9.0}},
    {"logprobs": EVERYTHING},
)


class WatchedWorker:
    """A worker whose steps are launched while nobody may read a tensor."""

    def __init__(self, worker, platform):
        self._worker = worker
        self._platform = platform
        self.capacity = worker.capacity

    def run(self, plan):
        with self._platform.refuse_reading():
            return self._worker.run(plan)


def run_steps(watched, drafter, poisoned):
    platform = (
        WatchedPlatform() if watched else ReferencePlatform(detect("cpu"), torch.device("cpu"))
    )
    worker, _ = toy_worker(platform=platform, drafter=drafter, poison=POISON)
    driver = Driver(WatchedWorker(worker, platform) if watched else worker)
    for row, kind in enumerate(KINDS):
        driver.join(row, [row, *PROMPT], **kind)
    rows = dict.fromkeys(range(len(KINDS)), 1 + len(PROMPT))
    if poisoned:
        driver.join(6, [1, POISON, *PROMPT], logprobs=EVERYTHING, temperature=1.0, seed=5)
        driver.join(7, [*PROMPT, POISON], top_p=0.5, temperature=1.0, seed=5)
        rows |= {6: 5, 7: 9}
    results = [driver.step({row: min(4, count) for row, count in rows.items()})]
    results.append(driver.step({row: count - 4 for row, count in rows.items() if row != 6}))
    results += [driver.step(dict.fromkeys(range(6), 1 + drafter.width)) for _ in range(9)]
    results.append(driver.step({row: 1 + row % (1 + drafter.width) for row in range(6)}))
    return results


def comparable(result):
    return (
        result.advanced,
        result.tokens,
        result.bad,
        result.logprobs,
        result.prompt_logprobs,
    )


@pytest.mark.parametrize("poisoned", [False, True])
@pytest.mark.parametrize("drafter", [NO_DRAFTS, DeviceDrafter(3, 0), DeviceDrafter(2, 1)])
def test_nothing_is_read_before_the_result_is_wanted(drafter, poisoned):
    results = run_steps(True, drafter, poisoned)
    plain = run_steps(False, drafter, poisoned)
    assert list(map(comparable, results)) == list(map(comparable, plain))
    bad = [result.bad for result in results[:2]]
    assert bad == ([{6: BAD_NUMBERS}, {6: BAD_NUMBERS}] if poisoned else [{}, {}])
    assert results[0].prompt_logprobs.keys() == {3, 5}
    for result in results[1:]:
        for span in (1, 3, 5):
            found = [one.token for one in result.logprobs[span]]
            assert found == result.tokens[span]


@given(st.data())
def test_a_token_stays_while_all_drafts_before_it_were_drawn(data):
    lengths = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=6))
    few = st.integers(0, 2)  # so that drafts are often right
    total = sum(lengths)
    rows = np.repeat(np.arange(len(lengths)), lengths)
    positions = np.concatenate([3 + np.arange(length) for length in lengths])
    tokens = np.array(data.draw(st.lists(few, min_size=9 * 6, max_size=9 * 6))).reshape(6, 9)
    drawn = data.draw(st.lists(few, min_size=total, max_size=total))
    chance = st.sampled_from([False] * 4 + [True])
    wrong = data.draw(st.lists(chance, min_size=total, max_size=total))
    expected: list[bool] = []
    for at in range(total):
        follows = at > 0 and rows[at] == rows[at - 1]
        right = not follows or (
            expected[at - 1] and drawn[at - 1] == tokens[rows[at], positions[at] - 1]
        )
        expected.append(bool(right and not wrong[at]))
    spans: Any = SimpleNamespace(trees=None, ahead=positions - 3)
    drafts = torch.from_numpy(tokens[rows, positions - 1])
    found = accept_drafts(spans, drafts, torch.tensor(drawn), torch.tensor(wrong))
    assert found.tolist() == expected


@given(st.data())
def test_a_span_is_bad_with_any_known_token(data):
    counts = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=6))
    drafts = data.draw(st.none() | st.tuples(*(st.integers(0, one - 1) for one in counts)))
    total = sum(counts)
    bad = data.draw(st.lists(st.booleans(), min_size=total, max_size=total))
    starts = np.cumsum([0, *counts])
    known = np.array(counts) - np.array(drafts or [0] * len(counts))
    ids, nothing = np.arange(len(counts)), torch.zeros(0, dtype=torch.int64)
    spans = Spans(
        rows=ids,
        counts=np.array(counts),
        starts=starts,
        before=ids,
        final=ids,
        last=ids,
        ahead=None,
        entry_rows=nothing,
        positions=nothing,
        drafts=None if drafts is None else np.array(drafts),
    )
    found = find_bad_spans(spans, torch.tensor(bad)).tolist()
    ends = starts[:-1] + known
    assert found == [any(bad[start:end]) for start, end in zip(starts[:-1], ends, strict=True)]


def test_every_kind_draws_a_token_of_the_vocabulary_where_numbers_are_bad():
    """The tokens of bad spans are computed like all others, and ignored."""
    worker, model = toy_worker(platform=ReferencePlatform(detect("cpu"), torch.device("cpu")))
    driver, outputs = Driver(worker), []
    for row, kind in enumerate(KINDS):
        driver.join(row, PROMPT, **kind)
    head, sample = model.lm_head, worker._heads.read
    model.lm_head = lambda hidden: torch.full_like(head(hidden), torch.nan)
    worker._heads.read = lambda *step: outputs.append(sample(*step)) or outputs[-1]
    result = driver.step(dict.fromkeys(range(len(KINDS)), len(PROMPT)))
    assert result.bad == dict.fromkeys(range(len(KINDS)), BAD_NUMBERS)
    assert not any(result.advanced) and not any(result.tokens)
    assert result.logprobs == {} and result.prompt_logprobs == {}
    (output,) = outputs
    assert len(output.tokens) == len(KINDS) and not output.stays.any()
    assert ((output.tokens >= 0) & (output.tokens < VOCABULARY)).all()
