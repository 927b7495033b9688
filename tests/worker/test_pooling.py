"""Vectors of prompts and hidden states, beside rows that draw tokens."""

from __future__ import annotations

import numpy as np
import pytest
from test_delayed_steps import DelayedDriver, WatchedPlatform
from toy_model import HIDDEN, VOCABULARY, Driver, toy_worker

from vivace.protocol.tasks import EMBEDDING, HIDDEN_STATES, POOLINGS, Embed, Generate
from vivace.worker.drafters.scripted import ScriptedDrafter

RANDOM = np.random.default_rng(7)
PROMPTS = [RANDOM.integers(0, VOCABULARY, length).tolist() for length in (1, 5, 33, 70)]
STATES = Generate(hidden_state_start=0)


def array(payload):
    return np.frombuffer(payload.data, np.dtype(payload.dtype)).reshape(payload.shape)


def hidden_states(prompt):
    """[tokens, hidden] of a prompt that is computed whole and alone."""
    driver = Driver(toy_worker()[0])
    driver.join(0, prompt, task=STATES)
    payload = driver.step({0: len(prompt)}).payloads[0]
    assert payload.kind == HIDDEN_STATES
    return array(payload)


def reference_vector(states, task):
    """What `task` makes of states[tokens, hidden]: the definition, with numpy."""
    pooled = {"last": states[-1], "cls": states[0], "mean": states.astype(np.float64).mean(0)}
    vector = pooled[task.pooling].astype(np.float64)[: task.dimensions or None]
    return vector / np.linalg.norm(vector) if task.normalize else vector


def embed(driver, row, prompt, task, chunk=10_000):
    """The vector of a row that is computed in chunks, alone in its steps."""
    driver.join(row, prompt, task=task)
    while driver.sequences[row]["done"] < len(prompt):
        result = driver.step({row: driver.advance(row, chunk)})
        assert result.tokens == [[]]
    payload = result.payloads[0]
    assert payload.kind == EMBEDDING
    return array(payload)


@pytest.mark.usefixtures("operations")
@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("settings", [{}, {"normalize": False}, {"dimensions": 11}])
def test_vectors_are_those_of_the_definition(pooling, settings):
    task = Embed(pooling=pooling, **settings)
    driver = Driver(toy_worker()[0])
    for prompt in PROMPTS:
        found = embed(driver, 2, prompt, task)
        assert found.shape == (task.dimensions or HIDDEN,)
        expected = reference_vector(hidden_states(prompt), task)
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6)
        driver.leave(2)


@pytest.mark.parametrize("operations", ["eager", "captured"])
@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("chunk", [1, 3, 16])
def test_chunks_change_no_bit(operations, pooling, chunk):
    driver = Driver(toy_worker(operations=operations)[0])
    for prompt in PROMPTS:
        whole = embed(driver, 0, prompt, Embed(pooling=pooling))
        driver.leave(0)
        cut = embed(driver, 0, prompt, Embed(pooling=pooling), chunk)
        driver.leave(0)
        assert cut.tobytes() == whole.tobytes()


@pytest.mark.usefixtures("operations")
def test_rows_of_every_kind_share_a_step():
    """Tokens are the same whether vectors are made beside them or not, and vectors too."""
    alone, driver = {}, Driver(toy_worker()[0])
    for row, pooling in enumerate(POOLINGS):
        alone[row] = embed(driver, row, PROMPTS[3], Embed(pooling=pooling))
        driver.leave(row)
    driver.join(3, PROMPTS[2], temperature=0.9, seed=5)
    tokens = driver.generate(3, 30)

    mixed, found = Driver(toy_worker()[0]), {}
    mixed.join(3, PROMPTS[2], temperature=0.9, seed=5)
    for row, pooling in enumerate(POOLINGS):
        mixed.join(row, PROMPTS[3], task=Embed(pooling=pooling))
    while len(mixed.sequences[3]["tokens"]) < len(PROMPTS[2]) + 30:
        spans = {3: mixed.advance(3, 9)}
        for row in range(len(POOLINGS)):
            if row in mixed.sequences and (count := mixed.advance(row, 7 + row)):
                spans[row] = count
        result = mixed.step(spans)
        rows = list(spans)
        found |= {rows[span]: array(payload) for span, payload in result.payloads.items()}
    assert mixed.sequences[3]["tokens"][len(PROMPTS[2]) :] == tokens
    for row, vector in alone.items():
        np.testing.assert_allclose(found[row], vector, rtol=1e-5, atol=1e-6)
        assert len(mixed.sequences[row]["tokens"]) == len(PROMPTS[3])


def test_a_last_token_is_pooled_behind_a_cached_prefix():
    driver = Driver(toy_worker()[0])
    whole = embed(driver, 0, PROMPTS[3], Embed())
    pages = driver.sequences[0]["pages"][:3]
    driver.join(1, PROMPTS[3], cached=48, pages=pages, task=Embed())
    result = driver.step({1: len(PROMPTS[3]) - 48})
    np.testing.assert_allclose(array(result.payloads[0]), whole, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_who_joins_again_goes_on_with_what_it_pooled(pooling):
    """As after a failed step: in its row, behind what was computed."""
    driver = Driver(toy_worker()[0])
    whole = embed(driver, 0, PROMPTS[3], Embed(pooling=pooling))
    driver.join(1, PROMPTS[3], task=Embed(pooling=pooling))
    driver.step({1: 40})
    pages = driver.leave(1)["pages"]
    driver.join(1, PROMPTS[3], cached=40, pages=pages, task=Embed(pooling=pooling))
    result = driver.step({1: len(PROMPTS[3]) - 40})
    np.testing.assert_allclose(array(result.payloads[0]), whole, rtol=1e-5, atol=1e-6)


def test_bad_numbers_give_no_vector():
    driver = Driver(toy_worker(poison=VOCABULARY - 1)[0])
    driver.join(0, [4, VOCABULARY - 1, 5, 6], task=Embed(pooling="mean"))
    driver.join(1, [4, 5, 6, 7], task=Embed(pooling="mean"))
    result = driver.step({0: 4, 1: 4})
    assert list(result.bad) == [0] and list(result.payloads) == [1]
    assert result.advanced == [0, 4]


@pytest.mark.usefixtures("operations")
@pytest.mark.parametrize("start", [0, 3, 8])
def test_hidden_states_come_with_every_step(start):
    """From a position on, in a prompt that is cut and in the answer behind it."""
    prompt = PROMPTS[2][:8]
    driver = Driver(toy_worker()[0])
    driver.join(0, prompt, task=Generate(hidden_state_start=start))
    parts = []
    while len(driver.sequences[0]["tokens"]) < len(prompt) + 6:
        result = driver.step({0: driver.advance(0, 3)})
        parts += [array(payload) for payload in result.payloads.values()]
    known = driver.sequences[0]["tokens"][:-1]
    expected = hidden_states(known)[start:]
    np.testing.assert_allclose(np.concatenate(parts), expected, rtol=1e-4, atol=1e-4)


def test_hidden_states_are_those_of_tokens_that_stay():
    prompt = PROMPTS[1]
    plain = Driver(toy_worker()[0])
    plain.join(0, prompt)
    tokens = prompt + plain.generate(0, 12)

    def script(known, count):
        """Right, but for every fourth token."""
        ahead = [*tokens, *[0] * count][len(known) : len(known) + count]
        return [token + 1 if (len(known) + i) % 4 == 0 else token for i, token in enumerate(ahead)]

    driver = Driver(toy_worker(drafter=ScriptedDrafter(3, script))[0])
    driver.join(0, prompt, task=STATES)
    parts = [array(driver.step({0: len(prompt)}).payloads[0])]
    while len(driver.sequences[0]["tokens"]) < len(tokens):
        result = driver.step({0: 4})
        parts.append(array(result.payloads[0]))
        assert len(parts[-1]) == result.advanced[0]
    known = driver.sequences[0]["tokens"][:-1]
    np.testing.assert_allclose(np.concatenate(parts), hidden_states(known), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_nobody_waits_for_a_vector_while_steps_are_launched(depth):
    platform = WatchedPlatform()
    worker = toy_worker(platform=platform)[0]
    found, run = {}, worker.run
    driver = DelayedDriver(worker, platform, depth)

    def watched(plan):
        pending = run(plan)
        read = pending.result

        def result():
            done = read()
            found.update({plan.rows[span]: one for span, one in done.payloads.items()})
            return done

        pending.result = result
        return pending

    worker.run = watched
    for row, pooling in enumerate(POOLINGS):
        driver.join(row, PROMPTS[3], task=Embed(pooling=pooling))
    for at in range(0, len(PROMPTS[3]), 14):
        driver.step(dict.fromkeys(range(len(POOLINGS)), min(14, len(PROMPTS[3]) - at)))
    driver.settle(depth)
    states = hidden_states(PROMPTS[3])
    for row, pooling in enumerate(POOLINGS):
        expected = reference_vector(states, Embed(pooling=pooling))
        np.testing.assert_allclose(array(found[row]), expected, rtol=2e-5, atol=2e-6)
