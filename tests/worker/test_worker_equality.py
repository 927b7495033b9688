"""The same tokens however a request is batched, chunked, paged, retracted."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from prompt_parts import collect_rows
from toy_model import VOCABULARY, Driver, toy_worker

from vivace.protocol.messages import LogprobOptions
from vivace.protocol.step import Copy

pytestmark = pytest.mark.usefixtures("operations")
NEW = 24


def prompts():
    random = np.random.default_rng(5)
    return [random.integers(0, VOCABULARY, length).tolist() for length in (1, 7, 40, 33, 16, 90)]


KINDS = {
    "greedy": {},
    "seeded": {"temperature": 0.9, "seed": 11},
    "filtered": {"temperature": 1.2, "top_p": 0.8, "top_k": 12, "min_p": 0.02, "seed": 3},
    "penalized": {
        "temperature": 0.7,
        "seed": 4,
        "frequency_penalty": 0.5,
        "presence_penalty": 0.3,
        "repetition_penalty": 1.2,
    },
}


def alone(tokens, kind, **worker):
    driver = Driver(toy_worker(**worker)[0])
    driver.join(0, tokens, **KINDS[kind])
    return driver.generate(0, NEW)


@pytest.fixture(scope="module")
def expected(operations):
    return {kind: [alone(tokens, kind) for tokens in prompts()] for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk", [1, 5, 17])
def test_chunked_equals_whole(expected, kind, chunk):
    driver = Driver(toy_worker()[0])
    driver.join(3, prompts()[2], **KINDS[kind])
    assert driver.generate(3, NEW, chunk=chunk) == expected[kind][2]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("page_size", [1, 7, 64])
def test_any_page_size(expected, kind, page_size):
    assert alone(prompts()[3], kind, page_size=page_size) == expected[kind][3]


@pytest.mark.parametrize("deterministic", [False, True])
def test_batched_equals_alone(expected, deterministic):
    """Rows of every kind, arriving one step apart, prefill and decode mixed in one step."""
    driver = Driver(toy_worker(rows=24, tokens=4000, deterministic=deterministic)[0])
    waiting = [(kind, index) for index in range(6) for kind in KINDS]
    live, answers = {}, {}
    while waiting or live:
        if waiting:
            kind, index = waiting.pop(0)
            row = next(row for row in range(24) if row not in live)
            driver.join(row, prompts()[index], **KINDS[kind])
            live[row] = (kind, index)
        driver.step({row: driver.advance(row, 9) for row in reversed(live)})
        for row in list(live):
            sequence = driver.sequences[row]
            if len(sequence["tokens"]) >= sequence["prompt"] + NEW:
                answers[live.pop(row)] = driver.leave(row)["tokens"][sequence["prompt"] :]
    for kind in KINDS:
        for index in range(6):
            assert answers[kind, index] == expected[kind][index]


@pytest.mark.parametrize("chunk", [1, 6, 17])
def test_keys_in_half_precision_do_not_depend_on_chunks(chunk):
    whole = Driver(toy_worker(kv_dtype=torch.bfloat16)[0])
    whole.join(0, prompts()[2])
    cut = Driver(toy_worker(kv_dtype=torch.bfloat16)[0])
    cut.join(0, prompts()[2])
    assert cut.generate(0, NEW, chunk=chunk) == whole.generate(0, NEW)


@pytest.mark.parametrize("kind", KINDS)
def test_retraction_changes_nothing(expected, kind):
    """Leave in the middle, join another row later with everything known so far."""
    driver = Driver(toy_worker()[0])
    driver.join(0, prompts()[2], **KINDS[kind])
    driver.generate(0, 9)
    known = driver.leave(0)["tokens"]
    driver.join(0, prompts()[5], temperature=1.0, seed=9, frequency_penalty=1.0)
    driver.generate(0, 3)
    driver.join(5, known, prompt=len(prompts()[2]), **KINDS[kind])
    assert driver.generate(5, NEW, chunk=13) == expected[kind][2]


def test_prefix_hit_equals_cold(expected):
    """A second request joins on the pages a first one filled."""
    tokens = prompts()[2]
    driver = Driver(toy_worker()[0])
    driver.join(0, tokens)
    driver.generate(0, 2)
    shared = driver.sequences[0]["pages"][:2]
    driver.join(1, tokens, cached=32, pages=shared)
    assert driver.generate(1, NEW) == expected["greedy"][2]


def test_copied_page_equals_cold(expected):
    tokens = prompts()[2]
    driver = Driver(toy_worker()[0])
    driver.join(0, tokens)
    driver.generate(0, 1)
    source = driver.sequences[0]["pages"][0]
    target = driver.free.pop()
    driver.join(1, tokens, cached=16, pages=[target])
    driver.step({1: len(tokens) - 16}, copies=[Copy(source, target)])
    assert driver.generate(1, NEW) == expected["greedy"][2]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_bitwise_equal(dtype, operations):
    """Tokens and log-probabilities, float for float: alone, chunked, batched.

    Torch's operations need deterministic inference for it, the kernels never do less.
    """
    deterministic = operations == "torch"

    def run(chunk, companions, page_size):
        driver = Driver(
            toy_worker(deterministic=deterministic, page_size=page_size, tokens=1600, dtype=dtype)[
                0
            ]
        )
        options = LogprobOptions(start=0, top=3)
        driver.join(2, prompts()[2], temperature=0.8, seed=7, logprobs=options)
        for row in companions:
            driver.join(row, prompts()[row % 6], temperature=1.0, seed=row)
        logprobs, prompt_logprobs = [], []
        while len(logprobs) < NEW:
            spans = {row: driver.advance(row, chunk) for row in [*companions, 2]}
            result = driver.step(spans)
            logprobs += result.logprobs.get(len(companions), [])
            prompt_logprobs += result.prompt_logprobs.get(len(companions), [])
        tokens = driver.sequences[2]["tokens"]
        return tokens, logprobs, collect_rows(prompts()[2], options, prompt_logprobs)

    first = run(10_000, [], 16)
    assert run(11, [], 16) == first
    assert run(1, [], 7) == first
    assert run(19, [0, 1, 3, 4, 5], 16) == first
    assert run(10_000, [5, 6], 32) == first
