"""Which objects have other properties than they name, and that no spelling makes a name another
one. `jsonschema` is the judge: what may be an answer is valid, closed or not."""

from __future__ import annotations

import json
from itertools import permutations, product
from typing import Any

import jsonschema
import pytest
from grammar_kit import EOS, obeys, schema_matcher
from hypothesis import given, settings
from hypothesis import strategies as st

from vivace.grammar.backend import GrammarError, GrammarMatcher
from vivace.grammar.schema_objects import close_objects
from vivace.protocol.constraints import JSON_SCHEMA, STRUCTURAL_TAG

NUMBER, TEXT = {"type": "integer"}, {"type": "string"}
A: dict[str, Any] = {"type": "object", "properties": {"a": NUMBER}}
B: dict[str, Any] = {"properties": {"b": NUMBER}}
SPELLINGS = {
    "a": ["a", r"\u0061"],
    "J/": ["J/", r"\u004A/", r"\u004a/", r"J\/", r"J\u002f", r"J\u002F"],
    "\n\x1f": [r"\n\u001f", r"\n\u001F", r"\u000a\u001f", r"\u000A\u001F"],
    "\x7f": ["\x7f", r"\u007f", r"\u007F"],
    '"\\': [r"\"\\", r"\u0022\\", r"\"\u005c", r"\"\u005C"],
    "\U0001f600": ["\U0001f600", r"\ud83d\ude00", r"\uD83D\uDE00"],
    "é": ["é", r"\u00e9", r"\u00E9"],
}
"""of names, as `json.dumps` has it first"""
OPEN: list[dict[str, Any]] = [
    {"additionalProperties": True},
    {"additionalProperties": {}},
    {"additionalProperties": TEXT},
    {"unevaluatedProperties": True},
    {"patternProperties": {"": {}}, "additionalProperties": False},
    {"patternProperties": {"^x-": NUMBER}},
    {"patternProperties": {"^x-": NUMBER}, "additionalProperties": TEXT},
    {"allOf": [{"additionalProperties": {}}]},
    {"allOf": [{"properties": {"b": TEXT}, "additionalProperties": True}]},
    {"allOf": [{"patternProperties": {"^x-": NUMBER}}, {"properties": {"b": {}}}]},
    {"$ref": "#/$defs/more", "$defs": {"more": {"required": ["b"], "properties": {"c": {}}}}},
    {"anyOf": [{"required": ["b"]}, {"properties": {"c": TEXT}}]},
]
"""beside named properties"""


def members(*pairs: tuple[str, Any]) -> str:
    """Names are written as they are."""
    return "{" + ",".join(f'"{name}":{json.dumps(value)}' for name, value in pairs) + "}"


def may_be(start: GrammarMatcher, text: str) -> bool:
    ids = [*text.encode(), EOS]
    return start.copy().accept(ids) == len(ids)


@pytest.mark.parametrize("beside", OPEN)
@pytest.mark.parametrize("name", SPELLINGS)
def test_no_spelling_makes_a_name_another_one(beside: dict[str, Any], name: str) -> None:
    schema = {"type": "object", "properties": {name: NUMBER}, **beside}
    start, rest = schema_matcher(schema), [("b", "y")]
    for spelled in SPELLINGS[name]:
        for pairs in permutations([(spelled, "x"), *rest]):
            assert not may_be(start, members(*pairs)), pairs
        assert not may_be(start, members((spelled, "x")))
    assert may_be(start, members((SPELLINGS[name][0], 1), *rest))


@pytest.mark.parametrize("spelled", ["x-1", r"\u0078-1", r"x\u002d1", r"\u0078\u002D1"])
def test_no_spelling_makes_a_name_fit_no_pattern(spelled: str) -> None:
    for beside in ({}, {"additionalProperties": TEXT}, {"properties": {"a": {}}}):
        start = schema_matcher({"type": "object", "patternProperties": {"^x-": NUMBER}, **beside})
        assert not may_be(start, members((spelled, "x")))
        assert may_be(start, members(("x-1", 1), ("y", "x")))


def test_values_have_no_code_where_names_must_not() -> None:
    """All texts of a schema are spelled alike: what has to be written so is refused there."""
    assert obeys(JSON_SCHEMA, TEXT, r'"\u001b"') and obeys(JSON_SCHEMA, A, '{"a":1}')
    named: dict[str, Any] = {"properties": {"a": TEXT}}
    assert obeys(JSON_SCHEMA, named, r'{"a":"\u001b\n"}')
    named["additionalProperties"] = True
    assert obeys(JSON_SCHEMA, named, r'{"a":"\n\t\"\\","b":"\r\b\f"}')
    assert not obeys(JSON_SCHEMA, named, r'{"a":"\u001b"}')
    for wrong in ({"const": "\x1b"}, {"enum": ["a", ["\x7f"]]}, {"pattern": r"^\x1b\["}):
        keyword = min(wrong)
        with pytest.raises(GrammarError, match=keyword):
            schema_matcher({"items": {**A, "additionalProperties": True}, "prefixItems": [wrong]})
        schema_matcher({"items": A, "prefixItems": [wrong]})
    kept = {**A, "additionalProperties": {"pattern": r"^[^\x00-\x1f]\n$", "const": "a\n"}}
    assert obeys(JSON_SCHEMA, kept, r'{"b":"a\n"}')


def test_schemas_in_tags_are_spelled_so_too() -> None:
    def tag(schema: Any) -> dict[str, Any]:
        inner = {"type": "json_schema", "json_schema": schema}
        return {"format": {"type": "tag", "begin": "<f>", "content": inner, "end": "</f>"}}

    opened = tag({**A, "additionalProperties": True})
    assert obeys(STRUCTURAL_TAG, opened, '<f>{"b":1}</f>')
    assert not obeys(STRUCTURAL_TAG, opened, r'<f>{"\u0061":"x"}</f>')
    assert not obeys(STRUCTURAL_TAG, tag(A), '<f>{"b":1}</f>')


A_IN_IT = {**A, "required": ["a"]}
REF = {"$ref": "#/$defs/a"}
DEFINED = {"$defs": {"a": A}}
KINDS = [
    {"type": "object", "properties": {"kind": {"const": kind}, kind: NUMBER}, "required": ["kind"]}
    for kind in "ab"
]
CLOSED: list[tuple[dict[str, Any], str]] = [
    (A, '{"a":1}'),
    ({"properties": {"a": NUMBER}}, '{"a":1}'),
    ({**A, "required": ["a"]}, '{"a":1}'),
    ({**A, "type": ["object", "null"]}, '{"a":1}'),
    ({**A, "minProperties": 1}, '{"a":1}'),
    ({**A, "anyOf": [{"required": ["a"]}, {"properties": {"a": {"minimum": 3}}}]}, '{"a":1}'),
    ({**A, "allOf": [{"properties": {"a": {"minimum": 0}}}]}, '{"a":1}'),
    ({**REF, **DEFINED}, '{"a":1}'),
    ({**REF, **DEFINED, "description": "x", "default": {}}, '{"a":1}'),
    ({"allOf": [REF], **DEFINED, "title": "x"}, '{"a":1}'),
    ({"anyOf": [REF, {"type": "null"}], **DEFINED}, '{"a":1}'),
    ({"type": "object", "anyOf": [A, {"properties": {"c": TEXT}}]}, '{"a":1}'),
    ({"discriminator": {}, "oneOf": [{"$ref": "#/x/0"}, {"$ref": "#/x/1"}], "x": KINDS}, ""),
    ({"oneOf": [*KINDS, {"type": "string"}, {"enum": [1, None]}]}, ""),
    ({"oneOf": [A, {"type": "null"}]}, '{"a":1}'),
]
"""and an answer"""


@pytest.mark.parametrize(("schema", "text"), CLOSED)
def test_what_names_properties_has_no_others(schema: dict[str, Any], text: str) -> None:
    text = text or '{"kind":"a","a":1}'
    start = schema_matcher(schema)
    assert may_be(start, text), "its own"
    assert not may_be(start, text.replace("}", ',"z":1}'))
    inside = schema_matcher({"items": schema, **DEFINED, "x": KINDS})
    assert may_be(inside, f"[{text}]") and not may_be(inside, f'[{text[:-1]},"z":1}}]')


@pytest.mark.parametrize("beside", [{}, {"type": "object"}, {"title": "NoArguments"}])
def test_no_properties_are_all_that_there_are(beside: dict[str, Any]) -> None:
    """Tools that take nothing are described so."""
    start = schema_matcher({"properties": {}, **beside})
    assert may_be(start, "{}") and not may_be(start, '{"a":1}')
    assert may_be(schema_matcher({"properties": {}, "minProperties": 1}), '{"a":1}')


LEFT_OPEN: list[dict[str, Any]] = [
    {},
    {"type": "object"},
    {**A, "additionalProperties": True},
    {**A, "required": ["b"]},
    {**A, "required": ["a"], "minProperties": 2},
    {"allOf": [A, B]},
    {"allOf": [A, {"required": ["b"]}]},
    {**REF, **DEFINED, "properties": {"b": NUMBER}},
    {**A, "allOf": [B]},
    {**A, "anyOf": [B, {}]},
    {**A, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
    {"required": ["b"], "anyOf": [A, B]},
    {"allOf": [{"anyOf": [A, B]}, {"anyOf": [{"allOf": [REF]}]}], **DEFINED},
    {"allOf": [REF, B], **DEFINED, "items": REF},
    {**A, "allOf": [{"additionalProperties": NUMBER}]},
]


@pytest.mark.parametrize("schema", LEFT_OPEN)
def test_what_is_said_together_stays_open(schema: dict[str, Any]) -> None:
    """Closed, a part of it would forbid what another one names, or demands."""
    assert obeys(JSON_SCHEMA, schema, '{"a":1,"b":2}')
    assert not obeys(JSON_SCHEMA, schema, r'{"\u0061":"x","b":2}') or "a" not in str(schema)


@pytest.mark.parametrize(
    "choices",
    [
        [A_IN_IT, B],
        [{"const": {"a": 1}}, B],
        [{"properties": {"p": A_IN_IT}, "required": ["p"]}, {"required": ["p"]}],
        [{"properties": {"p": A_IN_IT}, "required": ["p"]}, {"properties": {"p": B}}],
        [{**KINDS[0], "required": []}, {**KINDS[1], "required": []}],
        [A, True],
    ],
)
def test_choices_exclude_each_other_only_where_they_do_open(choices: list[Any]) -> None:
    """`oneOf` forbids what two of them allow: closed, they could not both allow it."""
    schema = {"oneOf": [{"type": "object", **one} if one is not True else one for one in choices]}
    with pytest.raises(GrammarError, match="oneOf"):
        schema_matcher(schema)


def test_what_many_schemas_say_together_stays_open() -> None:
    """Each refers to the next: of every one the first are looked at."""
    chain: dict[str, Any] = {
        str(i): {"properties": {"a": {}}, "$ref": f"#/$defs/{i + 1}"} for i in range(1500)
    }
    schema = {"items": {"$ref": "#/$defs/0"}, "$defs": {**chain, "1500": {"properties": {"a": {}}}}}
    loop = {"items": {"properties": {"a": {}}, "anyOf": [{"$ref": "#/items"}, {}]}}
    for one, path in ((schema, ("$defs", "0")), (loop, ("items",))):
        close_objects(one)
        for key in path:
            one = one[key]
        assert "additionalProperties" not in one


NAMES = ["a", "b", "/", "\n", "\U0001f600"]
VALUES = st.sampled_from([NUMBER, TEXT, {"const": "k"}, {"const": "x"}, {}, False])
OTHERS = st.sampled_from([None, None, None, True, False, NUMBER, TEXT])
OBJECTS = st.builds(
    lambda named, required, others, patterns: {
        "type": "object",
        "properties": named,
        **({"required": required} if required else {}),
        **({} if others is None else {"additionalProperties": others}),
        **({"patternProperties": patterns} if patterns else {}),
    },
    st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=3),
    st.lists(st.sampled_from(NAMES[:2]), max_size=2, unique=True),
    OTHERS,
    st.sampled_from([None, None, None, {"[/\n]": NUMBER}, {"^a|b": TEXT}]),
)


def _with_more(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    several = st.lists(inner, min_size=1, max_size=3)
    keyword = st.sampled_from(["allOf", "anyOf", "oneOf"])
    return st.one_of(
        st.builds(lambda key, some: {key: some}, keyword, several),
        st.builds(lambda one, key, some: {**one, key: some}, OBJECTS, keyword, several),
        st.builds(lambda one, held: {**one, "properties": {"a": held}}, OBJECTS, inner),
        st.just({"$ref": "#/$defs/d"}),
    )


SCHEMAS = st.recursive(OBJECTS, _with_more, max_leaves=5)
WRITTEN = ["a", r"\u0061", "b", r"\u0062", "/", r"\/", r"\u002F", r"\n", r"\u000a", r"\u000A"]
WRITTEN += ["\U0001f600", r"\uD83D\ude00"]
SINGLE = list(product(WRITTEN, [1, "k", "x", {"a": 1}, {"b": "k"}]))
TEXTS = [members(), *(members(one) for one in SINGLE)]
TEXTS += [members(*pair) for pair in product(SINGLE[::3], SINGLE[1::4])]


@settings(max_examples=150, deadline=None)
@given(SCHEMAS, OBJECTS)
def test_what_may_be_an_answer_is_valid(schema: dict[str, Any], defined: dict[str, Any]) -> None:
    schema = {**schema, "$defs": {"d": defined}}
    try:
        start = schema_matcher(schema)
    except GrammarError:
        return
    judge = jsonschema.Draft202012Validator(schema)
    for text in TEXTS:
        assert not may_be(start, text) or judge.is_valid(json.loads(text)), (schema, text)
