"""What pydantic, Zod and descriptions of APIs write, in words that the library does not enforce."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import jsonschema
import pytest
from grammar_kit import EOS, obeys, schema_matcher

from vivace.grammar.backend import GrammarError
from vivace.grammar.schema_rewrites import MAX_INLINED
from vivace.protocol.constraints import JSON_SCHEMA

VALUES = [1, "a", None, {"a": 1}, {"k": "x"}, {"k": "x", "n": 1}, {"k": "y"}, {"k": "y", "n": {}}]
VALUES += [{"k": "z", "n": None}, {"k": "y", "n": {"k": "x", "n": 1}}, {"n": 1}, {"n": None}]


def check(schema: dict[str, Any], values: list[Any]) -> None:
    """Each may be an answer exactly where it is valid."""
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    validator = jsonschema.Draft202012Validator(schema, format_checker=checker)
    start = schema_matcher(schema)
    for value in values:
        ids = [*json.dumps(value, ensure_ascii=False).encode(), EOS]
        assert (start.copy().accept(ids) == len(ids)) == validator.is_valid(value), value


# --- names of properties ----------------------------------------------------------------------

NAMES: list[dict[str, Any]] = [
    {"enum": ["a", "b.c"], "title": "Letter"},
    {"const": "a", "type": "string"},
    {"pattern": "^[ab]"},
    {"minLength": 1},
    {"minLength": 1, "maxLength": 2},
    {"format": "uuid"},
    {"$ref": "#/$defs/Letter", "description": "of a class"},
]
DEFINED = {"Letter": {"$ref": "#/$defs/Other"}, "Other": {"enum": ["a", 'q"'], "type": "string"}}


@pytest.mark.parametrize("names", NAMES)
@pytest.mark.parametrize("others", [{}, {"additionalProperties": {"type": "integer"}}])
def test_names(names: dict[str, Any], others: dict[str, Any]) -> None:
    keys = ["", "a", "b.c", "bxc", "abc", 'q"', "\n", "ää", "12345678-1234-1234-1234-123456789abc"]
    values = [{key: value} for key, value in product(keys, (1, "x"))]
    schema = {"type": "object", "propertyNames": names, **others, "$defs": DEFINED}
    check(schema, [{}, {"a": 1, "abc": 2}, *values])


def test_names_of_which_some_are_required() -> None:
    both = {"x": 1, "y": 2}
    check({"propertyNames": {"enum": [*both]}, "required": [*both]}, [both, {"x": 1}, {}, 3])


@pytest.mark.parametrize(
    "more",
    [
        {"properties": {"a": {}}},
        {"patternProperties": {"^a": {}}},
        {"propertyNames": {"pattern": "^a", "minLength": 2}},
    ],
)
def test_names_that_are_said_twice_are_refused(more: dict[str, Any]) -> None:
    with pytest.raises(GrammarError, match="propertyNames"):
        schema_matcher({"type": "object", "propertyNames": {"pattern": "^a"}, **more})


def test_names_are_written_up_to_a_number_of_characters() -> None:
    """Each place that refers to them has an expression of its own."""
    enum = [f"{number:060}" for number in range(100)]
    one = {"type": "object", "propertyNames": {"$ref": "#/$defs/names"}}
    schema = {"$defs": {"names": {"enum": enum}}, "properties": {"a": one}}
    assert schema_matcher(schema)
    with pytest.raises(GrammarError, match="propertyNames"):
        schema_matcher({**schema, "properties": {name: dict(one) for name in "abcd"}})


# --- choices ----------------------------------------------------------------------------------

X = {"type": "object", "properties": {"k": {"const": "x"}, "n": {"type": "integer"}}}
Y = {"type": "object", "properties": {"k": {"enum": ["y", "z"]}, "n": {"$ref": "#/$defs/Any"}}}
EACH = [{"$ref": "#/$defs/X"}, {"$ref": "#/$defs/Y"}]


def union(needed: list[str], **more: Any) -> dict[str, Any]:
    """One that leads back to itself."""
    parts = {name: {**one, "required": needed} for name, one in (("X", X), ("Y", Y))}
    return {
        **more,
        "oneOf": EACH,
        "$defs": {**parts, "Any": {**more, "oneOf": [*EACH, {"type": "null"}]}},
    }


def test_choices_that_are_references() -> None:
    check(union(["k"]), VALUES)
    named = {"a/b": {"oneOf": [{"$ref": "#/$defs/%2F~1"}, {"type": "null"}]}}
    check({"properties": named, "$defs": {"//": {"type": "array", "items": {"type": "null"}}}}, [1])


def test_what_tells_choices_apart_is_required_of_them() -> None:
    schema = union([], discriminator={"propertyName": "k"})
    check({**schema, "required": ["k"]}, [one for one in VALUES if "k" in str(one)])
    start = schema_matcher(schema)
    assert start.copy().accept([*b'{"n":1}', EOS]) < 8, "it is either"


@pytest.mark.parametrize("told", [None, {}, {"propertyName": ["k"]}, {"propertyName": {}}])
def test_a_discriminator_that_names_no_property_says_nothing(told: Any) -> None:
    open_one = {"properties": {"k": {"const": "x"}}, "additionalProperties": True}
    check({"oneOf": [open_one], "discriminator": told}, VALUES)


NONE = {"type": "object", "additionalProperties": False}
TOLD = {"discriminator": {"propertyName": "k"}}


@pytest.mark.parametrize(
    "schema",
    [
        {"oneOf": [X, NONE], **TOLD},
        {"oneOf": [X, {"propertyNames": {"maxLength": 0}}], **TOLD},
        {"oneOf": [{"oneOf": [X, {"type": "null"}], **TOLD}, NONE]},
        {"oneOf": [{"oneOf": [X, {"type": "null"}], **TOLD}, NONE], **TOLD},
        {"oneOf": [{"type": "object", "properties": {"k": X}}, NONE], "anyOf": [{"oneOf": [X]}]},
        {"oneOf": [X, {**X, "properties": {"k": {"enum": ["x", "y"]}}}], **TOLD},
    ],
)
def test_what_a_tag_would_take_off_one_choice_does_not_become_anothers(
    schema: dict[str, Any],
) -> None:
    with pytest.raises(GrammarError, match="overlap"):
        schema_matcher(schema)


@pytest.mark.parametrize("discriminator", [{}, TOLD])
def test_references_that_overlap_are_refused(discriminator: dict[str, Any]) -> None:
    schema = {
        "oneOf": [{"$ref": "#/$defs/a"}, {"type": "integer"}],
        "$defs": {"a": {"type": "number"}},
    }
    with pytest.raises(GrammarError, match="overlap"):
        schema_matcher({**schema, **discriminator})


def test_choices_are_followed_up_to_a_number_of_values() -> None:
    large = {"enum": [str(number) for number in range(MAX_INLINED // 2)]}
    few = {"$ref": "#/$defs/few"}
    parts = {"$defs": {"large": large, "few": {"type": "null"}}}
    assert schema_matcher({"oneOf": [{"$ref": "#/$defs/large"}, few], **parts})
    with pytest.raises(GrammarError, match="overlap"):
        schema_matcher(
            {
                "oneOf": [{"$ref": "#/$defs/large"}, few],
                "$defs": {**parts["$defs"], "large": {"enum": large["enum"] * 2}},
            }
        )


# --- single keywords --------------------------------------------------------------------------


@pytest.mark.parametrize("nothing", [{}, True, {"description": "Any value."}])
def test_a_property_that_nothing_fits_has_no_place(nothing: Any) -> None:
    schema = {
        "properties": {"a": {"not": nothing}, "b": {"not": False}},
        "additionalProperties": False,
    }
    check(schema, [{}, {"a": 1}, {"b": 1}, {"a": None, "b": 1}])


def test_items_behind_others_are_not_told_apart() -> None:
    schema = {"prefixItems": [{"type": "integer"}], "items": {"enum": ["a"]}, "uniqueItems": True}
    with pytest.raises(GrammarError, match="uniqueItems"):
        schema_matcher({"type": "array", **schema})


@pytest.mark.parametrize("name", ["ulid", "starts_with", "e164"])
def test_a_format_that_names_its_pattern(name: str) -> None:
    check({"type": "string", "format": name, "pattern": "^a+$"}, ["a", "b", "aa"])


@pytest.mark.parametrize("name", ["regex", "iri"])
def test_a_format_of_json_schema_says_more_than_its_pattern(name: str) -> None:
    with pytest.raises(GrammarError, match=name):
        schema_matcher({"type": "string", "format": name, "pattern": "^a+$"})


@pytest.mark.parametrize(
    "note",
    [
        *(
            {"nullable": True},
            {"deprecated": True},
            {"x-order": 3},
            {"readOnly": False, "title": ""},
        ),
        *({"example": {"v": 1}}, {"x-kinds": ["a"]}, {"markdownDescription": "*up*"}),
    ],
)
def test_a_note_beside_a_reference_that_comes_back(note: dict[str, Any]) -> None:
    """OpenAPI's generators write these beside every reference."""
    tree = {"type": "object", "properties": {"v": {"type": "integer"}, "up": {"$ref": "#", **note}}}
    assert obeys(JSON_SCHEMA, tree, '{"v":1,"up":{"v":2,"up":{}}}')
    assert not obeys(JSON_SCHEMA, tree, '{"v":1,"up":{"v":"x"}}')
    tree["properties"]["up"] = {"anyOf": [{"$ref": "#"}, {"type": "null"}], **note}
    assert obeys(JSON_SCHEMA, tree, '{"v":1,"up":{"v":2,"up":null}}')


def test_what_a_note_holds_can_be_referred_to() -> None:
    schema = {"$ref": "#/x-kinds/a", "x-kinds": {"a": {"type": "integer"}}}
    assert obeys(JSON_SCHEMA, schema, "3") and not obeys(JSON_SCHEMA, schema, '"a"')
