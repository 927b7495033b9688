"""Patterns of strings and of names: what may be an answer fits them, and what fits them may be one,
but for U+0000 where a set has no quote or no backslash. Python's `re` is the judge."""

from __future__ import annotations

import json
import re
import time
import warnings
from contextlib import suppress
from itertools import product
from typing import Any

import pytest
from grammar_kit import EOS, schema_matcher
from hypothesis import given, settings
from hypothesis import strategies as st

from vivace.grammar.backend import GrammarError, GrammarMatcher
from vivace.grammar.llguidance_backend import CHARACTER
from vivace.grammar.schema_patterns import UNWRITTEN, rust_pattern

ALPHABET = '"\\\x00\x01\n\x1b\x7f\u2028a'
TEXTS = ["".join(text) for count in range(3) for text in product(ALPHABET, repeat=count)]
MEMBERS = ["a", '"', r"\"", r"\\", r"\x00", "\x00", r"\n", r"\x01-\x1f", r"\x00-\x0f", r"\x10-\x1f"]
MEMBERS += [
    r"\x00-\x1f",
    r"\x00-\x21",
    r"\x20-\x7e",
    r"\x7f",
    r"\d",
    r"\s",
    r"\D",
    "/:*?<>|",
    "\u2028",
]
OTHERS = [
    (r"\p{Cc}", r"[\x00-\x1f\x7f-\x9f]"),
    (r"\P{L}", r"[\W\d_]"),
    (r"[^\p{Cc}\p{P}]", r"[^\x00-\x1f\x7f-\x9f\"\\]"),
    (r"\p{Greek}", "[\u0391-\u03c9]"),
    (r"(?i:[^A\"])", r"[^aA\"]"),
    (".", r"[^\n\r\u2028\u2029]"),
    *((one, one) for one in ("(?s:.)", r"\D", r"\W", r"\S", r"\x00", r"\"", r"\\", "a")),
    (r"[^a&&[^\"]", r"[^a&\[\^\"]"),
    (r"[\x00-\x7f~~\\]", r"[\x00-\x7f]"),
    (r"[\\[^\n\\[\"]", r"[\\\[\^\n\"]"),
]
"""as they are given, and as Python reads them as ECMA-262 does"""


def _sets(members: list[str], negated: bool) -> tuple[str, str]:
    text = f"[{'^' * negated}{''.join(members)}]"
    return text, text


SETS = st.builds(_sets, st.lists(st.sampled_from(MEMBERS), min_size=1, max_size=3), st.booleans())
ATOMS = st.one_of(SETS, st.sampled_from(OTHERS))
REPEATED = st.tuples(ATOMS, st.sampled_from(["", "", "?", "*", "{2}"])).map(
    lambda found: tuple(side + found[1] for side in found[0])
)
JOINED = st.lists(REPEATED, min_size=1, max_size=3).map(
    lambda some: tuple(map("".join, zip(*some, strict=True)))
)
PATTERNS = st.lists(JOINED, min_size=1, max_size=3).map(
    lambda some: tuple(f"^(?:{'|'.join(side)})$" for side in zip(*some, strict=True))
)


@settings(max_examples=150, deadline=None)
@given(PATTERNS, st.sampled_from([None, 1]))
def test_strings_fit_their_pattern(pattern: tuple[str, str], most: int | None) -> None:
    schema = {"type": "string", "pattern": pattern[0]}
    judge = re.compile(pattern[1][:-1] + r"\Z")
    try:
        start = schema_matcher(schema if most is None else {**schema, "maxLength": most})
    except GrammarError:
        start = None
    for text in TEXTS:
        good = judge.match(text) is not None and (most is None or len(text) <= most)
        if _may_be(start, text) != good:
            assert good and "\0" in text, (pattern, text)


@pytest.mark.parametrize("pattern", ['^[^"\n]$', r"^[^\\\n]$", r'^([^"\n\\]|[^"\n])$'])
def test_sets_without_line_breaks_have_no_quotes(pattern: str) -> None:
    for value in ['"', "\\", "a"]:
        good = re.search(pattern, value) is not None
        assert _may_be(schema_matcher({"pattern": pattern}), value) == good
        names = {"patternProperties": {pattern: {}}, "additionalProperties": False}
        assert _may_be(schema_matcher({"type": "object", **names}), {value: 1}) == good


def _may_be(start: GrammarMatcher | None, value: Any) -> bool:
    ids = [*json.dumps(value, ensure_ascii=False).replace("\x7f", r"\u007f").encode(), EOS]
    return start is not None and start.copy().accept(ids) == len(ids)


@pytest.mark.parametrize("pattern", ['^[^"]$', r"^[\x00-\x1f]$", "^[^/]$", r"^[^\\]$", "^a"])
def test_names_fit_their_patterns(pattern: str) -> None:
    schema = {"type": "object", "patternProperties": {pattern: {"type": "integer"}}}
    closed = {**schema, "additionalProperties": False}
    for name in [*ALPHABET, "ab"]:
        good = re.search(pattern, name) is not None
        for value, form in product((1, "x"), (schema, closed)):
            valid = value == 1 if good else form is schema
            found = _may_be(schema_matcher(form), {name: value})
            unwritten = UNWRITTEN if form is schema else "\0"
            assert found == valid or (valid and name in unwritten), (name, value)


APART = [
    (r"^\W$", "é"),
    (r"^[^\w]$", "é"),
    (r"^[\D]$", "\u0663"),
    (r"^\d$", "\u0663"),
    ("^.$", "\r"),
]
APART += [(r"^\s$", "\ufeff"), (r"^\S$", "\x85"), ("^a$", "a\n"), ("(^x|a$)", "a\n")]


@pytest.mark.parametrize(("pattern", "name"), APART)
def test_names_that_fit_for_one_reader_only_are_no_others(pattern: str, name: str) -> None:
    schema = {"type": "object", "patternProperties": {pattern: {"type": "integer"}}}
    for form in (schema, {**schema, "properties": {name: {}}, "additionalProperties": {}}):
        assert [_may_be(schema_matcher(form), {name: value}) for value in (1, "x")] == [True, False]
    closed = schema_matcher({**schema, "additionalProperties": False})
    assert not any(_may_be(closed, {name: value}) for value in (1, "x"))


@pytest.mark.parametrize(("pattern", "name"), APART)
def test_names_beside_others_with_a_schema_are_as_ecma_262_has_them(
    pattern: str, name: str
) -> None:
    schema = {"patternProperties": {pattern: {"type": "integer"}}, "type": "object"}
    schema["properties"] = {name: {"type": "string"}}
    for others in ({"type": "string"}, False):
        form = {**schema, "additionalProperties": others}
        if re.search(r"\\[SsWD]|\^\\w", pattern):
            with pytest.raises(GrammarError, match="ECMA"):
                schema_matcher(form)
        else:
            assert _may_be(schema_matcher(form), {name: "x"})


@pytest.mark.parametrize(
    "pattern", [r"\x7f", "\x7f", r"[\x7f]", r"[\u007F\x7f-\x7f]", r"\u{7f}b", r"(\x7f|b)"]
)
def test_what_has_no_spelling_is_not_left_out(pattern: str) -> None:
    """`^\\x7fb$` would be `^b$`."""
    named = {"type": "object", "patternProperties": {f"^{pattern}$": {}}}
    valued = {"properties": {"a": {"pattern": f"^{pattern}$"}}, "additionalProperties": True}
    for schema in (named, {"type": "object", **valued}):
        with pytest.raises(GrammarError, match="control"):
            schema_matcher(schema)
    assert _may_be(schema_matcher({"type": "string", "pattern": r"^[\x7f]b$"}), "\x7fb")


def test_names_that_fit_alike_may_stand_beside_others() -> None:
    named = {"^x-[0-9]+$": {"type": "integer"}}
    start = schema_matcher({"patternProperties": named, "additionalProperties": {"type": "null"}})
    assert _may_be(start, {"x-1": 1, "é": None})
    assert not _may_be(start, {"x-1": None})


def test_what_names_with_a_zero_would_get_is_not_left_open() -> None:
    named = {"patternProperties": {'[^"]': {"type": "integer"}}, "additionalProperties": False}
    with pytest.raises(GrammarError, match="patternProperties"):
        schema_matcher({"items": {**named, "properties": {"\0": {"type": "string"}}}})
    schema_matcher({"items": {**named, "properties": {"a": {"type": "integer"}}}})


def test_what_is_wrong_below_a_pattern_is_told_with_its_name() -> None:
    named = {r"^\d$": {"not": {"type": "null"}}, "^a$": True}
    with pytest.raises(GrammarError, match="not") as caught:
        schema_matcher({"items": {"patternProperties": named}})
    assert r"items.patternProperties.^\d$.not:" in str(caught.value)


def test_references_lead_below_expressions_that_are_written_in_other_words() -> None:
    list_or_null = {"type": ["array", "null"], "items": {"$ref": "#/patternProperties/%5E%5Cd$"}}
    start = schema_matcher({"patternProperties": {r"^\d$": list_or_null}, "type": "object"})
    assert _may_be(start, {"1": [[None]]})
    assert not _may_be(start, {"1": [[1]]})


def test_expressions_that_mean_the_same_are_refused() -> None:
    with pytest.raises(GrammarError, match="same"):
        schema_matcher({"patternProperties": {r"^\d$": {"type": "null"}, "^[0-9]$": {}}})


SIGNS = [
    *'[[]]^^-&~:ab"\\{}|ik.*+?$\u0130\u017f\u212a',
    *"[^ a- -b && -- ~~ [: (?i:".split(),
]
SIGNS += [*(f"\\{one}" for one in '\\"[]-^dDwWsSbBAzZaechu01<'), r"\x41", r"\u0041", "{,2}", "{2}"]
SETS_OF_SIGNS = st.lists(st.sampled_from(SIGNS), min_size=1, max_size=5).map("".join)
SHORT = [
    *'ab[]^-&~:"\\{}dwsik9AK|.+ \n\r\b\x1c\x85\xa0\u0663\xe9\u0130\u0131\u017f\u2028\u212a\ufeff',
    "",
]
SHORT += ["".join(text) for text in product("a]b[-", repeat=2)]


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.one_of(SETS_OF_SIGNS, SETS_OF_SIGNS.map("[{}]".format)), max_size=3),
    st.sampled_from(["", "", "(?i)", "(?s)"]),
)
def test_nothing_fits_that_python_refuses(parts: list[str], flags: str) -> None:
    pattern = f"{flags}^{''.join(parts)}$"
    with suppress(re.error, GrammarError), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        judge = re.compile(pattern)
        start = schema_matcher({"type": "string", "pattern": pattern})
        assert not [text for text in SHORT if not judge.search(text) and _may_be(start, text)]


READ = [
    ("[[a]]", ["[]", "a]"], ["a", "[a]"]),
    ("[a&&b]", ["a", "b", "&"], ["ab"]),
    ("[!--]", ["!", "+", ","], ["."]),
    ("[a~~b]", ["a", "~"], []),
    ("[a-][-b]", ["a-", "-b"], ["ab-"]),
    (r"[\w-.]", ["a", "-", "."], ["+"]),
    (r"[\b\-][\]]\0?", ["\b]", "-]"], ["b]"]),
    (r"\<\é", ["<é"], [r"\<é"]),
    (r"\d\w", ["1a"], ["٣a", "1é"]),
    (r"[^\W]\D[^\d]", ["a--", "_é-"], ["é--", "a٣-"]),
    (r"\s[^\S]", ["\xa0 ", "\n\u2028"], ["\x85 ", "\ufeff ", "\x1c ", " \x85"]),
    (r"\S[^\s]", ["aé"], ["a\xa0", "a\x85", "\ufeffa", "\x1ca", "a\ufeff"]),
    (".", ["a", "\x85"], ["\n", "\r", "\u2028", "\u2029"]),
    ("(?i:[^h-j][^k])", ["kj", "lj"], ["\u0130j", "\u0131j", "ij", "l\u212a"]),
    (r"\u{1F600}[\u{61}-c]\p{Lu}", ["😀bA"], ["😀ba"]),
    (r"[\w\W][\S\s][\d\D]", ["aaa", "é\x85\u0663"], ["aa"]),
    (r"[\w\\W-]+", ["a\\W-"], ["é"]),
]


@pytest.mark.parametrize(("pattern", "good", "bad"), READ)
def test_expressions_are_read_as_ecma_262_does(
    pattern: str, good: list[str], bad: list[str]
) -> None:
    start = schema_matcher({"type": "string", "pattern": f"^{pattern}$"})
    assert all(_may_be(start, text) for text in good)
    assert not any(_may_be(start, text) for text in bad)


@pytest.mark.parametrize(
    "pattern", ["(?" + "i" * 60_000, "[" + r"\w\W" * 20_000 + "]", "[a-b]" * 20_000]
)
def test_long_expressions_take_little(pattern: str) -> None:
    begun = time.thread_time()
    rust_pattern(pattern)
    assert time.thread_time() - begun < 1.0


def test_tokens_of_plain_characters_fit_a_dot_together() -> None:
    """Else a mask behind `.{5,200}` takes forty times as long."""
    plain, dot = re.compile(CHARACTER), re.compile(rust_pattern("."))
    every = [*map(chr, range(0xD800)), *map(chr, range(0xE000, 0x11000))]
    assert all(dot.fullmatch(one) for one in every if plain.fullmatch(one))


REFUSED = [
    *(("(?x)a b", "flag"), ("(?i-x:a)(?sx: a)", "flag"), ("(?R)a", "flag")),
    *(("[[:alpha:]]", "A-Za-z"), ("[a[:^digit:]]", "POSIX"), ("[]a]", "bracket")),
    *(("[^]a]", "bracket"), ("[^]", "sets"), ("[a", "end"), ("a\\", "end"), ("(?#a)b", "comment")),
    *((f"a{one}", "group") for one in ("*+", "++", "{2}+", "?+", "**", "{2}{3}", "*??")),
    *((one, "group") for one in ("^*a", "a$?", "^{1}")),
    *((rf"{one}a", "alike") for one in (r"\A", r"\z", r"\Z", r"\a", r"\h", r"\e", r"\Q", r"\q")),
    *((one, "alike") for one in (r"\pL", r"\x{61}", r"\01", r"(a)\1", r"[\1]", r"\cA", r"\ud83d")),
    *((one, "pattern") for one in ("[z-a]", "a{,3}", "(?=a)b", "(?>a)", r"\u{110000}")),
]


@pytest.mark.parametrize(("pattern", "told"), REFUSED)
def test_patterns_that_are_not_read_are_refused(pattern: str, told: str) -> None:
    for schema in ({"pattern": pattern}, {"patternProperties": {pattern: {"type": "null"}}}):
        with pytest.raises(GrammarError, match=told) as caught:
            schema_matcher({"items": schema})
        assert f"items.{min(schema)}" in str(caught.value)


BRACED = [
    "^{a}$",
    r"^\${{a}}$",
    "^a{ 1}$",
    "^a{1,2}{b$",
    "^a{1}$",
    r"^[{]\x61{2,}\p{L}$",
    "^a{b,1}$",
]


@pytest.mark.parametrize("pattern", BRACED)
def test_braces_that_repeat_nothing_are_characters(pattern: str) -> None:
    judge = re.compile(pattern.replace(r"\p{L}", "[a-z]"))
    braced = {"type": "object", "patternProperties": {pattern: {"type": "integer"}}}
    for text in ["{a}", "${{a}}", "a{ 1}", "a", "aa{b", "a{b", "{aab", "a{b,1}", "{a"]:
        good = judge.search(text) is not None
        assert _may_be(schema_matcher({"type": "string", "pattern": pattern}), text) == good
        assert _may_be(schema_matcher({**braced, "additionalProperties": False}), {text: 1}) == good
