"""Both indexes of n-grams: that they find the same, what they find, and what they hold."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vivace.config.drafts import token_bytes
from vivace.platforms.cpu.facts import has_kernels
from vivace.platforms.cpu.native_ngrams import NativeNgramIndex
from vivace.platforms.ngrams import PROMPT_PATHS, NgramIndex, NgramSettings
from vivace.platforms.ops.ngrams import PythonNgramIndex

NewIndex = Callable[[NgramSettings], NgramIndex]
INDEXES: list[NewIndex] = [PythonNgramIndex, *([NativeNgramIndex] if has_kernels() else [])]
each = pytest.mark.parametrize("kind", INDEXES)
OURS, THEIRS = b"0123456789abcdef", b"fedcba9876543210"
TEXTS = st.lists(st.integers(0, 3), max_size=40)
CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("join"), st.integers(0, 2), st.booleans(), TEXTS, st.integers(0, 40)),
        st.tuples(st.just("learn"), st.lists(TEXTS, min_size=3, max_size=3)),
        st.tuples(st.just("leave"), st.integers(0, 2)),
        st.tuples(st.just("corpus"), st.lists(st.integers(-1, 3), min_size=1, max_size=30)),
        st.tuples(st.just("no corpus"), st.integers(0, 5)),
    ),
    max_size=12,
)


TEXTS_BEFORE = [[1, 2, 3, -1], [0, 1, 2], [3, 3]]
"""corpora that are there, so that one can leave"""


@st.composite
def drawn_settings(draw: st.DrawFn) -> NgramSettings:
    shortest = draw(st.integers(1, 4))
    return NgramSettings(
        width=draw(st.integers(1, 9)),
        shortest=shortest,
        longest=draw(st.integers(shortest, 6)),
        depth=draw(st.integers(2, 9)),
        capacity=draw(st.sampled_from([1, 4, 5, 7, 20, 60, 10_000])),
        by_frequency=draw(st.booleans()),
        budget=draw(st.integers(0, 4)),
    )


def apply(index: NgramIndex, call: tuple) -> None:
    match call:
        case ("join", row, ours, tokens, known):
            index.join(row, OURS if ours else THEIRS, tokens, known)
        case ("learn", texts):
            index.learn([0, 1, 2], [len(text) for text in texts], list(chain(*texts)))
        case ("leave", row):
            index.leave(row)
        case ("corpus", tokens):
            index.add_corpus(np.array(tokens, np.int32))
        case ("no corpus", place):
            index.remove_corpus(place % len(TEXTS_BEFORE))
            index.add_corpus(np.array([2, 0, 2, 0, 1], np.int32))


def found(index: NgramIndex, rows: list[int]) -> list[tuple[list[int], int]]:
    """(drafts, length of the suffix) of each row"""
    told = index.propose(rows)
    return list(zip(told.drafts, told.lengths, strict=True))


@pytest.mark.skipif(not has_kernels(), reason="the library of kernels is not built")
@given(drawn_settings(), CALLS)
def test_both_find_the_same_and_stay_in_their_bounds(asked: NgramSettings, calls: list) -> None:
    indexes = PythonNgramIndex(asked), NativeNgramIndex(asked)
    for call in (*(("corpus", text) for text in TEXTS_BEFORE), *calls):
        for index in indexes:
            apply(index, call)
        one, other = (found(index, [0, 1, 2]) for index in indexes)
        assert one == other
        assert indexes[0].nodes == indexes[1].nodes <= asked.capacity
        for row, (drafts, length) in enumerate(one):
            trees = [index.branch(row, drafts[:3], 3, 1) for index in indexes]
            assert trees[0] == trees[1]
            check_tree(*trees[0], drafts[:3], asked.width)
            assert len(drafts) <= asked.width and set(drafts) <= {0, 1, 2, 3}
            assert length == 0 or asked.shortest <= length <= asked.longest


def check_tree(drafts: list[int], parents: list[int], first: list[int], width: int) -> None:
    """Its first way comes first, parents come before children, of which no two are equal."""
    assert drafts[: len(first)] == first and parents[: len(first)] == list(
        range(-1, len(first) - 1)
    )
    assert len(drafts) == len(parents) <= width
    assert all(-1 <= parent < place for place, parent in enumerate(parents))
    assert len(set(zip(parents, drafts, strict=True))) == len(drafts)
    for at in range(-1, len(drafts)):
        depth, above = 0, at
        while above >= 0:
            depth, above = depth + 1, parents[above]
        assert parents.count(at) <= max(3 - depth, 1)


@each
def test_other_ways_are_what_others_said(kind: NewIndex) -> None:
    index = kind(NgramSettings(width=7, depth=6))
    for row, tokens in enumerate(([1, 2, 3, 4, 5, 9], [1, 2, 3, 7, 8, 9], [1, 2, 6, 4, 4, 4])):
        index.join(row, OURS, tokens, 0)
    index.join(9, OURS, [30, 1, 2], 0)
    first = found(index, [9])[0][0][:2]
    assert first == [6, 4]
    assert index.branch(9, first, 3, 1) == ([6, 4, 3, 4, 7, 4, 4], [-1, 0, -1, 1, 2, 2, 3])
    assert index.branch(9, first, 1, 1) == ([6, 4, 4, 4], [-1, 0, 1, 2]), "a chain"
    assert index.branch(8, [5], 3, 1) == ([5], [-1]), "a row that is not there"


def occurrences(text: list[int], gram: list[int]) -> Iterator[int]:
    """Where they end, before the text does; the latest first."""
    for end in range(len(text) - 1, len(gram) - 1, -1):
        if text[end - len(gram) : end] == gram:
            yield end


@each
@given(st.lists(st.integers(0, 2), min_size=1, max_size=60), st.integers(1, 3), st.integers(3, 8))
def test_own_text_is_continued_from_the_latest_place_of_its_longest_suffix(
    kind: NewIndex, text: list[int], shortest: int, longest: int
) -> None:
    index = kind(NgramSettings(width=5, shortest=shortest, longest=longest, capacity=1))
    index.join(7, OURS, text[:3], 0)
    index.learn([7], [len(text) - len(text[:3])], text[3:])
    wanted: tuple[list[int], int] = [], 0
    for length in range(shortest, min(longest, len(text)) + 1):
        if (end := next(occurrences(text, text[len(text) - length :]), None)) is not None:
            wanted = ((text[end:] * 5)[:5], length)
    assert found(index, [7]) == [wanted]


@each
def test_rows_of_a_space_share_what_they_say_and_others_do_not(kind: NewIndex) -> None:
    index = kind(NgramSettings(width=4, depth=8))
    index.join(0, OURS, list(range(100, 130)), 0)
    index.join(1, OURS, [5, 6, 109, 110], 0)
    index.join(2, THEIRS, [5, 6, 109, 110], 0)
    assert found(index, [1, 2]) == [([111, 112, 113, 114], 2), ([], 0)]
    index.leave(0)
    index.learn([1], [1], [126])
    assert found(index, [1]) == [([127, 128, 129], 1)], "also the end of a row that left"


@each
def test_own_text_comes_first_where_it_matches_as_long(kind: NewIndex) -> None:
    for by_frequency, wanted in ((False, [7]), (True, [9])):
        index = kind(NgramSettings(width=1, depth=4, by_frequency=by_frequency))
        for row in (1, 2, 3):
            index.join(row, OURS, [1, 2, 9, 9, 9, 9], 0)
        index.join(0, OURS, [1, 2, 7, 8, 8, 8, 1, 2], 0)
        assert found(index, [0]) == [(wanted, 2)]


@each
def test_the_latest_or_the_most_frequent_continuation(kind: NewIndex) -> None:
    for by_frequency, wanted in ((False, 4), (True, 3)):
        index = kind(NgramSettings(width=1, depth=3, by_frequency=by_frequency))
        for row, third in enumerate((3, 3, 4)):
            index.join(row, OURS, [1, 2, third], 0)
        index.join(9, OURS, [8, 1, 2], 0)
        assert found(index, [9])[0][0] == [wanted]


@each
def test_paths_go_on_behind_their_longest_length(kind: NewIndex) -> None:
    index = kind(NgramSettings(width=20, longest=4, depth=6))
    index.join(0, OURS, list(range(50)), 0)
    index.join(1, OURS, [10, 11], 0)
    assert found(index, [1]) == [(list(range(12, 32)), 2)]


@each
def test_what_was_not_said_for_the_longest_time_leaves_first(kind: NewIndex) -> None:
    index = kind(NgramSettings(width=2, depth=3, capacity=40))
    index.join(0, OURS, [1, 2, 3], 0)
    for number in range(20):
        index.join(1, OURS, [50 + number, 70 + number, 90 + number], 0)
        index.join(2, OURS, [1, 2, 3], 0)
        assert index.nodes <= 40
    index.join(3, OURS, [1, 2], 0)
    index.join(4, OURS, [52, 72], 0)
    assert found(index, [3, 4]) == [([3], 2), ([], 0)]


@each
def test_what_is_cached_was_brought_before(kind: NewIndex) -> None:
    index = kind(NgramSettings(width=2, depth=3))
    index.join(0, OURS, list(range(30)), 20)
    assert index.nodes == 4 + 10 * 3, "of the space, and of paths that begin at 18, 19 ... 27"
    index.join(1, OURS, [2, 3], 0)
    index.join(2, OURS, [18, 19], 0)
    assert found(index, [1, 2]) == [([], 0), ([20, 21], 2)]


@each
def test_long_prompts_are_shared_step_by_step(kind: NewIndex) -> None:
    count = PROMPT_PATHS + 1000
    index = kind(NgramSettings(width=2, depth=2))
    index.join(0, OURS, list(range(count)), 0)
    assert index.nodes == 4 + 2 * PROMPT_PATHS
    for token in range(20):
        index.learn([0], [1], [count + token])
    assert index.nodes == 4 + 2 * (count + 20 - 1)


@each
def test_corpora_propose_up_to_their_budget_what_follows_most(kind: NewIndex) -> None:
    corpus = np.array([1, 2, 3, 4, 5, 6, -1, 1, 2, 7, -1, 1, 2, 3, 4, -1, 9, 2], np.int32)
    for budget, wanted in ((3, [3, 4, 5]), (1, [3]), (0, [])):
        index = kind(NgramSettings(width=5, budget=budget))
        index.add_corpus(corpus)
        index.join(0, OURS, [1, 2], 0)
        drafts, length = found(index, [0])[0]
        assert drafts == wanted[: len(drafts)] and length == (2 if budget else 0)
        assert len(drafts) >= min(budget, 2)
    index.join(1, OURS, [6], 0)
    assert found(index, [1]) == [([], 0)], "a document has an end"


@each
def test_several_corpora_are_as_one_and_each_may_leave(kind: NewIndex) -> None:
    index = kind(NgramSettings(width=3))
    index.join(0, OURS, [1, 2, 3], 0)
    for text in ([2, 3, 8], [9, 3, 7, 7], [1, 2, 3], [1, 2, 3, -1, 4]):
        index.add_corpus(np.array(text, np.int32))
    assert found(index, [0]) == [([8], 2)], "longer ones have nothing behind them"
    index.add_corpus(np.array([1, 2, 3, 5, 6], np.int32))
    held = index.nbytes
    assert found(index, [0]) == [([5, 6], 3)]
    for wanted in ([([5, 6], 3)], [([5, 6], 3)]):
        index.remove_corpus(0)
        assert found(index, [0]) == wanted
    index.remove_corpus(2)
    assert found(index, [0]) == [([], 0)]
    for _ in range(2):
        index.remove_corpus(0)
    assert index.nbytes < held and found(index, [0]) == [([], 0)]


@each
def test_a_row_that_leaves_frees_its_text(kind: NewIndex) -> None:
    index = kind(NgramSettings(width=4, capacity=64))
    empty = index.nbytes
    text = np.random.default_rng(1).integers(0, 1000, 3000).tolist()
    index.join(0, OURS, text, 0)
    held = index.nbytes - empty
    assert held > 12 * len(text)
    index.leave(0)
    index.join(0, OURS, [1], 0)
    gc.collect()
    assert index.nbytes - empty < held / 3
    assert index.nodes <= 64


@pytest.mark.skipif(not has_kernels(), reason="the library of kernels is not built")
def test_native_memory_has_the_bounds_that_the_flags_promise() -> None:
    index = NativeNgramIndex(NgramSettings(width=4, capacity=20_000))
    random = np.random.default_rng(1)
    for _ in range(20):
        index.join(0, OURS, random.integers(0, 50_000, 2000).tolist(), 0)
    assert 19_900 < index.nodes <= 20_000
    text = 2000 * (4 + 12 * 4 / (5 / 16))
    assert index.nbytes < 20_000 * 70 + text + 100_000


@pytest.mark.skipif(not has_kernels(), reason="the library of kernels is not built")
@pytest.mark.parametrize("depth", [18, 128])
def test_texts_that_fork_at_every_second_token_stay_in_bounds(depth: int) -> None:
    index = NativeNgramIndex(NgramSettings(width=4, capacity=20_000, depth=depth))
    for token in range(12_000):
        index.join(0, OURS, [token, token], 0)
    assert 19_900 < index.nodes <= 20_000
    assert index.nbytes < 20_000 * token_bytes(depth) + 4 * 1024 * (depth + 64)


@pytest.mark.skipif(not has_kernels(), reason="the library of kernels is not built")
@pytest.mark.parametrize("counts", [[1], [2, -1], [0, 0]])
def test_counts_that_are_not_the_tokens_are_refused(counts: list[int]) -> None:
    index = NativeNgramIndex(NgramSettings(width=1))
    with pytest.raises(ValueError, match="counts"):
        index.learn([0, 1], counts, [5])


def crowding_text(count: int, vocabulary: int, slots: int) -> list[int]:
    """Whose pairs of tokens all hash to a thousandth of a table of so many slots."""
    odd, ids = np.uint64(0x9E3779B97F4A7C15), np.arange(1, vocabulary + 1, dtype=np.uint64)
    last = ids * odd
    last ^= last >> np.uint64(29)
    text, chance = [5], np.random.default_rng(1)
    while len(text) < count:
        pairs = (last + np.uint64(text[-1] + 1)) * odd
        pairs ^= pairs >> np.uint64(29)
        places = (pairs * odd >> np.uint64(20)) & np.uint64(slots - 1)
        text.append(int(chance.choice(np.flatnonzero(places < slots // 1000))))
    return text


@pytest.mark.skipif(not has_kernels(), reason="Python's own hashes are not ours")
def test_no_text_is_made_to_crowd_a_table() -> None:
    count, index = 6000, NativeNgramIndex(NgramSettings(width=3))
    texts = crowding_text(count, 16384, 1 << 17), list(range(count))

    def seconds(text: list[int]) -> float:
        started = time.perf_counter()
        index.join(0, OURS, text, 0)
        return time.perf_counter() - started

    crowding, plain = (min(seconds(text) for _ in range(3)) for text in texts)
    assert crowding < 8 * plain, "otherwise it grows with the square of a text's length"
