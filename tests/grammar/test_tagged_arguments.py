"""Arguments that are not one JSON object: what obeys is accepted, what does not cannot be said, and
what the parser makes of anything that can be said obeys."""

from __future__ import annotations

import json
import time
from typing import Any

import jsonschema
import numpy as np
import pytest
from grammar_kit import EOS, SIZE, VOCABULARY, allowed, backend, encode, next_answer, spell

from vivace.frontend.errors import BadRequest
from vivace.frontend.fairness import run_now
from vivace.grammar.backend import GrammarMatcher
from vivace.parsers.call_syntax import KEY, NAME, CallSyntax, ParameterTags
from vivace.parsers.events import gather
from vivace.parsers.parser import AnswerParser, ParseOptions, answer_format
from vivace.requests.tool_constraints import ToolCalls
from vivace.requests.tools import OfferedTools

BACKEND = backend()
TAGGED = ["qwen3_coder", "glm45", "glm47", "deepseekv32", "step3", "minimax-m2"]
PYTHON = ["pythonic", "lfm2"]
NATURAL = [name for name in TAGGED if name != "deepseekv32"]
COLOR = {"enum": ["red", "a b"]}
POINT = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
POINT["additionalProperties"] = False
TAG = "".join(("</parameter>", "</arg_value>", "</steptml:parameter>", "</｜DSML｜parameter>"))

VALUES: list[tuple[Any, list[str], list[str]]] = [
    ({}, ["Paris", "3"], []),
    ({"type": "string", "description": "x"}, ['a "b" <c>\n\n {x} \\', "", "3", "null"], []),
    ({"type": "string", "enum": ["Rome", "a b", "1"]}, ["Rome", "1"], ["Paris", " Rome", "1x"]),
    ({"type": "string", "const": "x"}, ["x"], ["y", ""]),
    ({"type": "string", "minLength": 2, "maxLength": 4}, ["ab", "ä\n2c"], ["a", "abcde"]),
    ({"type": "string", "pattern": "^[a-z]+$"}, ["abc"], ["a1", "A", ""]),
    ({"type": "string", "pattern": "[a-z]/\\d"}, ["Xa/1x"], ["a/"]),
    ({"type": "string", "pattern": "^\\${{[a-z]{2}}}$"}, ["${{ab}}"], ["${ab}", "${{a}}"]),
    ({"type": "string", "pattern": "^[[a]][\\D(]\\w$"}, ["[](b"], ["a(b", "[](é"]),
    ({"type": "string", "format": "date"}, ["2024-02-29"], ["2023-02-29", "x", "2024-1-1"]),
    ({"type": "string", "format": "date"}, [], ["٢024-02-29"]),
    ({"type": "string", "format": "date-time"}, ["2024-02-29T10:00:00Z"], ["2024-02-29"]),
    ({"type": "string", "format": "email"}, ["a.b@c.de"], ["a", "@b"]),
    ({"type": "string", "format": "uuid"}, ["12345678-1234-1234-1234-1234567890aB"], ["1234"]),
    ({"type": "string", "format": "uri"}, ["https://a.b:80/c?d=1#e"], ["a b", "//x"]),
    ({"type": "string", "format": "ipv4"}, ["1.2.3.255"], ["1.2.3.256"]),
    ({"type": "string", "format": "password", "minimum": 3}, ["x"], []),
    ({"anyOf": [{"const": "a"}, {"type": "string", "minLength": 3}]}, ["a", "abc"], ["b"]),
    ({"type": "integer", "minimum": 1}, ["3", "12"], ["0", "x", '"3"', "1.5"]),
    ({"type": "number"}, ["3", "-1.5e3"], ["x", "NaN"]),
    ({"type": "boolean"}, ["true", "False"], ["yes", "1", '"true"']),
    ({"type": "null"}, ["null", "None"], ["x"]),
    ({"type": ["string", "null"]}, ["null", "x", "[1", '["a"', 'a "b'], []),
    ({"anyOf": [COLOR, {"type": "null"}]}, ["red", "a b", "null", "None"], ["blue", '"red"']),
    ({"enum": ["1", 2, True]}, ['"1"', "2", "True"], ["1", "3", "false"]),
    ({"anyOf": [{"type": "string", "minLength": 3}, {"type": "null"}]}, ['"abc"'], ['"a"', "abc"]),
    ({"type": ["string", "integer"], "minimum": 3}, ['"x"', "5"], ["1", "x"]),
    ({"$ref": "#/$defs/color"}, ["red"], ["blue"]),
    ({"allOf": [{"$ref": "#/$defs/color"}], "default": "red"}, ["red"], ["blue"]),
    ({"$ref": "#/$defs/point"}, ['{"x": 1}'], ["{}", '{"x": "1"}', "x", '{"x": 1, "y": 2}']),
    ({"type": "array", "items": {"$ref": "#/$defs/point"}}, ['[{"x": 1}]', "[]"], ["[{}]", "x"]),
    ({"type": "array", "items": {"type": "string"}}, ["[]", f'["a", "{TAG}", "\\"{TAG}"]'], ["x"]),
    (
        {"type": "object", "additionalProperties": {"type": "boolean"}},
        ['{"a": true}'],
        ['{"a": 1}'],
    ),
]


def offer(schema: Any) -> dict[str, Any]:
    return {
        "$defs": {"color": COLOR, "point": POINT},
        "type": "object",
        "properties": {"a": schema, "n": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
    }


def asked(name: str, schemas: dict[str, Any], **wanted: Any) -> ToolCalls:
    places = {each: f"tools[{i}].function.parameters" for i, each in enumerate(schemas)}
    offered = OfferedTools(schemas=schemas, places=places, **wanted)
    return ToolCalls(offered=offered, form=answer_format(name, None), parallel=True)


def strict(name: str, schemas: dict[str, Any]) -> GrammarMatcher:
    found = asked(name, schemas, strict=frozenset(schemas)).syntax(None)
    assert found.constraint is not None
    return next_answer(BACKEND, found.constraint)


def way(name: str) -> CallSyntax:
    shape = answer_format(name, None).shape
    assert shape is not None
    return shape.syntaxes[0]


def call(name: str, value: str, *, json_tag: bool = False) -> str:
    """Of `f` with `a`, as the model writes it."""
    syntax = way(name)
    begin, end = syntax.section or ("", "")
    if isinstance(tags := syntax.arguments, ParameterTags):
        opened = (tags.json_begin if json_tag else tags.begin).replace(KEY, "a")
        value = f"{opened}{tags.edge}{value}{tags.edge}{tags.end}"
    else:
        value = f"a={value}"
    return f"{begin}{syntax.begin.replace(NAME, 'f')}{value}{syntax.end}{end}"


def read(name: str, text: str, schemas: dict[str, Any]) -> list[list[str]]:
    parser = AnswerParser(answer_format(name, None), ParseOptions(tools=schemas))
    events = [event for character in text for event in parser.push(character)]
    return [
        [call.name, call.arguments] for call in run_now(gather([*events, *parser.finish()])).calls
    ]


def accepts(name: str, schema: Any, value: str) -> bool:
    """Where its tag says so, as the one or the other."""
    tags = way(name).arguments
    ways = [False, True] if isinstance(tags, ParameterTags) and tags.json_begin else [False]
    return any(ends(name, schema, call(name, value, json_tag=one)) for one in ways)


def ends(name: str, schema: Any, text: str) -> bool:
    drawn = strict(name, {"f": schema})
    ids = encode(f"So: {text}")
    if drawn.accept(ids) < len(ids) or not allowed(drawn)[EOS]:
        return False
    ((called, arguments),) = read(name, text, {"f": schema})
    jsonschema.validate(json.loads(arguments), schema, jsonschema.Draft202012Validator)
    return called == "f"


@pytest.mark.parametrize("name", [*TAGGED, *PYTHON])
def test_values_that_obey_can_be_said_and_no_others(name: str) -> None:
    wrong: list[Any] = []
    for schema, good, bad in VALUES:
        whole = offer(schema)
        if name in PYTHON or name == "deepseekv32":  # where strings may, or must, be JSON
            bad = [text for text in bad if not is_json(text, whole)]
        wrong += [(schema, text) for text in good if not accepts_in_own_words(name, whole, text)]
        wrong += [(schema, text) for text in bad if accepts(name, whole, text)]
    assert not wrong


def test_what_may_go_on_as_json_is_not_said() -> None:
    """The reader would look for the end of the string behind that of the tag."""
    schema = offer({"type": ["string", "null"]})
    for text in ('["a', '"x', '{"a": "b', '"a" "'):
        assert not accepts("glm47", schema, text) and accepts("qwen3_coder", schema, text)
        assert accepts("glm47", offer({"type": "string"}), text)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "x"}}</tool_call>'),
        ("glm45", "<tool_call>f<arg_key>a</arg_key><arg_value>x</arg_value></tool_call>"),
        ("glm47", "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>x</arg_value></tool_call>"),
        ("glm45", "<tool_call>g\n\n</tool_call>"),
        (
            "minimax-m2",
            '<minimax:tool_call><invoke name="f"><parameter name="a">x</parameter></invoke>'
            '<invoke name="g"></invoke></minimax:tool_call>',
        ),
        ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {"a": "x"}}]'),
        ("mistral", '[TOOL_CALLS]f[CALL_ID]a1b2c3d4e[ARGS]{"a": "x"}'),
        ("pythonic", "[f(a='x \"y\"', b=['u', \"v's\", None], c=None)]"),
        ("lfm2", "<|tool_call_start|>[f(a='x'), f(a=\"it's\", c=True)]<|tool_call_end|>"),
        ("pythonic", "[f(a='x', d={'e': None, 'm': {'n': True, \"o\": [1]}}), f(a='x', d={})]"),
        ("pythonic", '[f(a=\'x\', d={"e": null, "m": {}})]'),
        ("mistral", '[TOOL_CALLS] [{"name": "f", "arguments": {"a": "x"}, "id": "a1b2c3d4e"}]'),
        ("gpt-oss", '<|channel|>commentary to=functions.f<|message|>{"a": "x"}'),
        ("gpt-oss", ' to=functions.f<|channel|>commentary<|constrain|>json<|message|>{"a": "x"}'),
        ("gpt-oss", '<|channel|>commentary to=functions.f json<|message|>{"a": "x"}'),
    ],
)
def test_other_ways_to_write_a_call_can_be_said(name: str, text: str) -> None:
    """As the templates of other models of a family have them."""
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "string"},
            "b": {"type": "array", "items": {"type": ["string", "null"]}},
            "c": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
            "d": {
                "type": "object",
                "properties": {
                    "e": {"type": ["integer", "null"]},
                    "m": {"type": "object", "additionalProperties": {"type": ["boolean", "array"]}},
                },
                "additionalProperties": False,
            },
        },
        "required": ["a"],
    }
    schemas: dict[str, Any] = {"f": schema, "g": {}}
    for wanted in ({"strict": frozenset(schemas)}, {"required": tuple(schemas)}):
        found = asked(name, schemas, **wanted).syntax(None)
        assert found.constraint is not None
        drawn = BACKEND.compile(found.constraint)
        assert drawn.accept(encode(text)) == len(encode(text)) and allowed(drawn)[EOS]
    assert all(json.loads(arguments) is not None for _, arguments in read(name, text, schemas))


def test_a_long_text_that_is_forced_is_not_looked_ahead_at() -> None:
    """It took all the work that the library allows."""
    schema = offer({"type": "string", "pattern": "^a{1000}$"})
    assert accepts("qwen3_coder", schema, "a" * 1000)


def test_a_newline_behind_required_calls_is_no_promise_of_another() -> None:
    found = asked("qwen3_coder", {"g": {}}, required=("g",)).syntax(None)
    assert found.constraint is not None
    drawn = BACKEND.compile(found.constraint)
    said = encode("<tool_call>\n<function=g>\n</function>\n</tool_call>\n")
    assert drawn.accept(said) == len(said) and allowed(drawn)[EOS] and allowed(drawn)[ord("<")]


@pytest.mark.parametrize("name", ["qwen3_coder", "pythonic"])
def test_a_required_parameter_that_is_not_listed_obeys_what_others_do(name: str) -> None:
    schema = {"type": "object", "required": ["a"], "additionalProperties": {"type": "integer"}}
    assert accepts(name, schema, "3") and not accepts(name, schema, '"x"')


@pytest.mark.parametrize("name", ["qwen3_coder", "pythonic"])
@pytest.mark.parametrize(
    ("said", "open"),
    [({}, False), ({"properties": {}}, False), ({"required": ["a"]}, True)]
    + [({"additionalProperties": others}, others is not False) for others in (True, {}, False)],
)
def test_parameters_are_those_that_are_listed(name: str, said: Any, open: bool) -> None:
    schema = {"type": "object", "properties": {"b": {"type": "null"}}, **said}
    assert accepts(name, schema, "3") is open


def accepts_in_own_words(name: str, schema: Any, text: str) -> bool:
    """The value of a text."""
    written = json.dumps(text, ensure_ascii=False)
    words = {"True": "true", "False": "false", "None": "null"}
    back = {word: own for own, word in words.items()}
    tried = [text, words.get(text, text), back.get(text, text), written]
    return any(accepts(name, schema, one) for one in tried[: 1 if name in NATURAL else 4])


def is_json(text: str, schema: Any) -> bool:
    """That obeys, as `a`."""
    try:
        jsonschema.validate({"a": json.loads(text)}, schema)
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


SCHEMAS: dict[str, Any] = {
    "f": offer({"type": "string"}),
    "g": {
        "type": "object",
        "properties": {
            "s": {"type": ["string", "null"]},
            "e": {"anyOf": [COLOR, {"type": "null"}, {"type": "boolean"}]},
            "p": {"type": "string", "pattern": "^[ab]{1,3}$"},
            "l": {"type": "array", "items": {"type": "string", "maxLength": 3}, "maxItems": 2},
            "i": {"type": "integer", "minimum": 1, "maximum": 20},
        },
        "required": ["e", "l"],
        "additionalProperties": {"type": "integer"},
    },
    "h": {},
}
WORDS = ["<tool_call>\n", "[f(a=", "[g(e=", "</function>", "<function=", '", ', '"', ")]", "\n"]


@pytest.mark.parametrize("name", [*TAGGED, *PYTHON])
def test_whatever_is_drawn_obeys(name: str) -> None:
    """By a model that likes to say what begins and ends things."""
    rng, called = np.random.default_rng(1), 0
    syntax = way(name)
    tags = syntax.arguments
    begin, end = syntax.section or ("", "")
    words = [*WORDS, begin + syntax.begin.replace(NAME, "g"), begin, end, syntax.end, syntax.begin]
    if isinstance(tags, ParameterTags):
        keys = [one.replace(KEY, key) for key in "aselx" for one in (tags.begin, tags.json_begin)]
        words += [*keys, tags.end, tags.edge + tags.end, *tags.excluded]
    likes = [encode(word) for word in words if word]
    special = np.isin(np.arange(SIZE), VOCABULARY.special_ids)
    for _ in range(20):
        drawn = strict(name, SCHEMAS)
        text, ended = list[int](), False
        while len(text) < 900:
            word = likes[rng.integers(len(likes))]
            if drawn.copy().accept(word) == len(word) and rng.random() < 0.7:
                drawn.accept(word)
                text += word
                continue
            mask = allowed(drawn)
            if ended := bool(mask[EOS]) and len(text) > 400:
                break
            ids = np.flatnonzero(mask & ~special)
            text.append(int(rng.choice(ids)))
            assert drawn.accept(text[-1:]) == 1
        whole = spell(text).decode(errors="replace")
        found = read(name, whole, SCHEMAS)
        for one, arguments in found if ended else found[:-1]:
            jsonschema.validate(json.loads(arguments), SCHEMAS[one] or {"maxProperties": 0})
            called += 1
    assert called > 4


PATTERNS = {"properties": {name: {"type": "string", "pattern": "a" * 9_000} for name in "abc"}}
"""which would take the event loop's time"""
FORMATS = {
    "properties": {f"a{number}": {"$ref": "#/$defs/x"} for number in range(100)},
    "$defs": {"x": {"anyOf": [{"type": "string", "format": "date-time"} for _ in range(100)]}},
}
"""7 KB, of which expressions of 4 MB would become"""
LARGE = {
    "properties": {name: {"$ref": "#/$defs/x"} for name in "abcde"},
    "$defs": {"x": {"title": "x" * 200_000}},
}


def referring(depth: int) -> dict[str, Any]:
    """A parameter whose type refers to itself behind a chain: twice to each, so that there are
    2**depth ways to its end, a text."""
    twice = {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(depth)}
    last = {"anyOf": [{"$ref": "#/$defs/d0"}, *[{"type": "string"}] * (depth > 0)]}
    return {
        "properties": {"a": {"$ref": "#/$defs/d0"}},
        "required": ["a"],
        "$defs": {**twice, f"d{depth}": last},
    }


@pytest.mark.parametrize("name", [*TAGGED, *PYTHON])
def test_types_that_refer_to_themselves_are_read_once(name: str) -> None:
    """And text that a parser reads by them."""
    schema = referring(2000)
    wanted = asked(name, {"f": schema}, strict=frozenset({"f"})).syntax(None)
    assert wanted.constraint is not None
    if name in NATURAL:
        assert read(name, call(name, "3"), {"f": schema}) == [["f", '{"a": "3"}']]


@pytest.mark.parametrize("properties", [["a"], "a", 3, {"a": ["string"]}, {"a": {"$ref": 3}}])
def test_parameters_that_are_no_schemas_are_read_all_the_same(properties: Any) -> None:
    found = read("qwen3_coder", call("qwen3_coder", "x"), {"f": {"properties": properties}})
    assert found == [["f", '{"a": "x"}']]


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        (offer({"type": "string", "format": "ipv6"}), "properties.a.format"),
        (offer({"type": "string", "not": {"const": "x"}}), "properties.a.not"),
        (offer({"type": "string", "pattern": "^a|b$"}), "properties.a.pattern"),
        (offer({"type": "string", "enum": [f"{TAG}<parameter="]}), "properties.a"),
        (offer({"type": "array", "items": {"$ref": "#/properties/n"}}), "properties.a.$ref"),
        (
            {"additionalProperties": [{"$ref": "#/$defs/x"}], "$defs": {"x": {}}},
            "additionalProperties",
        ),
        (offer({"$ref": "#/$defs/color", "minLength": 2}), "properties.a.$ref"),
        (offer({"type": "string", "anyOf": 3}), "properties.a.anyOf"),
        (offer({"type": "str"}), "properties.a.type"),
        (offer({"type": "string", "required": True}), "properties.a.required"),
        ({"required": ["a"], "additionalProperties": False}, "required"),
        ({"allOf": [{"type": "object"}, {}]}, "allOf"),
        ({"properties": {"<": {}}}, "properties.<"),
        ({"properties": {"a": False}, "required": ["a"]}, "properties.a"),
        ({"$ref": "#/nothing"}, ""),
        (offer({"type": "string", "pattern": "a)|(b"}), "properties.a.pattern"),
        (referring(0), "properties.a"),
        (offer({"type": "string", "enum": ["a"] * 1001}), "properties.a.enum"),
        (offer({"anyOf": [{"enum": [*range(900)]}, {"enum": [*"ab"] * 51}]}), "properties.a"),
        (LARGE, "properties.e"),
        (PATTERNS, "properties.b"),
        (FORMATS, "properties.a7.anyOf.89"),
    ],
)
def test_what_tags_cannot_say_is_refused_but_required_as_json(schema: Any, place: str) -> None:
    name = "qwen3_coder"
    with pytest.raises(BadRequest) as caught:
        strict(name, {"f": schema})
    assert caught.value.field == f"tools[0].function.parameters.{place}".rstrip(".")
    required = asked(name, {"f": schema}, required=("f",)).syntax(None)
    assert required.constraint is not None and '{\\"name\\": \\"f\\"' in required.constraint.text


@pytest.mark.parametrize(("size", "told"), [(15_000, "end"), (60_000, "large")])
def test_a_pattern_with_sets_without_an_end_takes_no_time(size: int, told: str) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "[" * size}}}
    begun = time.thread_time()
    with pytest.raises(BadRequest, match=told):
        asked("qwen3_coder", {"f": schema}, strict=frozenset("f")).syntax(None)
    assert time.thread_time() - begun < 1.0


def test_names_that_python_has_not_cannot_be_called() -> None:
    with pytest.raises(BadRequest) as caught:
        strict("pythonic", {"a-b": {}})
    assert caught.value.field == "tools[0].function.name"
    loose = asked("pythonic", {"a-b": {}, "f": {}}, strict=frozenset({"f"})).syntax(None)
    assert loose.constraint is not None and "a-b" not in loose.constraint.text
