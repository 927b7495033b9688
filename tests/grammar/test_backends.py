"""Every backend does the same with what it compiles: masks against an oracle, ends, copies,
batches. Answers that end obey, whatever the backend; which constraints xgrammar is given."""

from __future__ import annotations

import json
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from grammar_kit import (
    BACKEND,
    CALL,
    EOS,
    SIZE,
    VOCABULARY,
    allowed,
    spell,
    walk_randomly,
)
from random_constraints import random_schema

from vivace.grammar.backend import GrammarBackend, GrammarError, GrammarMatcher, JsonFormat
from vivace.grammar.masks import mask_words
from vivace.grammar.xgrammar_backend import XGrammarBackend, XGrammarMatcher
from vivace.grammar.xgrammar_scope import enforces, enforces_regex, enforces_tag
from vivace.protocol.constraints import EBNF, JSON_SCHEMA, REGEX, STRUCTURAL_TAG, Constraint

XGRAMMAR = pytest.param(
    "xgrammar",
    marks=pytest.mark.skipif(
        find_spec("xgrammar") is None, reason="the package xgrammar is not installed"
    ),
)
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "tags": {"type": "array", "items": {"enum": ["a", "ab", "ä"]}, "maxItems": 2},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
CALLS = {
    "type": "tags_with_separator",
    "tags": [
        {
            "type": "tag",
            "begin": "<f>",
            "content": {"type": "json_schema", "json_schema": PERSON},
            "end": "</f>",
        }
    ],
    "separator": ",",
    "at_least_one": True,
}
CONSTRAINTS = [
    (JSON_SCHEMA, PERSON),
    (JSON_SCHEMA, {"anyOf": [{"type": "null"}, {"type": "number"}, {"type": "boolean"}]}),
    (REGEX, "(ab|abc|ä)+-?[0-9]{1,3}"),
    (STRUCTURAL_TAG, {"format": CALLS}),
    (EBNF, 'root ::= "[" (root ("," root)*)? "]" | [0-9]+'),
]


@pytest.fixture(params=["llguidance", XGRAMMAR], scope="module")
def backend(request: pytest.FixtureRequest) -> GrammarBackend:
    return BACKEND if request.param == "llguidance" else by_xgrammar(JsonFormat())


def by_xgrammar(form: JsonFormat) -> XGrammarBackend:
    return XGrammarBackend(VOCABULARY, form, BACKEND, checked=True)


def compiled(backend: GrammarBackend, kind: str, what: Any) -> GrammarMatcher:
    text = what if isinstance(what, str) else json.dumps(what)
    return backend.compile(Constraint(kind=kind, text=text))


@pytest.mark.parametrize(("kind", "what"), CONSTRAINTS)
def test_a_token_is_allowed_exactly_when_the_matcher_takes_it(
    backend: GrammarBackend, kind: str, what: object
) -> None:
    rng = np.random.default_rng(1)
    matcher = compiled(backend, kind, what)
    for _ in range(25):
        bits = allowed(matcher)
        tried = [matcher.copy().accept([token]) == 1 for token in range(SIZE)]
        assert bits.tolist() == tried == [matcher.allows(token) for token in range(SIZE)]
        token = int(rng.choice(np.flatnonzero(bits)))
        matcher.accept([token])
        if token == EOS:
            break


@pytest.mark.parametrize(("kind", "what"), CONSTRAINTS)
def test_copies_go_their_own_ways(backend: GrammarBackend, kind: str, what: object) -> None:
    walked = walk_randomly(compiled(backend, kind, what), np.random.default_rng(2), 30)
    matcher, copies, masks = compiled(backend, kind, what), [], []
    for token in walked:
        masks.append(allowed(matcher))
        copies.append(matcher.copy())
        assert matcher.accept([token]) == 1
    for copy, mask in zip(copies, masks, strict=True):
        assert (allowed(copy) == mask).all()


def test_the_end_is_possible_exactly_where_the_answer_obeys(backend: GrammarBackend) -> None:
    matcher = compiled(backend, REGEX, "ab?")
    assert not allowed(matcher)[EOS]
    matcher.accept([ord("a")])
    assert set(np.flatnonzero(allowed(matcher))) == {EOS, ord("b")} and not matcher.ended
    assert matcher.accept([ord("b"), CALL]) == 1
    for _ in range(3):
        assert set(np.flatnonzero(allowed(matcher))) == {EOS} and matcher.ended
        assert matcher.accept([EOS]) == 1
    assert matcher.accept([ord("b")]) == 0 and matcher.accept([EOS, EOS]) == 2


def test_masks_of_many_at_once_are_those_of_each(backend: GrammarBackend) -> None:
    """Also of those that have ended; places in any order."""
    rng = np.random.default_rng(5)
    matchers = [compiled(backend, kind, what) for kind, what in CONSTRAINTS for _ in range(3)]
    for matcher in matchers:
        walk_randomly(matcher, rng, int(rng.integers(0, 30)))
    wanted = np.stack([allowed(matcher) for matcher in matchers])
    places = rng.permutation(len(matchers) + 2)[: len(matchers)]
    masks = np.full((len(matchers) + 2, mask_words(SIZE)), 7, np.int32)
    backend.fill(list(zip(matchers, places.tolist(), strict=True)), masks)
    bits = np.unpackbits(masks.view(np.uint8), axis=1, count=SIZE, bitorder="little")
    assert (bits[places] == wanted).all()
    others = np.setdiff1d(np.arange(len(masks)), places)
    assert (masks[others] == 7).all()


def test_random_schemas_are_obeyed(backend: GrammarBackend) -> None:
    from random import Random

    import jsonschema

    ended = 0
    for seed in range(300):
        schema, rng = random_schema(Random(seed), 2), np.random.default_rng(seed)
        try:
            matcher = compiled(backend, JSON_SCHEMA, schema)
            jsonschema.Draft202012Validator.check_schema(schema)
        except (GrammarError, jsonschema.SchemaError):
            continue
        ids = walk_randomly(matcher, rng, 60)
        if matcher.ended:
            ended += 1
            jsonschema.validate(json.loads(spell(ids)), schema)
    assert ended > 30


ENDLESS = {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}
ENDLESS_TAG = {"format": {"type": "json_schema", "json_schema": ENDLESS}}


@pytest.mark.parametrize(
    ("kind", "what", "why"),
    [
        (JSON_SCHEMA, ENDLESS, "recurses"),
        (STRUCTURAL_TAG, ENDLESS_TAG, "recurses"),
        (REGEX, "a(?=b)", "look"),
        (EBNF, 'root ::= "a" root', "never"),
    ],
)
def test_what_can_never_be_obeyed_is_refused(
    backend: GrammarBackend, kind: str, what: object, why: str
) -> None:
    with pytest.raises(GrammarError, match=why):
        compiled(backend, kind, what)


@pytest.mark.parametrize("name", [XGRAMMAR])
def test_xgrammar_is_given_what_it_enforces(name: str) -> None:
    made, compact = by_xgrammar(JsonFormat()), by_xgrammar(JsonFormat(compact=True))
    pattern = by_xgrammar(JsonFormat(whitespace=" "))
    for (kind, what), own in zip(CONSTRAINTS, [True, True, True, True, False], strict=True):
        assert isinstance(compiled(made, kind, what), XGrammarMatcher) is own
        assert not isinstance(compiled(pattern, kind, what), XGrammarMatcher) or kind == REGEX
    matcher = compiled(compact, JSON_SCHEMA, {"type": "array", "items": {"type": "null"}})
    assert isinstance(matcher, XGrammarMatcher) and matcher.accept(list(b"[null, ")) == 6


ENFORCED = [
    True,
    {},
    {"$defs": {"a": {"type": "null"}}, "$ref": "#/$defs/a", "title": "x"},
    {"type": ["string", "null"]},
    {"anyOf": [{"const": "a"}, {"enum": [1, None, True]}]},
    {"type": "object", "additionalProperties": {"type": "boolean"}},
    {"type": "array", "prefixItems": [{}], "items": False, "minItems": 1},
]
LEFT_OUT = [
    {"maxLength": 3},
    {"type": "string", "maxLength": 3},
    {"type": "string", "pattern": "a"},
    {"type": "number", "maximum": 0},
    {"type": "integer", "multipleOf": 2},
    {"type": "integer", "minimum": 1 << 60},
    {"enum": [0.1]},
    {"const": {"a": 1}},
    {"$ref": "other.json"},
    {"$ref": "#/$defs/a", "minItems": 1},
    {"allOf": [{}, {}]},
    {"oneOf": [{"type": "null"}]},
    {"anyOf": []},
    {"anyOf": [{"type": "null"}], "type": "null"},
    {"type": "object", "required": ["a"]},
    {"type": "object", "properties": {"a": {}}, "additionalProperties": True},
    {"type": "object", "properties": {'a"': {}}},
    {"type": "object", "patternProperties": {"a": {}}},
]


def test_which_schemas_xgrammar_enforces() -> None:
    assert all(map(enforces, ENFORCED))
    for schema in LEFT_OUT:
        for whole in (
            schema,
            {"type": "array", "items": schema},
            {"type": "object", "properties": {"a": schema}},
            {"$defs": {"a": schema}, "$ref": "#/$defs/a"},
            {"anyOf": [{"type": "null"}, schema]},
        ):
            assert not enforces(whole), whole


def test_which_expressions_and_tags_xgrammar_enforces() -> None:
    for pattern in ("a+", "(a|b){2,3}", r"\d\.\w", "[^a-z]*", r"[\]\\-]"):
        assert enforces_regex(pattern), pattern
    for pattern in ("a.", "^a", "a$", r"\s", r"[^\d]", "(?i)a", r"\b", "[[:alpha:]]"):
        assert not enforces_regex(pattern), pattern
    assert enforces_tag(CALLS, ["<|call|>"]) and not enforces_tag(CALLS, ["<f>"])
    newlines = {"type": "optional_newlines", "format": {"type": "const_string", "value": "a"}}
    obeying = {**CALLS, "patterns": ["a"]}
    for part in ({"type": "any_text"}, {"type": "regex", "pattern": "a"}, newlines, obeying):
        assert not enforces_tag({"type": "sequence", "elements": [part]}, [])
