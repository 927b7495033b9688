"""Running streams keep their pace beside prompts, and prompts keep theirs: in the model's time."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from engine_rig import EOS, Rig
from hypothesis import example, given, settings
from hypothesis import strategies as st

from vivace.engine.settings import EngineSettings
from vivace.engine.step_builder import FIRST_CHUNK, MIN_CHUNK, MIN_SHARE, DynamicChunk
from vivace.protocol.step import StepPlan

STALL = 0.05
ROWS = 8


@dataclass(frozen=True)
class Cost:
    """Seconds of a step, of a token of a prompt, of a decoding row."""

    step: float
    token: float
    row: float

    def __call__(self, plan: StepPlan) -> float:
        decodes = plan.counts.count(1)
        chunk = sum(plan.counts) - decodes
        return self.step + chunk * self.token + decodes * self.row

    def decode_step(self, rows: int) -> float:
        return self.step + rows * self.row


COSTS = st.builds(
    Cost,
    step=st.floats(0.001, 0.2),
    token=st.floats(0.0001, 0.01),
    row=st.floats(0.0001, 0.01),
)


def rig_with(cost: Cost, **options: object) -> Rig:
    chosen = {"eos_ids": (EOS,), "depth": 1, "chunk": 256, "rows": ROWS, **options}
    rig = Rig(EngineSettings(**chosen), pages=4000, context=2000, cost=cost)  # type: ignore[arg-type]
    rig.send(0, [1] * 2 * FIRST_CHUNK, 2, ignore_eos=True, cache_key="warm-up")
    rig.run()
    return rig


def stream(rig: Rig, length: int) -> int:
    """A request that decodes from now on."""
    key = len(rig.answers)
    rig.send(key, [key], length, ignore_eos=True)
    while not rig.answers[key].tokens:
        rig.step()
    return key


def prompt(rig: Rig, length: int, output: int = 2) -> int:
    key = len(rig.answers)
    rig.send(key, [(key * 31 + n) % 97 for n in range(length)], output, ignore_eos=True)
    return key


@settings(max_examples=60, deadline=None)
@given(
    cost=COSTS,
    mixed=st.booleans(),
    chunk=st.sampled_from([None, 64, 256]),
    arrivals=st.lists(
        st.tuples(st.integers(0, 12), st.integers(2, 60), st.integers(1, 6)), max_size=30
    ),
    long=st.integers(2, 600),
)
@example(  # behind the chunk a step of few tokens that are dear
    cost=Cost(0.004, 0.008, 0.0001), mixed=False, chunk=64, arrivals=[(0, 2, 1)] * 5, long=23
)
def test_a_stream_waits_three_steps_and_one_chunk_at_most(
    cost: Cost, mixed: bool, chunk: int | None, arrivals: list[tuple[int, int, int]], long: int
) -> None:
    """Whatever arrives; a prompt that must not be cut is itself the chunk."""
    rig = rig_with(cost, mixed=mixed, chunk=chunk)
    key = stream(rig, 60)
    prompts = [prompt(rig, long)]
    for pause, length, output in arrivals:
        rig.step(pause)
        prompts.append(prompt(rig, length, output))
    rig.run()
    whole = 600 * cost.token
    if chunk is not None:
        # where every step has chunks, what decoding costs shows only as a share of all tokens
        row = max(cost.row, cost.token) if mixed else cost.row
        cut = max(4 * STALL + 8 * (cost.step + ROWS * row), MIN_CHUNK * cost.token)
        whole = min(chunk * cost.token, cut)
    bound = 3 * cost.decode_step(ROWS) + whole + cost.step
    assert max(rig.answers[key].gaps()) <= bound * 1.01
    for other in [key, *prompts]:
        rig.check(other)


@settings(max_examples=40, deadline=None)
@given(cost=COSTS, mixed=st.booleans(), streams=st.integers(1, ROWS - 1))
def test_prompts_keep_their_share_beside_many_streams(
    cost: Cost, mixed: bool, streams: int
) -> None:
    """Two prompts, in slices, take at most six times as long as one alone: at least a third."""
    alone = rig_with(cost, mixed=mixed)
    start = alone.clock.now
    prompt(alone, 1000)
    alone.run()
    undisturbed = alone.clock.now - start

    rig = rig_with(cost, mixed=mixed)
    for _ in range(streams):
        stream(rig, 1500)
    start = rig.clock.now
    keys = [prompt(rig, 1000), prompt(rig, 1000)]
    while not rig.answers[keys[-1]].tokens:
        rig.step(audit=False)
    assert rig.clock.now - start <= 6 * undisturbed + 4 * cost.decode_step(ROWS)


def test_nobody_decodes_nothing_is_cut() -> None:
    rig = rig_with(Cost(0.01, 0.01, 0.01))
    seen: list[int] = []
    count = rig.executor.submit

    def spy(plan: StepPlan):  # type: ignore[no-untyped-def]
        seen.extend(plan.counts)
        return count(plan)

    rig.executor.submit = spy  # type: ignore[method-assign]
    prompt(rig, 1024, 1)
    rig.run()
    assert seen == [256] * 4


def test_a_newcomer_waits_for_a_short_chunk_of_another_client() -> None:
    """While nobody decodes, too."""
    cost = Cost(0.01, 0.01, 0.01)
    rig = rig_with(cost)
    for _ in range(4):
        prompt(rig, 1024)
    rig.step()
    start, guest = rig.clock.now, len(rig.answers)
    rig.send(guest, [guest], 1, client=1, ignore_eos=True)
    while not rig.answers[guest].tokens:
        rig.step()
    cut = 4 * STALL + 8 * cost.decode_step(1)
    assert rig.clock.now - start <= cut + 2 * cost.decode_step(1) < 128 * cost.token


def test_a_thousand_short_prompts_do_not_silence_the_first() -> None:
    cost = Cost(0.005, 0.002, 0.002)
    rig = Rig(
        EngineSettings(eos_ids=(EOS,), rows=64, depth=1, chunk=1024),
        pages=20000,
        rows=64,
        cost=cost,
    )
    for _ in range(300):
        prompt(rig, 32, 16)
    rig.step(5000, audit=False)
    gaps = [gap for answer in rig.answers.values() for gap in answer.gaps()]
    assert max(gaps) <= 9 * cost.decode_step(64) + STALL + cost.step + FIRST_CHUNK * cost.token
    for key in rig.answers:
        rig.check(key)


@settings(max_examples=25, deadline=None)
@given(
    cost=COSTS,
    arrivals=st.lists(st.tuples(st.integers(8, 12), st.integers(2, 8)), min_size=1, max_size=20),
)
def test_short_prompts_share_the_steps_of_a_stream(
    cost: Cost, arrivals: list[tuple[int, int]]
) -> None:
    """No step is without a token for the stream; each is half as long again, or four tokens."""
    rig = rig_with(cost)
    key = stream(rig, 300)
    for pause, length in arrivals:
        prompt(rig, length, 1)
        rig.step(pause)
    rig.run()
    share = max(MIN_SHARE * cost.token, 0.5 * cost.decode_step(1))
    assert max(rig.answers[key].gaps()) <= (cost.decode_step(1) + cost.row + share) * 1.01


def test_short_prompts_come_in_steps_of_decoding_rows() -> None:
    rig = rig_with(Cost(0.01, 0.01, 0.01))
    stream(rig, 100)
    plans: list[list[int]] = []
    submit = rig.executor.submit

    def spy(plan: StepPlan):  # type: ignore[no-untyped-def]
        plans.append(plan.counts)
        return submit(plan)

    rig.step(2)  # the step behind a chunk is the stream's alone
    rig.executor.submit = spy  # type: ignore[method-assign]
    prompt(rig, 10, 1)
    rig.step(6)
    assert [plan for plan in plans if len(plan) == 2] == [[MIN_SHARE, 1], [MIN_SHARE, 1], [2, 1]]
    prompt(rig, 40, 1)
    rig.step(4)
    longest = max(plans, key=max)
    assert len(longest) == 1 and longest[0] > MIN_SHARE, "a long prompt has a step of its own"


def test_without_a_target_prompts_come_first() -> None:
    rig = rig_with(Cost(0.01, 0.01, 0.01), stall_target=0.0)
    key = stream(rig, 20)
    prompt(rig, 1024)
    rig.run()
    assert max(rig.answers[key].gaps()) >= 1024 * 0.01


def test_decode_steps_between_two_chunks_follow_the_flag() -> None:
    rig = rig_with(Cost(0.01, 0.01, 0.01), continuous_decode_steps=3)
    stream(rig, 100)
    kinds: list[bool] = []
    submit = rig.executor.submit

    def spy(plan: StepPlan):  # type: ignore[no-untyped-def]
        kinds.append(max(plan.counts) > 1)
        return submit(plan)

    rig.executor.submit = spy  # type: ignore[method-assign]
    prompt(rig, 200, 1)
    rig.step(24)
    first = kinds.index(True)
    assert kinds[first : first + 8] == [True, False, False, False] * 2


# --- the measure ----------------------------------------------------------------------------------


def test_slower_tokens_count_at_once_and_accidents_little() -> None:
    chunk = DynamicChunk(0.1)
    assert chunk.max_tokens(1) == FIRST_CHUNK
    chunk.observe(100, 0, 0.1)
    assert chunk.max_tokens(1) == 100
    chunk.observe(100, 0, 0.2)
    assert chunk.max_tokens(1) == 50
    chunk.observe(100, 0, 60.0)
    assert chunk.max_tokens(1) == MIN_CHUNK
    for _ in range(8):
        chunk.observe(16, 0, 0.016)
    assert chunk.max_tokens(1) == pytest.approx(98, abs=3)


def test_a_chunk_grows_with_the_steps_of_those_who_wait_for_it() -> None:
    chunk = DynamicChunk(0.1)
    chunk.observe(100, 0, 0.1)
    for _ in range(3):
        chunk.observe(0, 5, 0.2)
    assert chunk.max_tokens(1) == 1700
    chunk.observe(0, 5, 30.0)
    assert chunk.max_tokens(1) == 1700, "one slow step is an accident"


def test_a_shorter_target_gives_up_steps_too() -> None:
    for target, tokens in ((0.05, 850), (0.025, 425), (0.005, 85), (0.0001, MIN_CHUNK)):
        chunk = DynamicChunk(target)
        chunk.observe(100, 0, 0.1)
        for _ in range(3):
            chunk.observe(0, 5, 0.1)
        assert chunk.max_tokens(1) == pytest.approx(tokens, abs=1)


def test_tiny_chunks_say_nothing_about_the_speed() -> None:
    chunk = DynamicChunk(0.1)
    chunk.observe(1, 0, 0.05)
    assert chunk.max_tokens(1) == FIRST_CHUNK
    assert DynamicChunk(0.0).max_tokens(1) is None


def test_a_chunk_grows_with_the_prompts_that_wait_up_to_four() -> None:
    chunk = DynamicChunk(0.1)
    chunk.observe(100, 0, 0.1)
    assert [chunk.max_tokens(n) for n in (0, 1, 2, 4, 1000)] == [100, 100, 200, 400, 400]
