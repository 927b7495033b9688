"""--enable-dynamic-chunking: chunks of a pipeline that take as long as each other."""

from __future__ import annotations

import math

import pytest
from engine_rig import EOS, Rig
from hypothesis import given
from hypothesis import strategies as st

from vivace.engine.chunk_sizes import ALIGNMENT, ChunkSizePredictor, choose_chunk_sizes
from vivace.engine.settings import EngineSettings
from vivace.protocol.step import StepPlan

SIZE = 8192
TOKEN, PAIR = 2e-4, 3e-8
"""seconds of a device"""


def seconds(tokens: int, context: int) -> float:
    return TOKEN * tokens + PAIR * pairs(tokens, context)


def pairs(tokens: int, context: int) -> float:
    return tokens * (context + tokens / 2)


def learned(smoothing: float = 1.0) -> ChunkSizePredictor:
    chunks = ChunkSizePredictor(SIZE, smoothing)
    for context in (0, SIZE, 2 * SIZE, 3 * SIZE):
        chunks.observe(SIZE, pairs(SIZE, context), seconds(SIZE, context))
    return chunks


@given(context=st.integers(0, 30_000))
def test_a_chunk_takes_as_long_as_the_first_one(context: int) -> None:
    found, wanted = learned().predict(context), seconds(SIZE, 0)
    assert found % ALIGNMENT == 0
    assert seconds(found, context) <= wanted * 1.001
    if found > SIZE // 4:
        assert seconds(found + ALIGNMENT, context) >= wanted * 0.999


def test_chunks_become_shorter_but_not_tiny() -> None:
    sizes = [learned().predict(context) for context in range(0, 400_000, 1000)]
    assert sizes == sorted(sizes, reverse=True)
    assert (sizes[0], sizes[-1]) == (SIZE, SIZE // 4)
    half = learned(smoothing=0.5).predict(20_000)
    assert abs(half - (SIZE + learned().predict(20_000)) / 2) <= ALIGNMENT


def test_nothing_is_predicted_before_steps_have_told_tokens_from_pairs() -> None:
    chunks = ChunkSizePredictor(SIZE, 1.0)
    for _ in range(9):
        assert chunks.predict(100_000) == SIZE
        chunks.observe(SIZE, pairs(SIZE, 0), seconds(SIZE, 0))
    chunks.observe(SIZE, pairs(SIZE, SIZE), seconds(SIZE, SIZE))
    assert chunks.predict(100_000) < SIZE


def test_another_device_is_learned() -> None:
    chunks, again = learned(), learned()
    for context in (0, SIZE, 2 * SIZE) * 10:
        again.observe(SIZE, pairs(SIZE, context), TOKEN * SIZE + 9 * PAIR * pairs(SIZE, context))
    assert again.predict(2 * SIZE) < chunks.predict(2 * SIZE)


@given(
    st.integers(1, 1 << 20),
    st.floats(0.01, 1.0),
    st.lists(
        st.tuples(st.integers(1, 1 << 20), st.integers(0, 1 << 22), st.floats(0, 1e4)), max_size=9
    ),
    st.integers(0, 1 << 22),
)
def test_whatever_steps_took_chunks_have_a_length(
    size: int, smoothing: float, steps: list[tuple[int, int, float]], context: int
) -> None:
    chunks = ChunkSizePredictor(size, smoothing)
    for tokens, before, took in steps:
        chunks.observe(tokens, pairs(tokens, before), took)
    found = chunks.predict(context)
    assert max(1, size // 4) <= found <= size
    assert math.isfinite(found)


@pytest.mark.parametrize(("size", "dynamic"), [(None, True), (None, False), (64, False)])
def test_without_the_flag_all_chunks_are_as_long(size: int | None, dynamic: bool) -> None:
    chunks = choose_chunk_sizes(size, dynamic=dynamic, smoothing=0.75)
    chunks.observe(64, 99.0, 1.0)
    assert chunks.predict(0) == chunks.predict(10_000) == size


def test_steps_of_a_long_prompt_take_as_long_as_each_other() -> None:
    """Once two of them have shown what context costs."""
    steps: list[tuple[int, float]] = []

    def cost(plan: StepPlan) -> float:
        chunk = sum(plan.counts)
        steps.append((chunk, seconds(chunk, sum(count for count, _ in steps))))
        return steps[-1][1]

    options = EngineSettings(
        eos_ids=(EOS,), depth=1, chunk=1024, rows=4, dynamic_chunks=True, chunk_smoothing=1.0
    )
    rig = Rig(options, pages=40_000, context=30_000, cost=cost)
    rig.send(0, [number % 97 for number in range(24_000)], 1, ignore_eos=True)
    rig.run()
    sizes, times = zip(*steps, strict=True)
    assert sum(sizes) == 24_000
    assert sizes[:2] == (1024, 1024) and sizes[-2] < 512
    tile = ALIGNMENT * (TOKEN + PAIR * 24_000)
    assert all(abs(took - times[0]) < 1.1 * tile for took in times[2:-1])
    assert times[1] > times[0] * 1.1
