"""Suspects run alone, with the same tokens as in company."""

from __future__ import annotations

import pytest
from engine_rig import NoEvents, Rig
from hypothesis import given
from hypothesis import strategies as st

from vivace.engine.executor import CompletedStep, StepWorker
from vivace.engine.oracle import Faults
from vivace.protocol.messages import ALWAYS, UNTIL_FIRST_TOKEN, LogprobOptions
from vivace.protocol.step import StepPlan


class Watched(NoEvents):
    """Notes which requests share a step, and whether one has drawn a token in this row."""

    def __init__(self, runner: StepWorker) -> None:
        self.capacity, self.close = runner.capacity, runner.close
        self._runner = runner
        self._keys: dict[int, int] = {}
        self.steps: list[list[int]] = []
        self.drawn: set[int] = set()
        self.early: list[tuple[list[int], set[int]]] = []
        """(who was in a step, who had drawn before it)"""

    def run(self, plan: StepPlan) -> CompletedStep:
        for row in plan.leaves:
            self.drawn.discard(self._keys.pop(row))
        for join in plan.joins:
            self._keys[join.row] = join.key
        keys = [self._keys[row] for row in plan.rows]
        self.early.append((keys, set(self.drawn)))
        result = self._runner.run(plan).result()
        self.drawn |= {key for key, tokens in zip(keys, result.tokens, strict=True) if tokens}
        return CompletedStep(result)


def watched_rig(rig: Rig) -> Watched:
    watched = Watched(rig.executor._worker)
    rig.executor._worker = watched
    return watched


levels = st.sampled_from([0, 0, UNTIL_FIRST_TOKEN, ALWAYS])
requests = st.lists(st.tuples(levels, st.integers(1, 40), st.integers(1, 12)), max_size=12)


@given(requests, st.integers(0, 4), st.booleans())
def test_suspects_run_alone_and_tokens_stay_the_same(
    asked: list[tuple[int, int, int]], resume: int, late: bool
) -> None:
    rig = Rig(rows=4, pages=40, eos_rate=0.05, late=late)
    watched = watched_rig(rig)
    for key, (level, length, count) in enumerate(asked, 1):
        options = LogprobOptions(start=0) if key % 3 == 0 and not resume else None
        tokens = [key + place for place in range(length)]
        rig.send(key, tokens, count, suspect=level, resume=resume, logprobs=options)
        rig.step(key % 3)
    rig.run()
    suspicion = {key: level for key, (level, _, _) in enumerate(asked, 1)}
    for keys, drawn in watched.early:
        if len(keys) > 1:
            assert ALWAYS not in [suspicion[key] for key in keys]
            assert all(key in drawn for key in keys if suspicion[key] == UNTIL_FIRST_TOKEN)
    for key in suspicion:
        rig.check(key)
    rig.at_rest()


@pytest.mark.parametrize("level", [UNTIL_FIRST_TOKEN, ALWAYS])
def test_a_suspect_whose_step_raises_ends_alone(level: int) -> None:
    """Half of the plan has run by then; nobody else notices."""
    rig = Rig(faults=Faults(raise_on_keys={2}))
    watched_rig(rig)
    for key in (1, 2, 3, 4):
        rig.send(key, [7, key], 6, ignore_eos=True, suspect=level if key != 4 else 0)
    rig.run()
    finish = rig.answers[2].finish
    assert finish is not None and finish.status == 500
    for key in (1, 3, 4):
        rig.check(key)
    rig.at_rest()


@pytest.mark.parametrize("turns", range(1, 9))
def test_suspects_that_are_cancelled_leave_nothing_behind(turns: int) -> None:
    """Also those whose step was composed already, beside another one's."""
    rig = Rig()
    for key in (1, 2, 3):
        rig.send(key, [7, key], 20, ignore_eos=True, suspect=ALWAYS)
    rig.step(turns)
    rig.cancel(1, 2, 3)
    rig.step()
    while rig.loop.wait_timeout() == 0.0 or rig.loop._in_flight:
        rig.step()
    rig.at_rest()
