"""States of rows in the worker: a step that fails, is bad or had wrong drafts leaves none behind,
and others may start from one that was saved."""

from __future__ import annotations

import pytest
import torch
from cached_toys import CONTEXT, VOCABULARY, CachedToy
from toy_model import Driver

from vivace.platforms.ops.platform import ReferencePlatform
from vivace.platforms.platform import PlatformSettings, StepShape, detect, load_platform
from vivace.protocol.messages import CacheGroup
from vivace.protocol.step import Join, Save, StepPlan
from vivace.worker.build import assemble
from vivace.worker.captures import Captures
from vivace.worker.drafter import NO_DRAFTS
from vivace.worker.drafters.scripted import ScriptedDrafter
from vivace.worker.rows import PlanError
from vivace.worker.sizing import PoolSize

KINDS = ("recurrent", "latent", "recurrent")
PAGES = 5
PROMPT = [5, 9, 1, 40, 7, 120, 33, 2, 250, 11]
POISON = 299


def torch_platform():
    return load_platform(detect("cpu"), PlatformSettings(threads=1, deterministic=True))


def state_worker(platform=None, drafter=NO_DRAFTS, captures=Captures(), kinds=KINDS, rows=4):
    platform = platform or torch_platform()
    model = CachedToy(platform.ops, kinds, POISON)
    group = CacheGroup(pages=PAGES, reach=1, state=True)
    size = PoolSize(pages=80, rows=rows, context=CONTEXT, cache_share=80, others=(group,))
    worker = assemble(
        model,
        model.attention_layers,
        platform,
        size,
        page_size=16,
        dtype=torch.float32,
        vocabulary=VOCABULARY,
        drafter=drafter,
        captures=captures,
    )
    return worker, model


class StateDriver(Driver):
    """`state`: the page of the state that a row starts from"""

    def join(self, row, tokens, *, state=None, **given):
        super().join(row, tokens, **given)
        last = self.joins.pop()
        self.joins.append(
            Join(
                row=row,
                key=row,
                tokens=last.tokens,
                prompt=last.prompt,
                cached=last.cached,
                pages=last.pages,
                others=[[] if state is None else [state]],
                sampling=last.sampling,
            )
        )


def answer(count=20, chunk=10_000, **worker):
    driver = StateDriver(state_worker(**worker)[0])
    driver.join(0, PROMPT)
    return driver.generate(0, count, chunk=chunk)


@pytest.mark.parametrize("chunk", [1, 3, 7])
def test_chunks_hand_the_state_on(chunk):
    assert answer(chunk=chunk) == answer()


def test_a_row_starts_from_a_saved_state():
    driver = StateDriver(state_worker()[0])
    prompt = [*range(3, 3 + 40)]
    driver.join(0, prompt)
    driver.step({0: 32}, saves=[Save(0, 3, 1)])
    wanted = driver.generate(0, 12)
    pages = driver.sequences[0]["pages"][:2]
    for row in (1, 2):  # the state in the page stays what it was
        driver.join(row, prompt, cached=32, pages=pages, state=3)
        assert driver.generate(row, 12) == wanted
    driver.join(3, prompt, cached=32, pages=pages, state=2)
    assert driver.generate(3, 12) != wanted, "another state"


def test_who_joins_a_row_does_not_meet_the_state_of_who_left():
    driver = StateDriver(state_worker()[0])
    driver.join(0, [250, 249, 248])
    driver.generate(0, 5)
    driver.leave(0)
    driver.join(0, PROMPT)
    assert driver.generate(0, 20) == answer()


@pytest.mark.parametrize("after", [0, 1, 2, 5])
def test_a_failed_step_leaves_the_state_as_it_was(after):
    worker, model = state_worker()
    driver = StateDriver(worker)
    driver.join(0, PROMPT)
    driver.step({0: 4})
    for _ in range(after):
        driver.step({0: driver.advance(0, 1)})
    head = model.lm_head

    def fail(hidden):
        raise RuntimeError("no memory")

    model.lm_head = fail
    sequence = driver.sequences[0]
    spans = {0: len(sequence["tokens"]) - sequence["done"]}
    with pytest.raises(RuntimeError):
        driver.step(spans)
    model.lm_head = head
    worker.run(StepPlan(number=-1, leaves=[0])).result()
    again = StateDriver(worker)
    again.join(
        0,
        sequence["tokens"],
        prompt=len(PROMPT),
        cached=sequence["done"],
        pages=sequence["pages"],
    )
    assert again.generate(0, 20) == answer()


def test_bad_numbers_stay_in_their_row():
    driver = StateDriver(state_worker()[0])
    driver.join(0, PROMPT)
    driver.join(1, [POISON, 4, 4])
    result = driver.step({0: 10, 1: 3})
    assert list(result.bad) == [1]
    driver.leave(1)
    driver.join(1, PROMPT)
    assert driver.generate(1, 20) == driver.generate(0, 20) == answer()


@pytest.mark.parametrize("wrong", [0, 1, 2, 3])
@pytest.mark.parametrize("width", [1, 3])
def test_refused_drafts_leave_no_state(width, wrong):
    wanted = answer()
    known = PROMPT + wanted

    def script(tokens, count):
        ahead = [*known, *[0] * count][len(tokens) : len(tokens) + count]
        return [
            (token + 1) % VOCABULARY if wrong and (len(tokens) + i) % wrong == 0 else token
            for i, token in enumerate(ahead)
        ]

    driver = StateDriver(state_worker(drafter=ScriptedDrafter(width, script))[0])
    driver.join(0, PROMPT)
    driver.step({0: 10})
    steps = 0
    while len(driver.sequences[0]["tokens"]) < len(known):
        driver.step({0: 1 + width})
        steps += 1
    assert driver.sequences[0]["tokens"][: len(known)] == known
    assert steps < 20 or wrong == 1


def test_platforms_keep_states_alike():
    reference = ReferencePlatform(detect("cpu"), torch.device("cpu"))
    assert answer(platform=reference) == answer()


class FixedStateGraph:
    computes_all_rows = True
    nbytes = 0

    def __init__(self, run, result):
        self._run, self._result = run, result

    def replay(self, step, shape: StepShape):
        self._result.copy_(self._run())


class FixedStateRecorder:
    most_tokens_per_row = 4
    nbytes = 0

    def capture(self, run, shape):
        result = run().clone()
        return FixedStateGraph(run, result), result


def test_rows_behind_the_live_ones_spoil_no_state():
    """A fixed capture computes them, too."""
    platform = torch_platform()
    platform.recorder = FixedStateRecorder  # type: ignore[method-assign]
    worker, _ = state_worker(platform, captures=Captures((4,)), kinds=("recurrent", "recurrent"))
    driver = StateDriver(worker)
    for row in range(4):
        driver.join(row, PROMPT)
    driver.step(dict.fromkeys(range(4), 10))
    for rows in (4, 1, 3, 2, 4, 1) * 3:
        assert driver.step(dict.fromkeys(range(rows), 1)).captured
    wanted = answer(count=19, kinds=("recurrent", "recurrent"))
    for row in range(4):
        drawn = driver.sequences[row]["tokens"][len(PROMPT) :]
        assert drawn == wanted[: len(drawn)] and len(drawn) > 6


@pytest.mark.parametrize("right", [True, False])
def test_captures_of_drafts_write_a_state_behind_each(right):
    """Chunks of as many tokens have none, and are no replays."""
    wanted = answer(kinds=("recurrent", "recurrent"))
    known = PROMPT + wanted
    drafter = ScriptedDrafter(
        2, lambda tokens, count: [*known, 0, 0][len(tokens) :][:count] if right else [0] * count
    )
    platform = torch_platform()
    platform.recorder = FixedStateRecorder  # type: ignore[method-assign]
    worker, _ = state_worker(
        platform, drafter, captures=Captures((4,)), kinds=("recurrent", "recurrent")
    )
    driver = StateDriver(worker)
    for row in range(3):
        driver.join(row, PROMPT)
    assert not driver.step(dict.fromkeys(range(3), 3)).captured
    driver.step(dict.fromkeys(range(3), 7))
    while len(driver.sequences[0]["tokens"]) < len(known):
        assert driver.step(dict.fromkeys(range(3), 3)).captured
    for row in range(3):
        assert driver.sequences[row]["tokens"][: len(known)] == known


@pytest.mark.parametrize("page", [-1, PAGES, 10**6])
def test_states_are_saved_in_pages_only(page):
    driver = StateDriver(state_worker()[0])
    driver.join(0, PROMPT)
    with pytest.raises(PlanError):
        driver.step({0: 10}, saves=[Save(0, page, 1)])


def test_only_rows_of_the_step_are_saved():
    driver = StateDriver(state_worker()[0])
    for row in range(2):
        driver.join(row, PROMPT)
    driver.step({0: 10, 1: 9})
    with pytest.raises(PlanError):
        driver.step({1: 1}, saves=[Save(0, 1, 1)])
    assert driver.generate(1, 20) == answer()
