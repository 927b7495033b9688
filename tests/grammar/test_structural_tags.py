"""Structural tags: which answers can end, and what is refused."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from grammar_kit import compiled, obeys

from vivace.grammar.backend import GrammarError, JsonFormat
from vivace.grammar.source import GrammarDialect, translate
from vivace.grammar.tool_tags import (
    any_text,
    defined,
    json_calls,
    json_value,
    listed,
    tagged,
    text_rules,
    triggered,
    with_definitions,
)
from vivace.protocol.constraints import STRUCTURAL_TAG, Constraint

NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
NUMBER |= {"additionalProperties": False}
TEXT = {"type": "string", "enum": ["a", "b"]}
LEGACY = {
    "structures": [
        {"begin": "<fn=f>", "schema": NUMBER, "end": "</fn>"},
        {"begin": "<fn=g>", "schema": TEXT, "end": "</fn>"},
    ],
    "triggers": ["<fn="],
}


def fits(tag: Any, text: str) -> bool:
    if isinstance(tag, Constraint):
        return obeys(tag.kind, tag.text, text)
    return obeys(STRUCTURAL_TAG, tag if "structures" in tag else {"format": tag}, text)


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("no call at all", True),
        ("", True),
        ('first <fn=f>{"n":3}</fn>', True),
        ('<fn=f>{"n":3}</fn> and <fn=g>"a"</fn> then < fn', True),
        ('<fn=f>{"n":"x"}</fn>', False),
        ('<fn=f>{"n":3}', False),
        ('<fn=g>"c"</fn>', False),
        ("<fn=h>1</fn>", False),
        ("<fn=", False),
        ('<fn=f>{"n":3}</fn><fn=', False),
    ],
)
def test_triggered_structures(text: str, good: bool) -> None:
    assert fits(LEGACY, text) is good


def constant(value: str) -> dict[str, str]:
    return {"type": "const_string", "value": value}


def schema(value: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": value}


def tag(begin: str, content: Any, end: Any) -> dict[str, Any]:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def repeated(kind: str, content: Any, **bounds: Any) -> dict[str, Any]:
    return {"type": kind, "content": content, **bounds}


ANY = {"type": "any_text"}
STRUCTURE = {"begin": "<", "schema": {}, "end": ">"}
DIGITS = {"type": "regex", "pattern": "[0-9]+/[0-9]"}
CALLS = [tag("<a>", schema(NUMBER), "</a>"), tag("<b>", DIGITS, "</b>")]


@pytest.mark.parametrize(
    ("form", "good", "bad"),
    [
        (constant("ab"), ["ab"], ["a", "abc", ""]),
        (DIGITS, ["12/3"], ["12", "a/1"]),
        ({"type": "grammar", "grammar": 'root ::= "x" | "y" root'}, ["x", "yyx"], ["y", ""]),
        (ANY, ["", "anything\n at all"], []),
        (
            {"type": "sequence", "elements": [constant("a "), schema(TEXT), constant(".")]},
            ['a "b".'],
            ['a "c".', 'a "b"'],
        ),
        ({"type": "or", "elements": [constant("a"), schema(TEXT)]}, ["a", '"a"'], ["b"]),
        (tag("<t>", ANY, "</t>"), ["<t>x\ny</t>", "<t></t>"], ["<t>x", "<t>x</t>y"]),
        (tag("<t>", ANY, ["</t>", "!"]), ["<t>x!", "<t>x</t>"], ["<t>x"]),
        (
            {"type": "sequence", "elements": [tag("<t>", ANY, "</t>"), schema(NUMBER)]},
            ['<t>{"n":2}</t>{"n":1}'],
            ["<t></t>", '{"n":1}'],
        ),
        (constant("\x00a\x1f\x7f\x80"), ["\x00a\x1f\x7f\x80"], ["a"]),
        (
            {"type": "sequence", "elements": [ANY, constant("!"), ANY]},
            ["a!", "a!b!", "!"],
            ["a"],
        ),
        (
            {"type": "triggered_tags", "triggers": ["<a", "<b"], "tags": CALLS},
            ["x", 'x<a>{"n":1}</a>y<b>1/2</b>', "<b>1/2</b>"],
            ["<a>", "<b>1</b>", "<ac"],
        ),
        (
            {"type": "triggered_tags", "triggers": ["<"], "at_least_one": True, "tags": [
                {key: value for key, value in CALLS[0].items() if key != "type"}
            ]},
            ['<a>{"n":1}</a>'],
            ["<a>"],
        ),
        (
            {
                "type": "triggered_tags",
                "triggers": ["<"],
                "tags": CALLS,
                "at_least_one": True,
            },
            ['<a>{"n":1}</a>', '<a>{"n":1}</a> more <b>1/2</b>'],
            ["x", "", 'x<a>{"n":1}</a>'],
        ),
        (
            {
                "type": "triggered_tags",
                "triggers": ["<"],
                "tags": CALLS,
                "stop_after_first": True,
            },
            ["x", 'x <a>{"n":1}</a>'],
            ['<a>{"n":1}</a> more', "<"],
        ),
        (
            {"type": "tags_with_separator", "separator": ", ", "tags": CALLS},
            ["", "<b>1/2</b>", '<b>1/2</b>, <a>{"n":1}</a>'],
            ["<b>1/2</b>, ", "<b>1/2</b><b>1/2</b>"],
        ),
        (repeated("optional", constant("a")), ["", "a"], ["aa"]),
        (repeated("star", CALLS[1]), ["", "<b>1/2</b><b>3/4</b>"], ["<b>1/2</b>, "]),
        (repeated("plus", repeated("optional", constant("a"))), ["", "a", "aaa"], ["b"]),
        (repeated("repeat", schema(TEXT), min=1, max=2), ['"a"', '"a""b"'], ["", '"a"' * 3]),
        (repeated("repeat", constant("a"), min=2, max=-1), ["aa", "a" * 50], ["a"]),
        (repeated("optional", ANY), ["", "anything"], []),
        (tag("<|call|>", schema(TEXT), "<|call|>"), ['<|call|>"a"<|call|>'], ['<|call|>"a"']),
        (
            {"type": "triggered_tags", "triggers": ["<|call|>"], "tags": [
                tag("<|call|>f", schema(TEXT), "!")
            ]},
            ["x", 'x <|call|>f"a"! y'],
            ["<|call|>", "<|call|>g"],
        ),
        *[
            (
                {"type": "triggered_tags", "triggers": ["<"], "tags": [
                    tag("<", {"type": "regex", "pattern": "b{1,2}"}, end)
                ]},
                [f"<b{text}<bb{text}", f"a<b{text}b"],
                [f"<b{text}<", f"<b{text}<a", f"a<b{text}a<"],
            )
            for end, text in (("", ""), (["", ">"], ""), ([">", ">>"], ">"), (["c", "cc"], "c"))
        ],
        *[
            ({"type": "sequence", "elements": [
                {"type": "regex", "pattern": "[bc]{1,2}"}, ANY, constant(end)
            ]}, good, bad)
            for end, good, bad in (
                ("!", ["b!", "bc!", "bca!"], ["b!!", "bc!a!", "!"]),
                ("<|call|>", ["b<|call|>"], ["b<|call|>b<|call|>"]),
            )
        ],
        (
            {"type": "sequence", "elements": [
                {"type": "regex", "pattern": "c{1,2}"},
                {"type": "any_text", "patterns": ["[ab]{1,3}"]},
                constant("!"),
            ]},
            ["ca!", "ccbab!"],
            ["c!", "cc!", "ca!!"],
        ),
        *[
            (
                tag("<", {"type": "any_text", "patterns": ["(?s:.{3,})"], "unlike": ["abc"]}, end),
                ["<abcd```", "<a`bd```"],
                ["<a```bcd```", "<ab````", "<abc```", "<abc````", "<abc``!d```"][:count],
            )
            for end, count in (("```", 4), (["```", "``!"], 5))
        ],
        (
            {"type": "triggered_tags", "triggers": ["<b>"], "tags": CALLS[1:], "unlike": ["a"]},
            ["aa<b>1/2</b>", "ab"],
            ["a<b>1/2</b>", "a<b>c", "a<b>c<b>1/2</b>"],
        ),
        (
            {"type": "sequence", "elements": [
                schema({"type": "integer"}),
                {"type": "triggered_tags", "triggers": ["<"], "tags": CALLS},
            ]},
            ["1", "1<b>1/2</b>", "12 <b>1/2</b>"],
            ["1<", "1<c", "1<b>1/2</b><"],
        ),
    ],
)  # fmt: skip
def test_formats(form: dict[str, Any], good: list[str], bad: list[str]) -> None:
    assert [text for text in good if not fits(form, text)] == []
    assert [text for text in bad if fits(form, text)] == []


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ({}, "format"),
        ({"format": {"type": "loop"}}, "format.type"),
        ({"format": {"value": "a"}}, "'missing' is none of const_string"),
        ({"format": {"type": "sequence", "elements": []}}, "format.elements"),
        ({"format": {"type": "sequence", "elements": [ANY, schema(1)]}}, "elements.0"),
        ({"format": tag("<", schema({"not": {"const": 1}}), ">")}, "not"),
        ({"format": repeated("star", ANY)}, "format.content: any_text must end"),
        ({"format": repeated("optional", None)}, "format.content: must be an object"),
        ({"format": repeated("repeat", ANY, max=2)}, "format: min and max must be"),
        ({"format": repeated("repeat", ANY, min=0, max=1001)}, "format: min and max must be"),
        ({"format": repeated("repeat", ANY, min="0", max=[1])}, "format: min and max must be"),
        ({"format": repeated("repeat", ANY, min=3, max=2)}, "format: min and max must be"),
        ({"format": repeated("repeat", ANY, min=0, max=0)}, "format: min and max must be"),
        ({"format": tag("<", schema(3), ">")}, "format.content.json_schema"),
        ({"format": tag("<", schema({}), 1)}, "format.end"),
        ({"format": {"type": "regex", "pattern": "("}}, "pattern: unclosed"),
        ({"format": {"type": "grammar", "grammar": 'root ::= "a" root'}}, "never ends"),
        ({"format": {"type": "grammar", "grammar": 'start: "@b" | @grammar_0'}}, "@grammar_0"),
        ({"format": {"type": "triggered_tags", "triggers": ["["], "tags": CALLS}}, "triggers"),
        ({"structures": 1, "triggers": ["<"]}, "structures and triggers"),
        ({"structures": [1], "triggers": ["<"]}, "structures.0"),
        ({"structures": [], "triggers": []}, "structures"),
        ({"structures": [{"begin": 1, "end": ""}], "triggers": ["<"]}, "structures.0.begin"),
        ({"structures": [{"begin": "<"}], "triggers": ["<"]}, "structures.0.end"),
        ({"structures": [{"begin": "<", "end": [1]}], "triggers": ["<"]}, "structures.0.end"),
        ({"structures": [STRUCTURE], "triggers": []}, "triggers"),
        ({"structures": [STRUCTURE], "triggers": ["<", ""]}, "triggers.1"),
        ({"structures": [STRUCTURE], "triggers": ["["]}, "triggers.0"),
        ({"structures": [{**STRUCTURE, "schema": 1}], "triggers": ["<"]}, "structures.0.schema"),
        ("[", "JSON"),
    ],
)
def test_refusals_of_tags(given: Any, place: str) -> None:
    with pytest.raises(GrammarError) as caught:
        compiled(STRUCTURAL_TAG, given)
    assert place in str(caught.value)
    assert "structures" not in given or "format" not in str(caught.value)


TAGS = [
    tagged('{"f": ', json_value(NUMBER, "tools[0]"), "}"),
    tagged("<g>", json_value(TEXT, "tools[1]"), "</g>"),
]
WORDS = any_text(["<", "stop"], patterns=["[a-z<>]{2,5}"], unlike=["ab|cd"])


@pytest.mark.parametrize(
    ("form", "good", "bad"),
    [
        (
            listed(TAGS, "\n"),
            ['{"f": {"n":1}}', '<g>"a"</g>\n{"f": {"n":1}}'],
            ["", 'say <g>"a"</g>', '<g>"a"</g>\n'],
        ),
        (listed(TAGS, several=False), ['<g>"a"</g>'], ['<g>"a"</g><g>"a"</g>']),
        (
            triggered(TAGS, ['{"f"', "<g>"], text_rules(["<h>"])),
            ["hello <h", 'x {"f": {"n":1}} y'],
            ["<g>", '{"f"', '<g>"x"</g>', "a <h>", '<g>"a"</g> <h>'],
        ),
        (
            json_calls(
                {
                    "f": json_value(NUMBER, "tools[0]"),
                    "g": json_value({"type": "object"}, "tools[1]"),
                }
            ),
            [
                '[{"name": "f", "parameters": {"n":1}}]',
                '[{"name": "g", "parameters": {"x": []}}, {"name": "f", "parameters": {"n": 1}}]',
            ],
            ["[]", '[{"name": "f", "parameters": {}}]', '[{"name": "h", "parameters": {}}]'],
        ),
        (
            json_calls({"f": json_value(NUMBER, "tools[0]")}, parallel=False),
            ['[{"name": "f", "parameters": {"n":1}}]'],
            [json.dumps([{"name": "f", "parameters": {"n": 1}}] * 2)],
        ),
        (
            tagged("(", WORDS, ">)"),
            ["(abc>)", "(a>>)", "(abcde>)"],
            ["(ab>)", "(cd>)", "(abcdef>)", "(a<b>)", "(stop>)", "(astop>)"],
        ),
        (
            with_definitions({"g": TAGS[1]}, listed([defined("g")], "|")),
            ['<g>"a"</g>', '<g>"a"</g>|<g>"b"</g>'],
            ["g", ""],
        ),
        (
            triggered([tagged("<|call|>f", json_value(TEXT, ""), "")], ["<|call|>"], {}),
            ['a <|call|>f"a" b', "<|call"],
            ["a <|call|>", "<|call|>x"],
        ),
    ],
)
def test_tool_calls(form: dict[str, Any], good: list[str], bad: list[str]) -> None:
    assert [text for text in good if not fits(form, text)] == []
    assert [text for text in bad if fits(form, text)] == []


def test_special_tokens_cannot_be_spelled() -> None:
    """What looks like one to the parser is one."""
    form = triggered([tagged("<|call|>f", json_value(TEXT, ""), "")], ["<|call|>"], {})
    drawn = compiled(STRUCTURAL_TAG, {"format": form})
    assert drawn.accept([*b"a <|call|>"]) == len("a <|call|")


@pytest.mark.parametrize(
    "form",
    [
        defined("a"),
        with_definitions({"b": defined("b")}, defined("b")),
        {"type": "definitions", "formats": [], "format": TAGS[0]},
        {"type": "any_text", "excludes": [1]},
        {"type": "any_text", "excludes": [""]},
        {"type": "sequence", "elements": [ANY, {"type": "const_string", "value": ""}]},
    ],
)
def test_references_are_to_what_came_before(form: Any) -> None:
    with pytest.raises(GrammarError):
        compiled(STRUCTURAL_TAG, {"format": form})


ANY_TAG = {"type": "tag", "begin": "aa", "content": {"type": "any_text"}, "end": "b"}


def schema_tag(value: str) -> dict[str, Any]:
    return {**ANY_TAG, "content": {"type": "json_schema", "json_schema": {"enum": [value]}}}


@pytest.mark.parametrize(
    ("form", "told"),
    [
        ({"type": "const_string", "value": "a<|call|>" * 6000}, "texts"),
        ({**ANY_TAG, "end": [f"b{number}" for number in range(11_000)]}, "texts"),
        (
            {"type": "triggered_tags", "triggers": ["a", "aa"], "tags": [ANY_TAG] * 5000},
            "texts",
        ),
        (
            {
                "type": "triggered_tags",
                "triggers": ["a", "aa"],
                "tags": [schema_tag(f"{number}" * 4000) for number in range(100, 200)],
            },
            "large",
        ),
    ],
)
def test_what_multiplies_is_refused_while_it_grows(form: dict[str, Any], told: str) -> None:
    begun = time.thread_time()
    with pytest.raises(GrammarError, match=told):
        compiled(STRUCTURAL_TAG, {"format": form})
    assert time.thread_time() - begun < 2.0


def test_what_is_written_several_times_is_one_rule() -> None:
    tags = [schema_tag("x"), {**schema_tag("x"), "begin": "a"}, schema_tag("y")]
    form = {"type": "triggered_tags", "triggers": ["a", "aa"], "tags": [*tags, tags[0]]}
    (grammar,) = translate(
        Constraint(kind=STRUCTURAL_TAG, text=json.dumps({"format": form})),
        GrammarDialect(JsonFormat(), {}),
    )
    assert grammar.count("%json") == 2
    assert fits(form, 'so a"x"b') and fits(form, 'so aa"x"b') and fits(form, 'so aa"y"b')
    assert not fits(form, 'so a"y"b')


def test_the_same_trigger_or_end_counts_once() -> None:
    form = {
        "type": "triggered_tags",
        "triggers": ["a"] * 20_000,
        "tags": [{**ANY_TAG, "end": ["b"] * 20_000}],
    }
    assert compiled(STRUCTURAL_TAG, {"format": form})
