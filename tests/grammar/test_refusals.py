"""What cannot be enforced is refused, with the place that is to blame."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from grammar_kit import BACKEND, SIZE, VOCABULARY, obeys, schema_matcher

from vivace.errors import CannotStart
from vivace.grammar.backend import GrammarError
from vivace.grammar.masks import mask_words
from vivace.grammar.thinking import ThinkingBackend
from vivace.grammar.thinking_rule import ThinkingRule, thinking_constraint
from vivace.grammar.tool_tags import any_text, constant, grammar, json_value, regex, sequence
from vivace.launch.grammars import check_whitespace
from vivace.protocol.constraints import EBNF, JSON_SCHEMA, REGEX, STRUCTURAL_TAG, Constraint


def refusal(kind: str, what: Any) -> str:
    text = what if isinstance(what, str) else json.dumps(what)
    with pytest.raises(GrammarError) as caught:
        BACKEND.compile(Constraint(kind=kind, text=text))
    told = str(caught.value)
    assert "\n" not in told and len(told) < 600
    return told


INFINITE = {
    "$defs": {
        "a": {"type": "object", "properties": {"x": {"$ref": "#/$defs/a"}}, "required": ["x"]}
    }
}


DRAFTS = "http://json-schema.org"
PLAIN = {"type": "object"}
CHOICES = {"oneOf": [{"type": "string"}, {"type": "integer"}]}
OVERLAPPING = {"oneOf": [{"type": "number"}, {"type": "integer"}]}


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"properties": {"a": {"not": {"const": 1}}}}, "properties.a.not"),
        ({"properties": {"not": {"uniqueItems": True}}}, "properties.not.uniqueItems"),
        ({"anyOf": [{}, {"if": {}, "then": {}}]}, "anyOf.1.if"),
        ({"items": {"type": "string", "format": "iri-reference"}}, "items.format"),
        ({"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 1}]}, "oneOf"),
        ({"type": "array", "contains": {}}, "contains"),
        ({"properties": {"a": {"$ref": "http://example.org/schema"}}}, "properties.a.$ref: refers"),
        ({"properties": {"a": {"$ref": "./schema.json"}}}, "properties.a.$ref: refers to another"),
        ({"properties": {"a": {"$ref": f"{DRAFTS}/draft-07/schema#"}}}, "a.$ref: refers to JSON"),
        ({"properties": {"a": {"$ref": "#/$defs/b"}}}, "properties.a.$ref: refers to nothing"),
        ({"$ref": "#/x/a", "x": {"a": {"const": 2**53 + 1}}}, "x.a.const: a number"),
        ({"properties": {"a": {"$ref": "#b"}}}, "properties.a.$ref: refers to nothing"),
        (
            {
                "$dynamicRef": "#n",
                "$defs": {"a": {"$dynamicAnchor": "n"}, "b": {"$dynamicAnchor": "n"}},
            },
            "$dynamicRef: ",
        ),
        ({"$schema": "http://json-schema.org/schema#"}, "$schema"),
        ({"$schema": "http://json-schema.org/draft-03/schema#", "disallow": "null"}, "draft 3"),
        ({"properties": {"a": {"$ref": "#/properties/a", "minLength": 1}}}, "properties.a.$ref: a"),
        (
            {"additionalProperties": {}, "properties": {"a": {}}, "minProperties": 1},
            "minProperties: can",
        ),
        ({"required": ["a", "a"], "minProperties": 3}, "minProperties: can be enforced only up to"),
        ({"patternProperties": {"^a": {}, "^ab": {}}}, "patternProperties: '^a' and '^ab'"),
        ({"properties": {"u": CHOICES, "v": OVERLAPPING}}, "properties.v.oneOf"),
        ({"$defs": {"b": OVERLAPPING, "c": OVERLAPPING}, "$ref": "#/$defs/c"}, "$defs.c.oneOf"),
        (
            {"properties": {"a": {"type": "Float"}}},
            'properties.a.type: "Float" is no type; use',
        ),
        ({"properties": {"a": {"type": "string", "required": True}}}, "properties.a.required"),
        ({"properties": {"a": "string"}}, "properties.a: must"),
        ({"items": {"enum": "a"}}, "items.enum"),
        ({"items": {"format": ["email"]}}, "items.format: must be a text"),
        ({"items": {"type": "string", "minLength": "3"}}, "items.minLength: must be a whole"),
        ({"items": {"maxItems": 2.0}}, "items.maxItems: must be a whole number from 0 on, without"),
        ({"items": {"type": "number", "maximum": True}}, "items.maximum: must be a number"),
        ({"items": {"type": "number", "multipleOf": 0}}, "items.multipleOf: must be a number"),
        ({"items": [{}, {"items": "string"}]}, "items.1.items: must be a schema"),
        ({"items": {"anyOf": {"type": "string"}}}, "items.anyOf: must be a list"),
        ({"items": {"anyOf": ["string"]}}, "items.anyOf.0: must be a schema"),
        ({"additionalProperties": "no"}, "additionalProperties: must be a schema"),
        ({"name": "a", "schema": {"type": "object"}}, "schema: give"),
        ({"$ref": "#"}, "#: recurses"),
        ({**INFINITE, "$ref": "#/$defs/a"}, "#/$defs/a: recurses"),
        ({**INFINITE, "type": "array", "items": {"$ref": "#/$defs/a"}, "minItems": 1}, "recurses"),
        ({"type": "strin"}, "strin"),
        ({"type": "string", "pattern": "("}, "pattern: cannot be enforced: unclosed"),
        ({"type": "string", "pattern": r"^(?!a)[\w]\d$"}, "pattern: cannot be enforced: look"),
        (
            {**PLAIN, "properties": {"a": {"enum": []}}, "required": ["a"]},
            "required: no value of 'a'",
        ),
        ({"patternProperties": {"a": {}, "\\bb": {}}}, "patternProperties: cannot"),
        ({"type": "string", "pattern": "(?=a)b"}, "look"),
        ({"items": {"type": "string", "pattern": "^a/(?=b)/\\d"}}, "items.pattern: cannot"),
        ({"items": {"type": "string", "pattern": r"^a\/b/(?=b)"}}, "items.pattern: cannot"),
        ({"enum": []}, "anyOf"),
        ({"type": "integer", "minimum": 10**400}, "minimum: cannot"),
        ({"type": "integer", "maximum": -(2**63)}, "maximum: cannot"),
        ({"enum": [1, 2**53 + 1]}, "enum: a number"),
        ({"enum": [-(2**63)]}, "enum: a number"),  # ends the process that compiles it
        ({"const": 123456789.123456789}, "const: a number"),
        *(
            ({"items": {"multipleOf": number}}, "items.multipleOf: cannot be enforced: its digits")
            for number in (1 << 24, 99999.9, 1e-22, 1 << 32, 2**53 + 1, 1e300, 10**400)
        ),
        ({"$defs": {"a": {"multipleOf": 1 << 24}}}, "$defs.a.multipleOf: cannot"),
        ({"const": "x" * 125_000}, "shorten its constants"),
        ({"enum": ["\U0001f600" * 30_000]}, "shorten its constants"),
        (False, "false"),
        ({"x-guidance": {"lenient": True}, "not": {"const": 1}}, "not"),
        ("{", "JSON"),
        ("[1]", "object"),
        ("3", "object"),
    ],
)
def test_schemas(schema: Any, place: str) -> None:
    assert place in refusal(JSON_SCHEMA, schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "uniqueItems": False},
        {"type": "object", "propertyNames": {"type": "string"}, "unevaluatedProperties": {}},
        {"properties": {"a": {"type": "string", "format": "password"}}},
        {"$ref": "#/x/a", "x": {"a": {"type": "string", "format": "binary"}}},
        {"anyOf": [{"type": "object", "minProperties": 1}, {"type": "string", "minProperties": 2}]},
        {"properties": {"uniqueItems": {"type": "boolean"}, "required": {}, "enum": {}}},
    ],
)
def test_keywords_that_say_nothing_are_none(schema: Any) -> None:
    BACKEND.compile(Constraint(kind=JSON_SCHEMA, text=json.dumps(schema)))


def test_schemas_in_tags_are_named_as_the_client_wrote_them() -> None:
    tag = {"structures": [{"begin": "<a>", "schema": OVERLAPPING, "end": ""}], "triggers": ["<a>"]}
    assert refusal(STRUCTURAL_TAG, tag).startswith("structures.0.schema.oneOf: ")
    form = {"type": "sequence", "elements": [{"type": "json_schema", "json_schema": {"if": {}}}]}
    assert refusal(STRUCTURAL_TAG, {"format": form}).startswith("format.elements.0.json_schema.if:")


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"propertyNames": {"pattern": "("}}, "propertyNames"),
        ({"propertyNames": {"pattern": "(?x)a"}}, "propertyNames.pattern"),
        ({"propertyNames": {"enum": ["a"]}, "additionalProperties": {"if": {}}}, "additionalProp"),
        ({"oneOf": [{"$ref": "#/$defs/a"}, {"type": "null"}]}, "$defs.a.properties.b.format"),
        ({"oneOf": [{"$ref": "#named"}, {"type": "null"}]}, "$defs.a.properties.b.format"),
        ({"oneOf": [{"$ref": "#/$defs/c"}, {"type": "null"}]}, "$defs.a.properties.b.format"),
        ({"format": "uuid4", "pattern": "("}, "pattern"),
        (
            {"prefixItems": [{"uniqueItems": True, "items": {"enum": [1]}}, {"uniqueItems": True}]},
            "prefixItems.1",
        ),
    ],
)
def test_places_are_those_of_schemas_as_they_were_written(schema: Any, place: str) -> None:
    """The library gets other words for some."""
    named = {"$anchor": "named", "properties": {"b": {"format": "none"}}}
    schema |= {"$defs": {"c": {"$ref": "#/$defs/a"}, "a": named}} if "oneOf" in schema else {}
    assert refusal(JSON_SCHEMA, schema).startswith(place)
    tag = {"structures": [{"begin": "<a>", "schema": schema, "end": ""}], "triggers": ["<a>"]}
    assert refusal(STRUCTURAL_TAG, tag).startswith(f"structures.0.schema.{place}")


def test_what_no_keyword_is_to_blame_for_is_told_with_its_schema_alone() -> None:
    """And not with rules of ours that stand around it."""
    chain = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(900)}
    schema = {**PLAIN, "$ref": "#/$defs/d0", "$defs": {**chain, "d900": PLAIN}}
    told = refusal(STRUCTURAL_TAG, {"format": sequence(constant("a"), json_value(schema, "here"))})
    assert told.startswith("here: ") and "TEXT" not in told and "part_" not in told


def test_recursion_with_an_end_is_fine() -> None:
    tree = {
        "type": "object",
        "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
        "required": ["next"],
    }
    BACKEND.compile(Constraint(kind=JSON_SCHEMA, text=json.dumps(tree)))
    BACKEND.compile(Constraint(kind=JSON_SCHEMA, text=json.dumps(INFINITE)))


@pytest.mark.parametrize("endless", [INFINITE["$defs"]["a"], {"$ref": "#/$defs/a"}])
def test_no_answer_enters_what_never_ends(endless: Any) -> None:
    """It might leave it out, or take another choice."""
    choice = {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}]}
    named = {"b": {"$ref": "#/$defs/a"}, "c": choice}
    schema = {"type": "object", "properties": named, "$defs": {"a": endless}}
    matcher = schema_matcher(schema)
    assert obeys(JSON_SCHEMA, schema, '{"c":null}') and obeys(JSON_SCHEMA, schema, "{}")
    assert matcher.copy().accept([*b'{"b"']) == 2
    assert matcher.accept([*b'{"c":{']) == 5


def nested(depth: int) -> Any:
    found: Any = {"type": "integer"}
    for _ in range(depth):
        found = {"type": "array", "items": found}
    return found


EXPLODING = {
    "allOf": [
        {"anyOf": [{"type": "string", "const": str(i * j)} for i in range(10)]} for j in range(9)
    ]
}


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (JSON_SCHEMA, nested(300)),
        (JSON_SCHEMA, "[" * 200_000),
        (JSON_SCHEMA, EXPLODING),
        (REGEX, "("),
        (REGEX, "(" * 8000),
        (REGEX, "a{1,1000}{1,1000}{1,1000}\\b"),
        (EBNF, "root ::= missing"),
        (EBNF, "nonsense"),
        (EBNF, 'root ::= "a'),
        (EBNF, "root ::= " + "(" * 5000),
        (EBNF, "root ::= " + "[" * 60_000),
        (EBNF, 'start: "' + r"\"" * 30_000),
        (EBNF, "start: /" + r"\/" * 30_000),
        (STRUCTURAL_TAG, {"format": regex("[" * 16_000, "", quoted=True)}),
    ],
)
def test_what_explodes_is_refused_soon(kind: str, what: Any) -> None:
    begin = time.process_time()
    refusal(kind, what)
    assert time.process_time() - begin < 2


def test_an_expression_is_told_without_the_grammar_around_it() -> None:
    assert "unclosed" in refusal(REGEX, "[a") and "start:" not in refusal(REGEX, "[a")
    assert refusal(REGEX, r"a\bc") == "it has word boundaries, or anchors inside"


def test_grammars_are_told_by_their_own_lines() -> None:
    assert refusal(EBNF, "\nstart: X\nX: /a(/\n") == "line 3, column 4: unclosed group"
    assert refusal(EBNF, "start: foo") == 'line 1, column 8: unknown name: "foo"'
    assert "neither" in refusal(EBNF, 'rule: "x"') and "root" in refusal(EBNF, 'start ::= "a"')


@pytest.mark.parametrize(
    ("part", "told"),
    [
        (regex("a(", ""), "tools[0]: unclosed group"),
        (regex("[a-z&&[^b]]", "", quoted=True), "tools[0]: in an argument"),
        (regex("a(", "", quoted=True), "tools[0]: unclosed group"),
        (grammar("start: foo", ""), "tools[0]: line 1, column 8: unknown name"),
        (any_text(patterns=["a["]), "tools[0]: unclosed character class"),
        (any_text(unlike=["a["]), "tools[0]: unclosed character class"),
        (any_text(unlike=["a\\"]), "tools[0]: ends with a backslash"),
    ],
)
def test_expressions_and_grammars_in_tags_are_told_by_their_place(part: Any, told: str) -> None:
    form = sequence(constant("f"), regex("ok", "tools[1]"), {**part, "place": "tools[0]"})
    assert refusal(STRUCTURAL_TAG, {"format": form}).startswith(told)
    del form["elements"][2]["place"]
    assert refusal(STRUCTURAL_TAG, {"format": form}).startswith("format.elements.2")


@pytest.mark.parametrize(
    ("key", "value", "part"),
    [
        ("max_tokens", 0, any_text()),
        ("max_chars", 3, any_text()),
        ("style", "qwen_xml", json_value({"type": "string"}, "")),
        ("excludes", ["a"], json_value({"type": "string"}, "")),
        ("max_whitespace_cnt", 1, json_value({"type": "object"}, "")),
    ],
)
def test_what_xgrammar_has_in_formats_is_refused(key: str, value: Any, part: Any) -> None:
    """Nothing of it is left out quietly, wherever texts stand."""
    for whole, place in (
        (sequence(part, constant("b")), "format.elements.0"),
        ({"type": "tag", "begin": "a", "content": part, "end": "b"}, "format.content"),
    ):
        BACKEND.compile(Constraint(kind=STRUCTURAL_TAG, text=json.dumps({"format": whole})))
        part[key] = value
        assert refusal(STRUCTURAL_TAG, {"format": whole}).startswith(f"{place}.{key}: cannot")
        del part[key]


@pytest.mark.parametrize(
    "text",
    [
        '?start: sum\n?sum: "a" ("+" "a")*',
        '!start: "a"',
        'root ::= start # start\nstart ::= "start"',
        'root ::= "a" start-up\nstart ::= [start]\nstart-up ::= start',
    ],
)
def test_a_start_is_a_rule_of_lark_and_of_gbnf(text: str) -> None:
    BACKEND.compile(Constraint(kind=EBNF, text=text))


@pytest.mark.parametrize(
    ("first", "second"),
    [("start", "rule-0"), ("Start", "start"), ("fooBar", "foo-bar"), ("a-b", "a_b"), ("A", "a")],
)
def test_rules_of_gbnf_are_told_apart_by_their_names(first: str, second: str) -> None:
    """Also those that stay rules, since they refer to themselves."""
    text = f'root ::= {first} {second} # {first}\n{first} ::= "a"\n{second} ::= "{second}!"'
    assert obeys(EBNF, text, f"a{second}!") and not obeys(EBNF, text, f"{second}!a")
    text = f'root ::= {first} {second}\n{first} ::= "a" {first}?\n{second} ::= [b] {second}?'
    assert obeys(EBNF, text, "aabb") and not obeys(EBNF, text, "aab" + "a")


def test_a_hyphen_may_have_a_backslash_as_in_xgrammar() -> None:
    text = r'root ::= [+\-]? "\-" [^\-\]] "\\-"'
    for answer in ("+-a\\-", "--a\\-", "-a\\-"):
        assert obeys(EBNF, text, answer), answer
    for answer in (",-a\\-", "+\\-a\\-", "+--\\-", "+-]\\-"):
        assert not obeys(EBNF, text, answer), answer


def test_a_pattern_of_the_operator_is_tried_at_the_start() -> None:
    check_whitespace(r"[ \n]?")
    with pytest.raises(CannotStart, match="unclosed"):
        check_whitespace("(")


def test_thinking_that_no_tokens_can_end_has_no_limit() -> None:
    tokens = [b"" if token == b"<" else token for token in VOCABULARY.tokens]
    lacking = replace(VOCABULARY, tokens=tokens)
    rule = ThinkingRule(begin="<think>", end="</think>", inside=True, budget=2)
    constraint = thinking_constraint(rule, "max_thinking_tokens")
    assert ThinkingBackend(BACKEND, VOCABULARY).compile(constraint)
    with pytest.raises(GrammarError, match="thinking"):
        ThinkingBackend(BACKEND, lacking).compile(constraint)


class SpentMatcher:
    """An answer that reaches a limit with its first token."""

    ended = False

    def __init__(self, error: str = "") -> None:
        self.error = error

    def fill(self, mask: np.ndarray) -> None:
        mask[:] = 0 if self.error else -1

    def accept(self, tokens: list[int]) -> int:
        self.error = "too many states"
        return 0

    def copy(self) -> SpentMatcher:
        return SpentMatcher(self.error)


@pytest.mark.parametrize("said", ["a", "<think>b</think>a"])
def test_an_answer_that_reaches_a_limit_around_thinking_says_so(said: str) -> None:
    """Its first token belongs to a trial of it."""
    answers: Any = SimpleNamespace(compile=lambda _: SpentMatcher())
    answer = Constraint(kind=REGEX, text="a")
    rule = ThinkingRule(begin="<think>", end="</think>", answer=answer)
    constraint = thinking_constraint(rule, "regex")
    matcher = ThinkingBackend(answers, VOCABULARY).compile(constraint)
    assert not matcher.error
    matcher.accept(list(said.encode()))
    mask = np.full(mask_words(SIZE), -1, np.int32)
    matcher.fill(mask)
    assert "states" in matcher.error and not mask.any()
