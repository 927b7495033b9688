"""Masks against an oracle: every token of the vocabulary is tried."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from grammar_kit import (
    BACKEND,
    EOS,
    SIZE,
    allowed,
    compiled,
    obeys,
    schema_matcher,
    spell,
    walk_randomly,
)
from hypothesis import given
from hypothesis import strategies as st

from vivace.grammar import next_masks
from vivace.grammar.backend import GrammarMatcher, PlacedMatcher
from vivace.grammar.masks import mask_words
from vivace.grammar.next_masks import NextMasks
from vivace.grammar.processor import DraftBranches
from vivace.protocol.constraints import EBNF, JSON_SCHEMA, REGEX, STRUCTURAL_TAG

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "tags": {"type": "array", "items": {"enum": ["a", "ab", "ä"]}, "maxItems": 2},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
CONSTRAINTS = [
    (JSON_SCHEMA, PERSON),
    (JSON_SCHEMA, {"anyOf": [{"type": "null"}, {"type": "number"}, {"type": "boolean"}]}),
    (REGEX, "(ab|abc|ä)+-?[0-9]{1,3}"),
    (EBNF, 'root ::= "[" (root ("," root)*)? "]" | [0-9]+'),
]


LONG = {"type": "object", "properties": {"abcab": {"const": "trueab"}}, "required": ["abcab"]}


def test_what_is_forced_is_all_that_may_follow() -> None:
    rng, found = np.random.default_rng(3), 0
    for kind, what in [*CONSTRAINTS, (JSON_SCHEMA, LONG), (REGEX, "(ab|cd)(falsea|truec)")] * 3:
        matcher = compiled(kind, what)
        for _ in range(30):
            ahead = matcher.copy()
            for token in matcher.forced():
                assert np.flatnonzero(allowed(ahead)).tolist() == [token] and token != EOS
                assert ahead.accept([token]) == 1
                found += 1
            token = int(rng.choice(np.flatnonzero(allowed(matcher))))
            matcher.accept([token])
            if token == EOS:
                break
        assert not matcher.ended or not matcher.forced()
    assert found > 30


def test_masks_behind_drafts() -> None:
    matcher = compiled(REGEX, "abc+")
    before, branches = allowed(matcher), DraftBranches(matcher)
    for drafts in ([], [97], [97, 98], [97, 98, 99, 99], [97, 98, 99]):
        alone = compiled(REGEX, "abc+")
        alone.accept(drafts)
        found = branches.follow(tuple(drafts))
        assert found is not None and (allowed(found) == allowed(alone)).all()
    assert branches.follow((97, 97)) is branches.follow((97, 97, 98)) is None
    assert (allowed(matcher) == before).all()


def test_the_masks_of_rows_are_those_of_where_they_stand() -> None:
    """Rows come, go on, and begin anew, in any order; more of them than before."""
    rng, rows, masks = (
        np.random.default_rng(6),
        dict[int, GrammarMatcher](),
        NextMasks(BACKEND.fill),
    )
    for _ in range(60):
        masks.wait()
        moved = [row for row in rows if rng.random() < 0.6]
        for row in moved:
            ids = np.flatnonzero(allowed(rows[row]))
            rows[row].accept([int(rng.choice(ids))])
        masks.begin({row: rows[row] for row in moved})
        if rng.random() < 0.5:
            new = int(rng.integers(0, 4 + 2 * len(rows)))
            masks.drop(new)
            rows[new] = compiled(*CONSTRAINTS[int(rng.integers(0, len(CONSTRAINTS)))])
        chosen = np.array([row for row in rows if rng.random() < 0.7], np.int64)
        if len(chosen):
            found = masks.take(rows, chosen, mask_words(SIZE))
            bits = np.unpackbits(found.view(np.uint8), axis=1, count=SIZE, bitorder="little")
            assert (bits == [allowed(rows[row]) for row in chosen.tolist()]).all()


def test_masks_of_rows_behind_each_other_are_the_tables() -> None:
    """Until the next ones begin; those of others are copies."""
    masks, rows = NextMasks(BACKEND.fill), {row: compiled(REGEX, "abc") for row in range(3)}
    near, apart = (masks.take(rows, np.array(some), mask_words(SIZE)) for some in ([1, 2], [0, 2]))
    rows[2].accept([97])
    masks.begin({2: rows[2]})
    now = masks.take(rows, np.array([2]), mask_words(SIZE))[0]
    assert (near[1] == now).all() and (apart[1] != now).any()


class SlowMatcher:
    """Waits while its mask is filled."""

    def __init__(self, matcher: GrammarMatcher) -> None:
        self._matcher = matcher
        self.begun, self.goes_on = threading.Event(), threading.Event()

    def fill(self, mask: np.ndarray) -> None:
        self.begun.set()
        assert self.goes_on.wait(20)
        self._matcher.fill(mask)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._matcher, name)


def test_what_is_not_filled_ahead_all_threads_fill() -> None:
    rows: dict[int, Any] = {row: compiled(REGEX, "abc") for row in range(4)}
    together = list[int]()

    def fill(matchers: Sequence[PlacedMatcher], masks: np.ndarray) -> None:
        BACKEND.fill(matchers, masks)
        together.extend(row for _, row in matchers)
        slow.goes_on.set()

    slow: Any = SlowMatcher(rows[1])
    slow.goes_on.set()
    masks, chosen = NextMasks(fill), np.arange(4)
    masks.take(rows, chosen, mask_words(SIZE))
    together.clear()
    slow.goes_on.clear()
    for one in rows.values():
        one.accept([97])
    masks.begin(rows | {1: slow})
    assert slow.begun.wait(20)
    found = masks.take(rows, chosen, mask_words(SIZE))
    assert together == [2, 3]
    bits = np.unpackbits(found.view(np.uint8), axis=1, count=SIZE, bitorder="little")
    assert (bits == allowed(rows[0])).all()


class BrokenMatcher:
    def fill(self, mask: np.ndarray) -> None:
        raise IndexError("of a library")


def test_what_goes_wrong_ahead_is_told() -> None:
    """What came of the others is not known then: all masks are filled again."""
    rows: dict[int, Any] = {row: compiled(REGEX, "abc") for row in range(3)}
    masks, chosen = NextMasks(BACKEND.fill), np.arange(3)
    masks.take(rows, chosen, mask_words(SIZE))
    for one in rows.values():
        one.accept([97])
    broken: Any = BrokenMatcher()
    masks.begin(rows | {1: broken})
    with pytest.raises(IndexError):
        masks.wait()
    found = masks.take(rows, chosen, mask_words(SIZE))
    bits = np.unpackbits(found.view(np.uint8), axis=1, count=SIZE, bitorder="little")
    assert (bits == allowed(rows[0])).all()


def test_nobody_touches_a_matcher_while_it_is_filled() -> None:
    """Whatever goes wrong elsewhere meanwhile."""
    rows: dict[int, Any] = {row: compiled(REGEX, "abc") for row in range(2)}
    slow: Any = SlowMatcher(rows[0])
    fails = list[bool]()

    def fill(matchers: Sequence[PlacedMatcher], masks: np.ndarray) -> None:
        if fails:
            threading.Timer(0.2, slow.goes_on.set).start()
            raise IndexError("of a library")
        BACKEND.fill(matchers, masks)

    masks = NextMasks(fill)
    masks.take(rows, np.arange(2), mask_words(SIZE))
    masks.begin(rows | {0: slow})
    assert slow.begun.wait(20)
    fails.append(True)
    with pytest.raises(IndexError):
        masks.wait()
    assert slow.goes_on.is_set()


def test_nobody_waits_for_a_thread_that_has_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where others keep all cores busy."""
    goes_on, awake = threading.Event(), list[bool]()
    monkeypatch.setattr(next_masks, "give_way", lambda: awake.append(goes_on.wait(20)))
    rows: dict[int, Any] = {0: compiled(REGEX, "abc")}
    masks, chosen = NextMasks(BACKEND.fill), np.zeros(1, np.int64)
    for text in b"abc":
        masks.take(rows, chosen, mask_words(SIZE))
        rows[0].accept([text])
        masks.begin(rows)
    found = masks.take(rows, chosen, mask_words(SIZE))[0]
    assert not awake
    goes_on.set()
    bits = np.unpackbits(found.view(np.uint8), count=SIZE, bitorder="little")
    assert (bits == allowed(rows[0])).all()


def test_no_thread_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a limit of memory or processes leaves none."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    rows: dict[int, Any] = {0: compiled(REGEX, "abc")}
    masks, chosen = NextMasks(BACKEND.fill), np.zeros(1, np.int64)
    masks.take(rows, chosen, mask_words(SIZE))
    for text, start in zip(b"abc", (refuse, refuse, threading.Thread.start), strict=True):
        monkeypatch.setattr(threading.Thread, "start", start)
        rows[0].accept([text])
        masks.begin(rows)
        found = masks.take(rows, chosen, mask_words(SIZE))[0]
        bits = np.unpackbits(found.view(np.uint8), count=SIZE, bitorder="little")
        assert (bits == allowed(rows[0])).all()


@st.composite
def schemas(draw: st.DrawFn, depth: int = 2) -> dict[str, object]:
    kinds = ["string", "integer", "number", "boolean", "null", "enum", "const"]
    kind = draw(st.sampled_from([*kinds, "array", "object", "anyOf"] if depth else kinds))
    if kind == "enum":
        values = st.one_of(st.integers(-9, 9), st.text("ab", max_size=3), st.booleans())
        return {"enum": draw(st.lists(values, min_size=1, max_size=3))}
    if kind == "const":
        return {"const": draw(st.sampled_from([None, 1, "ä", [1, 2], {"a": []}]))}
    if kind == "anyOf":
        return {"anyOf": draw(st.lists(schemas(depth=depth - 1), min_size=1, max_size=3))}
    if kind == "string":
        return {"type": kind, "minLength": draw(st.integers(0, 2)), "maxLength": 4}
    if kind == "integer":
        return {"type": kind, "minimum": draw(st.integers(-20, 5)), "maximum": 120}
    if kind == "array":
        items = draw(schemas(depth=depth - 1))
        return {"type": kind, "items": items, "minItems": draw(st.integers(0, 2)), "maxItems": 3}
    if kind == "object":
        names = draw(st.lists(st.text("abä", min_size=1, max_size=2), unique=True, max_size=3))
        properties = {name: draw(schemas(depth=depth - 1)) for name in names}
        required = draw(st.lists(st.sampled_from(names), unique=True)) if names else []
        return {
            "type": kind,
            "properties": properties,
            "required": required,
            "additionalProperties": draw(st.booleans()),
        }
    return {"type": kind}


@given(schemas(), st.integers(0, 1 << 30))
def test_whatever_has_ended_obeys(schema: dict[str, object], seed: int) -> None:
    import jsonschema

    matcher = schema_matcher(schema)
    ids = walk_randomly(matcher, np.random.default_rng(seed), 120)
    if matcher.ended:
        jsonschema.validate(json.loads(spell(ids)), schema)


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ('{"name": "ab", "age": 3}', True),
        ('{"name":"ab","tags":["ä","a"],"age":150}', True),
        ('{"name":"ab","age":151}', False),
        ('{"age":1,"name":"ab"}', False),
        ('{"name":"ab"}', False),
        ('{"name":"ab","age":1,"x":2}', False),
    ],
)
def test_answers_that_obey_and_do_not(text: str, fits: bool) -> None:
    assert obeys(JSON_SCHEMA, PERSON, text) is fits


REPEATED = {"type": "regex", "pattern": "a+"}
FOREVER = [
    (EBNF, 'root ::= x "a"\nx ::= [a]+'),
    (EBNF, '%llguidance {"no_forcing": false}\nstart: /a+/ "a"'),
    (
        STRUCTURAL_TAG,
        {
            "format": {
                "type": "sequence",
                "elements": [REPEATED, {"type": "const_string", "value": "a"}],
            }
        },
    ),
]


@pytest.mark.parametrize(("kind", "what"), FOREVER)
def test_what_is_forced_for_ever_has_a_mask(kind: str, what: object) -> None:
    """A repetition takes every a, so that another one must follow: nobody may look for the end."""
    matcher = compiled(kind, what)
    for _ in range(5):
        assert allowed(matcher)[ord("a")] and matcher.accept([ord("a")]) == 1


def nest(depth: int) -> object:
    return [nest(depth - 1)] if depth else {"a": [1, "ä"], "b": {"c": None}}


@pytest.mark.parametrize("separators", [None, (",", ":"), (", ", ": ")])
@pytest.mark.parametrize("indent", [None, 0, 2, 4, "\t"])
def test_json_may_be_written_as_writers_of_json_do(
    indent: int | str | None, separators: tuple[str, str] | None
) -> None:
    for value in (nest(0), nest(97)):
        text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators)
        assert obeys(JSON_SCHEMA, {}, text) and obeys(JSON_SCHEMA, {}, text.replace("\n", "\r\n"))


def test_blanks_have_an_end() -> None:
    """Whatever stands between two parts, and however it is divided into tokens."""
    for blanks in ("  ", "\t ", "\n\n", "\n \n", "\n" + 401 * " "):
        assert not obeys(JSON_SCHEMA, {}, f'{{"a":{blanks}1}}')
    matcher, count = schema_matcher({"type": "object"}), 0
    matcher.accept([ord("{")])
    while found := [
        token for token in np.flatnonzero(allowed(matcher)).tolist() if not spell([token]).strip()
    ]:
        matcher.accept(found[:1])
        count += 1
    assert count <= 403
