from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from frontend_fakes import byte_tokenizer, embedded_tokenizer, sentencepiece_tokenizer
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizers import Regex, models, pre_tokenizers
from tokenizers import Tokenizer as Core

from vivace.frontend.detokenizer import StopHit, StopStrings, WindowDetokenizer, detokenizer
from vivace.frontend.tokenizer import Tokenizer

VOCABULARIES = [byte_tokenizer, sentencepiece_tokenizer, embedded_tokenizer]


def chunked(tokens: list[int], cuts: list[int]) -> list[list[int]]:
    places = sorted({min(cut, len(tokens)) for cut in cuts} | {0, len(tokens)})
    return [tokens[a:b] for a, b in itertools.pairwise(places)]


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_streaming_adds_up_to_full_decoding(
    vocabulary: Callable[[], Tokenizer], data: st.DataObject
) -> None:
    tokenizer = vocabulary()
    tokens = data.draw(st.lists(st.integers(0, min(tokenizer.vocabulary, 300) - 1), max_size=30))
    cuts = data.draw(st.lists(st.integers(0, 30), max_size=10))
    skip = data.draw(st.booleans())
    stream = detokenizer(tokenizer, skip_special_tokens=skip)
    text = "".join(stream.push(chunk) for chunk in chunked(tokens, cuts))
    assert text + stream.flush() == tokenizer.decode(tokens, skip)


@settings(max_examples=200, deadline=None)
@given(text=st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=40))
def test_no_part_of_a_character_is_ever_shown(text: str) -> None:
    tokenizer = embedded_tokenizer()
    stream = detokenizer(tokenizer, skip_special_tokens=False)
    shown = ""
    ids = tokenizer.encode(text)
    assume(tokenizer.decode(ids, False) == text)  # this vocabulary lacks a few rare bytes
    for token in ids:
        shown += stream.push([token])
        assert text.startswith(shown)
    assert shown == text and stream.flush() == ""


def test_leading_space_belongs_to_an_answer_behind_text() -> None:
    tokenizer = sentencepiece_tokenizer()
    hello = tokenizer.encode("hello", add_special_tokens=False)
    assert detokenizer(tokenizer).push(hello) == "hello"
    assert detokenizer(tokenizer, [1]).push(hello) == "hello"
    assert detokenizer(tokenizer, [1, *hello]).push(hello) == " hello"


def test_unusual_decoders_go_through_a_window() -> None:
    core = Core(models.WordLevel({"a": 0, "b": 1, "[S]": 2}, "a"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(" "), "removed")
    core.add_special_tokens(["[S]"])
    tokenizer = Tokenizer(core)
    stream = detokenizer(tokenizer, skip_special_tokens=False)
    assert isinstance(stream, WindowDetokenizer)
    assert [stream.push([t]) for t in (0, 1, 2, 0)] == ["a", " b", " [S]", " a"]
    assert stream.flush() == ""


def test_garbage_without_an_end_is_not_decoded_again_and_again() -> None:
    core = Core(models.WordLevel({"a": 0, "\ufffd": 1}, "a"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(" "), "removed")
    tokenizer, decoded = Tokenizer(core), 0
    decode = tokenizer.decode

    def counted(ids: list[int], *more: bool) -> str:
        nonlocal decoded
        decoded += len(ids)
        return decode(ids, *more)

    tokenizer.decode = counted  # type: ignore[method-assign]
    stream, tokens = detokenizer(tokenizer), [1] * 1000 + [0]
    text = "".join(stream.push([token]) for token in tokens)
    assert text + stream.flush() == decode(tokens)
    assert decoded < 60 * len(tokens)


# -- stop strings --------------------------------------------------------------------------------


def first_completed(text: str, stops: list[str]) -> tuple[str, str] | None:
    """(text before it, stop) of the stop string that is complete first; ties: the longest."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            stop = max(found, key=len)
            return text[: end - len(stop)], stop
    return None


LETTERS = st.text(alphabet="abc", max_size=25)


@settings(max_examples=500, deadline=None)
@given(
    text=LETTERS,
    stops=st.lists(st.text(alphabet="abc", min_size=1, max_size=5), min_size=1, max_size=4),
    cuts=st.lists(st.integers(0, 25), max_size=8),
    keep=st.booleans(),
)
def test_stop_strings_do_not_depend_on_chunks(
    text: str, stops: list[str], cuts: list[int], keep: bool
) -> None:
    watch = StopStrings(stops, keep=keep)
    places = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    shown, matched = "", None
    for a, b in itertools.pairwise(places):
        out = watch.push(text[a:b])
        if isinstance(out, StopHit):
            shown, matched = shown + out.text, out.matched
            break
        shown += out
    else:
        shown += watch.flush()
    expected = first_completed(text, stops)
    if expected is None:
        assert (shown, matched) == (text, None)
    else:
        before, stop = expected
        assert matched == stop
        assert shown == (before + stop if keep else before)


@settings(max_examples=300, deadline=None)
@given(text=LETTERS, stops=st.lists(st.text("abc", min_size=1, max_size=5), min_size=1, max_size=3))
def test_only_the_beginning_of_a_stop_string_is_held_back(text: str, stops: list[str]) -> None:
    watch = StopStrings(stops)
    shown = ""
    for place, char in enumerate(text):
        out = watch.push(char)
        if isinstance(out, StopHit):
            return
        shown += out
        held = text[len(shown) : place + 1]
        assert text.startswith(shown)
        assert not held or any(stop.startswith(held) for stop in stops)
