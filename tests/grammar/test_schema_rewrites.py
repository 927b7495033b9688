"""Keywords that are enforced in the words of others: what may be an answer is valid, and what is
valid may be one."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import jsonschema
import jsonschema.validators
import pytest
from grammar_kit import EOS, obeys, schema_matcher

from vivace.grammar.backend import GrammarError
from vivace.grammar.limits import MAX_TEXTS
from vivace.grammar.schema_references import MAX_URI, MOST_VALUES, with_pointers
from vivace.parsers.schema_types import MAX_REFERENCE, pointed_value
from vivace.protocol.constraints import JSON_SCHEMA

FEW = {"$defs": {"few": {"type": ["string", "null", "number"], "enum": ["a", None, 1, 1.0, True]}}}
UNIQUE: list[dict[str, Any]] = [
    {"items": {"enum": ["a", 1, True, "a"]}},
    {"type": "array", "items": {"$ref": "#/$defs/few"}, **FEW},
    {"type": ["array", "null"], "items": {"type": "boolean"}, "minItems": 1},
    {"type": "array", "items": {"enum": ["a", "b", 1, None]}, "minItems": 2, "maxItems": 3},
    {"type": "array", "items": {"enum": [*"abcdefgh"]}, "maxItems": 2},
    {"type": "array", "items": {"const": "a"}},
    {"type": "array", "items": {"type": "string"}, "maxItems": 1},
    {"type": "string"},
]


@pytest.mark.parametrize("draft", ["https://json-schema.org/draft/2020-12/schema", "draft-07", ""])
def test_prefixes_count_beside_what_older_drafts_have(draft: str) -> None:
    schema: dict[str, Any] = {"prefixItems": [{"type": "null"}], "additionalItems": False}
    if draft:
        schema["$schema"] = draft.replace("draft-07", "http://json-schema.org/draft-07/schema#")
    assert obeys(JSON_SCHEMA, schema, "[1]") is (draft == "draft-07")
    assert obeys(JSON_SCHEMA, schema, "[null,2]")


LARGE = [2**53, 2**53 + 1, 2**63 - 1025, 2**63 - 1024]
LARGE_BOUNDS: list[dict[str, Any]] = [
    {"minimum": -(2**63), "maximum": 2**63 - 1},
    {"exclusiveMinimum": -1e308, "minimum": 0, "maximum": 1.7976931348623157e308},
    {"minimum": 2**53 + 1, "maximum": 2**53 + 3},
    {"exclusiveMinimum": 2**53, "exclusiveMaximum": 2**63 - 1024},
    {"minimum": -(2**53) - 5, "exclusiveMaximum": -(2**53)},
    {"exclusiveMinimum": -(2**53), "maximum": 2**53 - 1},
    {"minimum": 2**53 - 3, "exclusiveMaximum": 2**53},
    {
        "$schema": "http://json-schema.org/draft-04/schema#",
        "exclusiveMinimum": True,
        "minimum": 2**53,
    },
]


@pytest.mark.parametrize("schema", LARGE_BOUNDS)
@pytest.mark.parametrize("kind", ["integer", "number"])
def test_bounds_that_the_library_takes_for_others(schema: dict[str, Any], kind: str) -> None:
    schema = {**schema, "type": kind}
    validator = jsonschema.validators.validator_for(schema)(schema)
    start, found = schema_matcher(schema), list[int]()
    for value in [
        sign * (one + more) for sign in (1, -1) for one in LARGE for more in range(-2, 4)
    ]:
        ids = [*str(value).encode(), EOS]
        if start.copy().accept(ids) == len(ids):
            found.append(value)
    assert found and all(map(validator.is_valid, found))


@pytest.mark.parametrize("schema", UNIQUE)
def test_items_that_differ(schema: dict[str, Any]) -> None:
    schema = {**schema, "uniqueItems": True}
    values = ["a", "b", 1, None, True, False]
    arrays = [list(items) for count in range(4) for items in product(values, repeat=count)]
    validator, start = jsonschema.Draft202012Validator(schema), schema_matcher(schema)
    for value in [*arrays, "a", None, 3, {}]:
        ids = [*json.dumps(value).encode(), EOS]
        assert (start.copy().accept(ids) == len(ids)) == validator.is_valid(value), value


@pytest.mark.parametrize(
    "schema",
    [
        {"items": {"type": "string"}},
        {"items": {"enum": [*"abcdef"]}},
        {"items": {"enum": ["a", ["b"]]}},
        {"items": {"$ref": "#/items"}},
        {"items": {"enum": ["a"]}, "anyOf": [{}]},
    ],
)
def test_items_that_cannot_be_told_apart(schema: dict[str, Any]) -> None:
    with pytest.raises(GrammarError, match="uniqueItems"):
        schema_matcher({"type": "array", **schema, "uniqueItems": True})


def test_many_such_arrays_are_refused() -> None:
    array = {"type": "array", "items": {"enum": [*"abcde"]}, "uniqueItems": True}
    with pytest.raises(GrammarError, match="uniqueItems"):
        schema_matcher({"properties": {str(at): array for at in range(5)}})


@pytest.mark.parametrize(
    ("format", "good", "bad"),
    [
        (
            "uri-template",
            "|a|http://x.y/{term:1}/{term}|{?x,y*}|{#a%20b}|{+path}/ä|{a.b}",
            "a b|{|}|{}|{a|{a:0}|{a:10000}|{a..b}|%2|<a>|{a-b}|{?}|a'",
        ),
        ("json-pointer", "|/|/a/0|/a~0~1|//", "a|/~|/~2|#/a"),
        ("relative-json-pointer", "0|1/a|0#|12/a~1", "|01|-1|/a|0##|1a"),
        ("base64", "|YQ==|YWI=|YWJj|+/+/", "Y|YQ|YQ=|a-b_|YWJj="),
        ("base64url", "|YWJj|a-b_", "YQ==|+/+/|Y"),
        (
            "uuid4",
            "12345678-1234-4234-8234-123456789abc|ABCDEF00-1234-4234-B234-123456789ABC",
            "12345678-1234-1234-8234-123456789abc|12345678-1234-4234-7234-123456789abc|",
        ),
    ],
)
def test_formats(format: str, good: str, bad: str) -> None:
    schema = {"type": "string", "format": format}
    for fits, texts in ((True, good), (False, bad)):
        for text in texts.split("|"):
            assert obeys(JSON_SCHEMA, schema, json.dumps(text, ensure_ascii=False)) == fits, text
    assert obeys(JSON_SCHEMA, {"format": format}, "3"), "which only texts have"


NUMBER = {"type": "integer"}
ROOT = "http://e.org/root.json"
NAMED: list[dict[str, Any]] = [
    {"$ref": "#a", "$defs": {"x": {"$anchor": "a", **NUMBER}}},
    {"$id": ROOT, "$ref": f"{ROOT}#/$defs/x", "$defs": {"x": NUMBER}},
    {"$id": ROOT, "$ref": "root.json#a", "$defs": {"x/y~%": {"$anchor": "a", **NUMBER}}},
    {
        "$id": ROOT,
        "anyOf": [{"$ref": "list.json"}, {"$ref": "list.json#n"}],
        "$defs": {
            "l": {
                "$id": "list.json",
                "type": "array",
                "items": {"$ref": "#/$defs/n"},
                "$defs": {"n": {"$anchor": "n", **NUMBER}},
            },
            "n": {"$anchor": "n", "type": "null"},
        },
    },
    {"$ref": "urn:x:1#a", "$defs": {"x": {"$id": "urn:x:1", "$defs": {"y": {"$anchor": "a"}}}}},
    {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "$ref": "#a",
        "definitions": {"x": {"$id": "#a", **NUMBER}},
    },
    {"$dynamicRef": "#n", "$defs": {"t": {"$dynamicAnchor": "n", **NUMBER}}},
    {
        "$schema": "https://json-schema.org/draft/2019-09/schema",
        "type": "array",
        "items": {"anyOf": [NUMBER, {"$recursiveRef": "#"}]},
    },
]


def test_a_reference_that_drafts_read_differently_is_refused_where_none_is_named() -> None:
    """For draft 7 an `$id` beside a `$ref` is nothing."""
    schema: dict[str, Any] = {
        "$id": "http://e.org/base/",
        "$defs": {"n": {"$id": "x.json", **NUMBER}, "s": {"$id": "/x.json", "type": "string"}},
        "allOf": [{"$id": "http://e.org/", "$ref": "x.json"}],
    }
    with pytest.raises(GrammarError, match="refers"):
        obeys(JSON_SCHEMA, schema, "1")
    pointing = {"items": {"$id": "http://e.org/", "$ref": "#/x", "x": NUMBER}, "x": {}}
    with pytest.raises(GrammarError, match="refers"):
        obeys(JSON_SCHEMA, pointing, "[1]")
    drafts = (
        "http://json-schema.org/draft-07/schema#",
        "https://json-schema.org/draft/2020-12/schema",
    )
    for draft, number in zip(drafts, (True, False), strict=True):
        named = {"$schema": draft, **schema}
        assert obeys(JSON_SCHEMA, named, "1") is number
        assert obeys(JSON_SCHEMA, named, '"1"') is not number


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "http://[x#y"},
        {"$id": "http://a/", "$ref": "http://[x"},
        {"$ref": "#n", "$defs": {"x": {"$id": "http://[x", "$dynamicAnchor": "m"}}},
        {"$dynamicRef": "http://[x#m", "$defs": {"x": {"$dynamicAnchor": "m"}}},
    ],
)
def test_what_is_no_uri_is_refused(schema: dict[str, Any]) -> None:
    assert with_pointers({"f": schema})
    with pytest.raises(GrammarError):
        obeys(JSON_SCHEMA, schema, "1")


def test_names_are_found_beside_half_a_character() -> None:
    found = with_pointers(
        {"f": {"not": {"$anchor": "a"}, "anyOf": [{"$ref": "#a"}], "x": "\ud800"}}
    )
    assert found["f"]["anyOf"] == [{"$ref": "#/not"}]


def test_schemas_of_a_request_are_followed_up_to_a_number_of_values() -> None:
    """All together: nothing else goes on meanwhile."""
    named: dict[str, Any] = {"$ref": "#n", "$defs": {"n": {"$anchor": "n"}}}
    large = {**named, "enum": list(range(MOST_VALUES))}
    plain = {"$id": "http://a/", "$ref": "#/$defs/n", "$defs": {"n": {}}, "enum": large["enum"]}
    found = with_pointers({"plain": plain, "first": named, "large": large, "last": named})
    assert found["first"] == {"$ref": "#/$defs/n", "$defs": {"n": {}}}
    assert found["plain"] is plain and found["large"] is large and found["last"] is named


@pytest.mark.parametrize("name", ["x" * 60_000, "\U0001f600" * 20_000])
@pytest.mark.parametrize("below", [{"$anchor": "a"}, {"$id": "http://e.org/a", "not": {}}])
def test_pointers_to_long_names_are_written_up_to_a_number_of_characters(
    name: str, below: dict[str, Any]
) -> None:
    """Each of 1900 references had a copy of the name."""
    ref = "#a" if "$anchor" in below else "http://e.org/a#/not"
    refs = {f"p{i}": {"$ref": ref} for i in range(1000)}
    schema = {"type": "object", "properties": {name: below, **refs}}
    short = {"$ref": "#n", "$defs": {"n": {"$anchor": "n"}}}
    found = with_pointers({"long": schema, "short": short})
    assert found["long"] is schema and found["short"]["$ref"] == "#/$defs/n"
    many = {f"f{i}": {"properties": {name[:2000]: below, "p": {"$ref": ref}}} for i in range(30)}
    copies = [one["properties"]["p"]["$ref"] for one in with_pointers(many).values()]
    assert sum(map(len, copies)) <= MAX_TEXTS
    with pytest.raises(GrammarError):
        obeys(JSON_SCHEMA, schema, "1")


@pytest.mark.parametrize("length", [2000, 5000])
def test_references_may_be_so_long(length: int) -> None:
    ref = "#/$defs/" + "%41" * (length // 3)
    schema = {"$ref": ref, "$defs": {"A" * (length // 3): {"type": "null"}}}
    assert pointed_value(schema, ref) == ({"type": "null"} if length < MAX_REFERENCE else None)
    if length < MAX_REFERENCE:
        assert obeys(JSON_SCHEMA, schema, "null") and not obeys(JSON_SCHEMA, schema, "1")
        return
    with pytest.raises(GrammarError, match="longer"):
        obeys(JSON_SCHEMA, schema, "null")


@pytest.mark.parametrize("half", ["", "\ud800"])
def test_schemas_of_a_request_are_followed_up_to_a_number_of_characters(half: str) -> None:
    schema = {"$ref": "#n", "$defs": {"n": {"$anchor": "n"}}, "x": half}
    assert with_pointers({"f": schema})["f"] is not schema
    for long in ("a" * MAX_TEXTS, {"a" * MAX_TEXTS: 1}):
        assert with_pointers({"f": schema, "g": {"x": long}})["f"] is schema


def test_what_takes_long_to_be_joined_is_not_followed() -> None:
    """A thousand names below a base of 60 KB took seconds, in which nothing else was done."""
    names = {f"d{i}": {"$id": f"x{i}", "$ref": f"x{i + 1}"} for i in range(300)}
    ids = ("http://e.org/" + "a/" * MAX_URI, "http://e.org/")
    long, short = (
        {"$id": one, "$ref": "x0", "$defs": {**names, "d300": {"$id": "x300"}}} for one in ids
    )
    found = with_pointers({"long": long, "short": short})
    assert found["long"] == long and found["short"]["$ref"] == "#/$defs/d0"
    nested: dict[str, Any] = {"$anchor": "a"}
    for _ in range(9):
        nested = {"$id": "a" * 99 + "/", "items": nested, "$ref": "#a"}
    assert with_pointers({"f": nested})["f"] == nested
    assert obeys(JSON_SCHEMA, long, "1"), "which the library follows, in its own time"


@pytest.mark.parametrize("schema", NAMED)
def test_names_refer_as_pointers_do(schema: dict[str, Any]) -> None:
    validator = jsonschema.validators.validator_for(schema)(schema)
    for instance in (1, "x", None, [], [1], [[2]], ["x"], [None], {}):
        text = json.dumps(instance)
        assert obeys(JSON_SCHEMA, schema, text) is validator.is_valid(instance), text


BOTH: list[tuple[dict[str, Any], list[Any]]] = [
    (
        {"type": "array", "items": {"type": "boolean"}, "uniqueItems": True},
        [[True], [True, True], [1], {}],
    ),
    ({"type": "string", "format": "password", "uniqueItems": False}, ["a", 1]),
    ({"type": "object", "minProperties": 1}, [{"a": 1}, {}]),
    ({"type": "integer", "exclusiveMaximum": 2**53}, [0, "a"]),
    ({"const": {"items": {"$ref": "#"}, "format": "path"}}, [{"format": "path"}, 1]),
    ({"enum": [{"$ref": "#/$defs/n", "format": "path"}, 2]}, [{"format": "path"}, 2]),
]


@pytest.mark.parametrize("keyword", ["const", "enum", "default", "examples"])
@pytest.mark.parametrize(("schema", "others"), BOTH)
def test_an_instance_that_is_referred_to_is_both(
    schema: dict[str, Any], others: list[Any], keyword: str
) -> None:
    """A value as it is written, and what its keywords say where a reference leads to it."""
    listed = keyword in ("enum", "examples")
    a = {"type": ["object", "string"], keyword: [schema, "x"] if listed else schema}
    b = {"$ref": f"#/properties/a/{keyword}{'/0' if listed else ''}"}
    whole = {
        "type": "object",
        "properties": {"a": a, "b": b},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    validator = jsonschema.Draft202012Validator(whole)
    values = [schema, {**schema, "type": "null"}, "x", *others]
    for first, second in product(values, values):
        instance = {"a": first, "b": second}
        if keyword in ("default", "examples") and not isinstance(first, dict):
            continue
        text = json.dumps(instance)
        assert obeys(JSON_SCHEMA, whole, text) is validator.is_valid(instance), text


def test_an_instance_may_refer_to_itself_and_to_names() -> None:
    tree = {"type": "array", "items": {"$ref": "#/enum/0"}, "maxItems": 2, "format": "path"}
    schema = {"enum": [tree], "$defs": {"enum.0": {"$ref": "#/enum/0"}}}
    assert obeys(JSON_SCHEMA, schema, json.dumps(tree))
    assert not obeys(JSON_SCHEMA, schema, "[[]]")
    tree["items"] = {"$ref": "#"}
    trees = {"$ref": "#/$defs/const/const", "$defs": {"const": {"const": tree}}}
    assert obeys(JSON_SCHEMA, trees, "[[],[[]]]") and not obeys(JSON_SCHEMA, trees, "[1]")
    named = {
        "$id": ROOT,
        "const": {"format": "path", "type": "object"},
        "$defs": {"n": {"$ref": f"{ROOT}#/const"}},
    }
    assert obeys(JSON_SCHEMA, named, json.dumps(named["const"]))
    assert not obeys(JSON_SCHEMA, named, '{"type": "object"}')


def test_instances_that_are_referred_to_have_limits() -> None:
    """Of all their copies together: each within another one is one more."""
    nested: Any = {"x": [0] * 3000}
    for _ in range(30):
        nested = {"not": nested}
    refs = [{"$ref": f"#/const{'/not' * depth}"} for depth in range(30)]
    with pytest.raises(GrammarError, match="const"):
        obeys(JSON_SCHEMA, {"const": nested, "$defs": {str(i): r for i, r in enumerate(refs)}}, "1")
    deep: Any = {}
    for _ in range(120):
        deep = {"not": deep}
    with pytest.raises(GrammarError, match="deeper"):
        obeys(JSON_SCHEMA, {"const": deep, "anyOf": [{"$ref": "#/const"}]}, "1")


@pytest.mark.parametrize("name", ["a", "enum", "const", "default", "examples", "properties"])
@pytest.mark.parametrize("keyword", ["$defs", "properties", "patternProperties", "components"])
def test_names_of_keywords_name_schemas_as_others_do(keyword: str, name: str) -> None:
    deep: Any = {}
    for _ in range(110):
        deep = {"items": deep}
    schema = {keyword: {name: deep}}
    with pytest.raises(GrammarError, match="deeper"):
        obeys(JSON_SCHEMA, schema, "1")
    with pytest.raises(GrammarError, match="minLength"):
        obeys(JSON_SCHEMA, {"$ref": f"#/{keyword}/{name}", keyword: {name: {"minLength": ""}}}, "1")
