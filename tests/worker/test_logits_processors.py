"""Processors behind the protocol: what grammars will need, proved with small ones."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import torch
from delayed_platform import DelayedPlatform
from test_delayed_steps import DelayedDriver
from toy_model import CONTEXT, VOCABULARY, Driver, toy_worker

from vivace.worker.drafters.scripted import ScriptedDrafter

PROMPT = [5, 9, 1, 40, 7]
FORCED, PLAIN, SAMPLED = 0, 1, 2
"""rows"""
NEW = 20


class ForcedTokens:
    """A row may draw only what a script says: a column on the device, read by position."""

    host_state = None

    def __init__(self, scripts):
        """`scripts`: key of a request -> its output"""
        self.scripts = scripts
        self._column = torch.zeros((8, CONTEXT + 1), dtype=torch.int64)

    def joined(self, row, join):
        script = self.scripts.get(join.key)
        if script is None:
            return False
        self._column[row, join.prompt : join.prompt + len(script)] = torch.tensor(script)
        return True

    def apply(self, logits, entries, places):
        index = torch.from_numpy(places)
        picked = entries.select(places, index)
        forced = self._column[picked.rows, picked.positions]
        kept = logits[index, forced]
        logits[index] = -torch.inf
        logits[index, forced] = kept


class Successors:
    """A row may draw only the token behind its last one: a state of the host, as a grammar's is.
    It notices whether every token has come before the next one is drawn."""

    def __init__(self, keys):
        self.host_state = self
        self._keys = keys
        self.state = {}

    def joined(self, row, join):
        self.state[row] = [join.tokens[-1], len(join.tokens)]
        return join.key in self._keys

    def apply(self, logits, entries, places):
        for place in places.tolist():
            last, known = self.state[int(entries.host_rows[place])]
            assert int(entries.positions[place]) == known, "a token is missing on the host"
            following = (last + 1) % VOCABULARY
            kept = logits[place, following].clone()
            logits[place] = -torch.inf
            logits[place, following] = kept

    def landed(self, drawn, *, at_once):
        for row, tokens in drawn.items():
            self.state[row] = [tokens[-1], self.state[row][1] + len(tokens)]
        return {}

    def why_stuck(self, row):
        return None

    def left(self, row):
        del self.state[row]


SCRIPT = np.random.default_rng(3).integers(0, VOCABULARY, NEW).tolist()
KINDS = {
    FORCED: {},
    PLAIN: {},
    SAMPLED: {"temperature": 0.9, "seed": 4, "frequency_penalty": 0.6, "logit_bias": {3: 2.0}},
}


def answers(driver, rows, width=0, chunk=3):
    for row in rows:
        driver.join(row, PROMPT, **KINDS[row])
    while True:
        lengths = {row: len(driver.sequences[row]["tokens"]) for row in rows}
        left = [row for row in rows if lengths[row] < len(PROMPT) + NEW]
        if not left:
            break
        prompts = [row for row in left if driver.sequences[row]["done"] < len(PROMPT)]
        chunks = {row: driver.advance(row, chunk) for row in prompts}
        driver.step({row: chunks.get(row, 1 + width) for row in left})
    return {row: driver.sequences[row]["tokens"][len(PROMPT) :][:NEW] for row in rows}


@pytest.mark.parametrize("operations", ["torch", "eager", "captured"])
@pytest.mark.parametrize("width", [0, 1, 4])
def test_tokens_are_forced_in_one_row_and_the_same_in_others(operations, width):
    """Whatever is proposed: drafts of the script, and others."""
    alone = {}
    for row in (PLAIN, SAMPLED):
        plain = Driver(toy_worker(operations=operations)[0])
        alone |= answers(plain, [row])

    def script(known, count):
        ahead = SCRIPT[len(known) - len(PROMPT) :][:count]
        return [*ahead, *[0] * (count - len(ahead))]

    drafter = {"drafter": ScriptedDrafter(width, script)} if width else {}
    forced = ForcedTokens({FORCED: SCRIPT + [0] * 8})
    worker, _ = toy_worker(operations=operations, processors=[forced], **drafter)
    found = answers(Driver(worker), list(KINDS), width)
    assert found == {FORCED: SCRIPT, **alone}


def test_nobody_pays_for_rows_that_are_gone():
    forced = ForcedTokens({FORCED: SCRIPT})
    driver = Driver(toy_worker(processors=[forced])[0])
    assert answers(driver, [FORCED]) == {FORCED: SCRIPT}
    driver.leave(FORCED)
    forced.scripts.clear()
    forced.apply = None  # nobody calls it
    alone = answers(Driver(toy_worker()[0]), [SAMPLED])
    driver.join(FORCED, PROMPT, **KINDS[SAMPLED])
    assert driver.generate(FORCED, NEW) == alone[SAMPLED]


class WaitingPlatform(DelayedPlatform):
    """Here the host may wait while it launches a step."""

    def refuse_reading(self):
        return contextlib.nullcontext()


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_tokens_are_on_the_host_before_the_next_mask(depth):
    """With steps in flight: the next one is launched before anybody asked for the last result."""
    platform = WaitingPlatform()
    successors = Successors({FORCED})
    worker, _ = toy_worker(platform=platform, processors=[successors])
    driver = DelayedDriver(worker, platform, depth)
    for row in KINDS:
        driver.join(row, PROMPT, **KINDS[row])
    driver.step(dict.fromkeys(KINDS, len(PROMPT)))
    for turn in range(NEW + depth):
        rows = KINDS if turn % 3 else (PLAIN, SAMPLED)  # a step without it, now and then
        driver.step(dict.fromkeys(rows, 1))
    driver.settle(depth)
    found = {row: one["tokens"][len(PROMPT) :] for row, one in driver.sequences.items()}
    count = len(found[FORCED])
    assert found[FORCED] == [(PROMPT[-1] + 1 + at) % VOCABULARY for at in range(count)]
    assert count > NEW // 2
    for row in (PLAIN, SAMPLED):
        plain = Driver(toy_worker(platform=DelayedPlatform())[0])
        assert answers(plain, [row])[row] == found[row][:NEW]


def test_a_row_that_joins_again_goes_on_with_its_state():
    """As after a retraction: what is known by then comes with the join."""
    successors = Successors({FORCED})
    worker, _ = toy_worker(processors=[successors])
    driver = Driver(worker)
    driver.join(FORCED, PROMPT)
    first = driver.generate(FORCED, 6)
    tokens = driver.leave(FORCED)["tokens"]
    driver.join(FORCED, tokens, prompt=len(PROMPT))
    assert driver.generate(FORCED, 12) == [(PROMPT[-1] + 1 + at) % VOCABULARY for at in range(12)]
    assert driver.sequences[FORCED]["tokens"][len(PROMPT) :][:6] == first
