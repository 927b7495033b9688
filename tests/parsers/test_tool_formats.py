"""Tool calls of every family: what is found in an answer, whole and however it is cut."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transcripts import HARMONY, TOOLS, TRANSCRIPTS, TWO, Parsed, Transcript, cut, gathered

from vivace.parsers.events import CallStart
from vivace.parsers.formats import REASONING_FORMATS, TOOL_FORMATS
from vivace.parsers.names import HARMONY as HARMONY_NAME
from vivace.parsers.names import REASONING_PARSERS, TOOL_CALL_PARSERS
from vivace.parsers.parser import AnswerParser, ParseOptions, answer_format

OFFERED = ParseOptions(tools=TOOLS)
IDS = [f"{number}-{each.parser}" for number, each in enumerate(TRANSCRIPTS)]


def parse(
    tools: str | None,
    pieces: list[str],
    reasoning: str | None = None,
    options: ParseOptions = OFFERED,
    *,
    cut_off: bool = False,
) -> Parsed:
    parser = AnswerParser(answer_format(tools, reasoning), options)
    events = [event for piece in pieces for event in parser.push(piece)]
    return gathered(events + parser.finish(cut=cut_off))


def check(found: Parsed, transcript: Transcript, content: str) -> None:
    calls = [(name, json.loads(arguments)) for name, arguments in found.calls]
    assert calls == list(transcript.calls)
    assert found.content == content


def test_every_name_has_a_format() -> None:
    assert set(TOOL_CALL_PARSERS) == {*TOOL_FORMATS, HARMONY_NAME}
    assert set(REASONING_PARSERS) == {*REASONING_FORMATS, HARMONY_NAME}
    assert {each.parser for each in TRANSCRIPTS} == set(TOOL_FORMATS)


@pytest.mark.parametrize("transcript", TRANSCRIPTS, ids=IDS)
def test_calls_are_found(transcript: Transcript) -> None:
    check(parse(transcript.parser, [transcript.text]), transcript, "")


FRAMED = [each for each in TRANSCRIPTS if each.text[0] != "{"]
"""the others begin an answer"""


@pytest.mark.parametrize("transcript", FRAMED, ids=lambda each: each.parser)
def test_text_before_and_after_stays(transcript: Transcript) -> None:
    text = f"I'll look [1] < 2.\n\n{transcript.text}\n That's it.\n"
    check(parse(transcript.parser, [text]), transcript, "I'll look [1] < 2.That's it.\n")


@pytest.mark.parametrize("transcript", TRANSCRIPTS, ids=IDS)
def test_every_cut_says_the_same(transcript: Transcript) -> None:
    whole = parse(transcript.parser, [transcript.text])
    assert parse(transcript.parser, list(transcript.text)) == whole
    for place in range(1, len(transcript.text)):
        assert parse(transcript.parser, list(cut(transcript.text, [place]))) == whole


@pytest.mark.parametrize("transcript", TRANSCRIPTS, ids=IDS)
def test_answers_that_are_cut_off_say_the_same(transcript: Transcript) -> None:
    """In a stream and whole; what is there of the tag that comes last is no text."""
    name, text = transcript.parser, transcript.text
    form, whole = TOOL_FORMATS[name], parse(name, [text])
    last = next(
        (one for one in (*(form.section or ()), form.end) if one and text.endswith(one)), ""
    )
    for place in range(len(text)):
        found = parse(name, [text[:place]], cut_off=True)
        assert parse(name, list(text[:place]), cut_off=True) == found
        if place > len(text) - len(last) + 1:  # one character may begin something else
            assert found == whole
    assert parse(name, [f"{text}<"]).content == "<"
    opening = (*(form.section or ())[:1], form.begin)
    for said in (f"if a {one[:place]}" for one in opening for place in range(1, len(one))):
        assert parse(name, [said], cut_off=True) == Parsed("", said, [])
        assert parse(name, list(said), cut_off=True) == Parsed("", said, [])


HERMES_INPUT = '<tool_call>{"name": "search", "arguments": ```\n'
DEEPSEEK_INPUT = (
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>search\n```json\n```\n"
)
CODER_VALUE = "<tool_call><function=search><parameter=query>"


@pytest.mark.parametrize(
    ("name", "begin", "end"),
    [
        ("hermes", HERMES_INPUT, "\n```}</tool_call>"),
        ("deepseekv3", DEEPSEEK_INPUT, "\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"),
        ("qwen3_coder", CODER_VALUE, "</parameter></function></tool_call>"),
    ],
)
def test_what_is_left_of_an_end_is_no_input(name: str, begin: str, end: str) -> None:
    options = ParseOptions(tools=TOOLS, inputs=() if name == "qwen3_coder" else ("search",))
    before = '{"query": "' if name == "qwen3_coder" else ""
    for place in range(len(end)):
        text = f"{begin}SELECT 1{end[:place]}"
        found = parse(name, [text], options=options, cut_off=True)
        assert parse(name, list(text), options=options, cut_off=True) == found
        assert not found.content
        said = f"{before}SELECT 1{end[0] if place == 1 else ''}"
        assert found.calls[0][1].removesuffix('"}').removesuffix('"') == said


def test_the_newline_before_an_end_that_never_came_is_the_tags() -> None:
    """As Qwen's own parser has it: of a value that is cut off one newline is taken, too."""
    text = f"{CODER_VALUE}\nSELECT 1\n\n</parameter>"
    for place in range(len(CODER_VALUE) + 1, len(text)):
        found = parse("qwen3_coder", [text[:place]], cut_off=True)
        assert parse("qwen3_coder", list(text[:place]), cut_off=True) == found
        value = text[len(CODER_VALUE) + 1 : place]
        if value[-2:] != "\n<":  # which may begin something else
            value = value.partition("</")[0].removesuffix("\n")
        assert found.calls == [("search", f'{{"query": {json.dumps(value)[:-1]}')]


CODED = "<function=get_weather><parameter={}>{}</parameter></function>"
END = "</parameter>"
STEP3 = (
    "<｜tool_call_begin｜>function<｜tool_sep｜>{}"
    '<steptml:invoke name="now"></steptml:invoke><｜tool_call_end｜>'
)
FENCED = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n{}<｜tool▁call▁end｜>"
DSML = (
    '<｜DSML｜invoke name="get_weather"><｜DSML｜parameter name="{}">{}</｜DSML｜parameter>'
    "</｜DSML｜invoke>"
)
PIECES = sorted(
    {
        piece
        for each in TRANSCRIPTS
        for piece in (*each.text.partition(each.text[7:19]), each.text[:9], each.text[-9:])
        if piece
    }
)


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(TOOL_CALL_PARSERS),
    st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=5)), max_size=6),
    st.lists(st.integers(0, 400), max_size=12),
    st.booleans(),
)
def test_malformed_answers_are_cut_alike(
    name: str, pieces: list[str], places: list[int], cut_off: bool
) -> None:
    text = "".join(pieces)
    whole = parse(name, [text], cut_off=cut_off)
    assert parse(name, list(cut(text, places)), cut_off=cut_off) == whole
    assert parse(name, list(text), cut_off=cut_off) == whole


@pytest.mark.parametrize(
    ("name", "text", "arguments"),
    [
        ("hermes", '<tool_call>{"name": "now"}, {"name": "now"}</tool_call>', [{}, {}]),
        ("hermes", '<tool_call>{"name": "now", "arguments": "{\\"a\\": 1}"}', [{"a": 1}]),
        ("hermes", '<tool_call>{"arguments": "{}", "name": "now"}</tool_call>', [{}]),
        ("hermes", '<tool_call>{"name": "now", "arguments": "soon"}</tool_call>', ["soon"]),
        ("hermes", '<tool_call>{"name": "now", "arguments": ""}</tool_call>', [{}]),
        ("hermes", '<tool_call>[{"name": "now"}, {"name": "now"}]</tool_call>', [{}, {}]),
        ("llama3", '<|python_tag|>[{"name": "now"}, {"name": "now"}]', [{}, {}]),
        ("mistral", "[TOOL_CALLS]now[ARGS]null[TOOL_CALLS]now[TOOL_CALLS]now[ARGS]", [{}] * 3),
        *[
            ("gpt-oss", f"<|channel|>commentary to=functions.now<|message|>{said}", [{}])
            for said in ("null<|call|>", " \n<|call|>", " null ", "null<|end|>")
        ],
        ("deepseekv3", FENCED.format('```\n{"a": 1}\n```'), [{"a": 1}]),
        ("deepseekv3", FENCED.format("```json\n```"), [{}]),
        ("deepseekv3", FENCED.format("```json\nnull\n```"), [{}]),
        ("deepseekv3", FENCED.format("```"), [{}]),
        ("deepseekv32", DSML.format("city", "7") + DSML.format("days", "7"),
         [{"city": "7"}, {"days": 7}]),
        ("hermes", '<tool_call>{"name": "now", "arguments": {}, "why": [1]}</tool_call>', [{}]),
        ("step3", '<｜tool_call_begin｜><steptml:invoke name="now"></steptml:invoke>', [{}]),
        ("step3", STEP3.format("now\n"), [{}]),
        ("pythonic", "[now(a={'b', 'c'}, d={}, e={1: {2}})]",
         [{"a": ["b", "c"], "d": {}, "e": {"1": [2]}}]),
        ("pythonic", "[now(a=07, b=-05, c=.5, d=1_000)]", [{"a": 7, "b": -5, "c": 0.5, "d": 1000}]),
        ("lfm2", "<|tool_call_start|>[now(a='\\ud83d\\ude00', b='\\ud83d!')]<|tool_call_end|>",
         [{"a": "😀", "b": "\ufffd!"}]),
        ("qwen3_coder", CODED.format("places", "['a', \"b's\"]"), [{"places": ["a", "b's"]}]),
        ("qwen3_coder", CODED.format("places", "{'a': 1}"), [{"places": "{'a': 1}"}]),
        ("qwen3_coder", CODED.format("places", "['a'] or so"), [{"places": "['a'] or so"}]),
        ("qwen3_coder", CODED.format("units", "['a']"), [{"units": "['a']"}]),
        ("qwen3_coder", CODED.format("days", " 007"), [{"days": 7}]),
        ("qwen3_coder", CODED.format("days", "+3"), [{"days": 3}]),
        ("qwen3_coder", CODED.format("days", "3rd"), [{"days": "3rd"}]),
        ("qwen3_coder", CODED.format("exact", "TRUE"), [{"exact": True}]),
        ("qwen3_coder", CODED.format("exact", "0"), [{"exact": False}]),
        ("qwen3_coder", CODED.format("exact", "yes"), [{"exact": "yes"}]),
        ("qwen3_coder", CODED.format("places", f'["{END}", "\\"{END}"]'),
         [{"places": [END, f'"{END}']}]),
        ("qwen3_coder", f'<function=get_weather><parameter=places>["a{END}\n</function>',
         [{"places": '["a'}]),
        ("minimax-m2", '<invoke name="get_weather"><parameter name="city">a<parameter name="days">3'
         "</parameter></invoke>", [{"city": "a", "days": 3}]),
        ("minimax-m2", '<invoke name="get_weather"><parameter name="places">["<parameter name="]'
         "</parameter></invoke>", [{"places": ["<parameter name="]}]),
        ("glm45", "<tool_call>now<arg_key> a </arg_key><arg_value> b</arg_value></tool_call>",
         [{"a": " b"}]),
        ("pythonic", "[now(a='b' \"c\", d=['e' 'f'])]", [{"a": "bc", "d": ["ef"]}]),
        ("pythonic", "[now(a=\"\"\"b 'c'\n\"d\" \"\"\", e='', f='''\"''')]",
         [{"a": "b 'c'\n\"d\" ", "e": "", "f": '"'}]),
    ],
)  # fmt: skip
def test_other_spellings_of_calls(name: str, text: str, arguments: list[Any]) -> None:
    found = parse(name, [text])
    assert [json.loads(each) for _, each in found.calls] == arguments and not found.content
    assert parse(name, list(text)) == found


@pytest.mark.parametrize("name", ["hermes", "llama3", "mistral", "interns1"])
@pytest.mark.parametrize("key", ["a" * 300, '\\"' * 200, "\\u00e4" * 60, "a" * 256])
def test_names_that_are_too_long_are_cut_alike(name: str, key: str) -> None:
    begin, _, _ = next(each.text for each in TRANSCRIPTS if each.parser == name).partition("{")
    call = f'{begin}{{"name": "search", "{ARGUMENTS[name]}": {{}}}}'
    for text in (f'{begin}{{"{key}": 1, {call}', f'{begin}{{"name": "{key}{call}'):
        whole = parse(name, [text])
        assert parse(name, list(text)) == whole
        assert parse(name, list(cut(text, list(range(0, len(text), 7))))) == whole


ARGUMENTS = {"hermes": "arguments", "llama3": "parameters", "mistral": "arguments"}
ARGUMENTS["interns1"] = "parameters"


def test_argument_deltas_come_while_the_model_writes() -> None:
    parser = AnswerParser(answer_format("hermes", None), OFFERED)
    parser.push('<tool_call>\n{"name": "search", "arguments": {"query": "')
    found = [gathered([CallStart(0, "", "search"), *parser.push(piece)]) for piece in ("ab", "cd")]
    assert [each.calls[0][1] for each in found] == ["ab", "cd"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", '<tool_call>\n{"name": "unknown", "arguments": {"a": 1}}\n</tool_call>'),
        ("hermes", "<tool_call>\nnot JSON\n</tool_call>"),
        ("hermes", '<tool_call>\n{"name": "search"'),
        ("hermes", '<tool_call>\n{"query": "no name"}\n</tool_call>'),
        ("qwen3_coder", "<tool_call>\n<function=unknown>\n</function>\n</tool_call>"),
        ("llama3", '{"answer": 42, "name": "search"}'),
        ("llama3", "<|python_tag|>print(1)"),
        ("pythonic", "[1, 2, unknown(a=1)] [search(query=open)] [search("),
        ("mistral", "[TOOL_CALLS] nothing"),
        ("mistral", "[TOOL_CALLS] now is the time"),
        ("mistral", "[TOOL_CALLS]now[ARGS]3"),
        ("mistral", "[TOOL_CALLS]now nullify"),
        ("deepseekv31", "<｜tool▁call▁begin｜>now<｜tool▁sep｜>nullx<｜tool▁call▁end｜>"),
        ("deepseekv3", FENCED.format("```\nnothing\n```")),
        ("deepseekv31", "<｜tool▁calls▁begin｜>\nhm<｜tool▁calls▁end"),
        ("kimi_k2", "<|tool_call_begin|>search<|tool_call_argument_begin|>{}<|tool_call_end|>"),
        ("glm45", "<tool_call>search now"),
        ("minimax-m2", '<invoke name="unknown"></invoke>'),
        ("step3", "<｜tool_call_begin｜>function"),
    ],
)
def test_what_is_no_call_is_text(name: str, text: str) -> None:
    text = f"See: {text}" if name != "llama3" else text
    assert parse(name, [text]) == Parsed("", text, [])


REFERRED = {
    "$defs": {
        "point": {"type": "object"},
        "kind": {"const": "a"},
        "loop": {"$ref": "#/$defs/loop"},
    },
    "properties": {
        "at": {"$ref": "#/$defs/point"},
        "kind": {"anyOf": [{"$ref": "#/$defs/kind"}, {"type": "int"}]},
        "other kind": {"anyOf": [{"type": "NULL"}, {"$ref": "#/properties/kind/anyOf/1"}]},
        "loop": {"$ref": "#/$defs/loop"},
        "none": {"$ref": "#/$defs/none"},
    },
    "additionalProperties": {"type": "boolean"},
}


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("at", '{"x": 1}', {"x": 1}),
        ("kind", "3", 3),
        ("kind", "a", "a"),
        ("other kind", "3", 3),
        ("loop", "3", "3"),
        ("none", "3", "3"),
        ("other", "True", True),
    ],
)
def test_types_are_found_where_schemas_refer_to_them(key: str, value: str, expected: Any) -> None:
    text = CODED.format(key, value)
    for schema in (REFERRED, {"$defs": {**REFERRED["$defs"], "a": REFERRED}, "$ref": "#/$defs/a"}):
        found = parse("qwen3_coder", [text], options=ParseOptions(tools={"get_weather": schema}))
        assert [json.loads(each) for _, each in found.calls] == [{key: expected}]


def test_unknown_functions_are_called_where_they_are_forwarded() -> None:
    options = ParseOptions(tools=TOOLS, forwarded=True)
    text = '<tool_call>\n{"name": "unknown", "arguments": {}}\n</tool_call>'
    assert parse("hermes", [text], options=options).calls == [("unknown", "{}")]


def test_no_more_calls_than_allowed() -> None:
    text = '<tool_call>{"name": "now"}</tool_call>'
    found = parse("hermes", [text * 2], options=ParseOptions(tools=TOOLS, most_calls=1))
    assert found == Parsed("", text, [("now", "{}")])


def test_without_tools_nothing_is_parsed() -> None:
    text = TRANSCRIPTS[0].text
    assert parse("hermes", [text], options=ParseOptions()).content == text


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("hermes", '{"query": "cut of'),
        ("hermes", '{"a": }'),
        ("hermes", "{'query': 'Python'}"),
        ("hermes", '{"a": [1, 2}'),
    ],
)
def test_arguments_are_what_the_model_writes(name: str, arguments: str) -> None:
    text = f'<tool_call>\n{{"name": "search", "arguments": {arguments}'
    assert parse(name, [text]).calls == [("search", arguments)]


def test_an_end_outside_of_strings_ends_arguments() -> None:
    text = '<tool_call>{"name": "search", "arguments": {"a": {"b": 1}</tool_call> more'
    found = parse("hermes", [text])
    assert found.calls == [("search", '{"a": {"b": 1}')] and found.content == "more"


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("<function=search>\n<parameter=query>\ncut of", '{"query": "cut of'),
        ("<function=search>\n<parameter=query>\na\n</function>", '{"query": "a"}'),
        ("<function=search>\n<parameter=query>a<parameter=b>c</parameter></function>",
         '{"query": "a", "b": "c"}'),
    ],
)  # fmt: skip
def test_values_that_nobody_closed(text: str, arguments: str) -> None:
    assert parse("qwen3_coder", [text]).calls == [("search", arguments)]


@pytest.mark.parametrize("name", TOOL_CALL_PARSERS)
def test_ids_of_calls_differ(name: str) -> None:
    form = answer_format(name, None)
    found = {form.new_id("look", place) for place in range(50)}
    assert len(found) == 50
    assert name != "mistral" or all(len(each) == 9 and each.isalnum() for each in found)
    assert name != "kimi_k2" or "functions.look:7" in found


def test_messages_are_reasoning_text_and_calls() -> None:
    found = parse("gpt-oss", list(HARMONY), "gpt-oss")
    assert (found.reasoning, found.content) == ("Need the weather.", "One moment.")
    assert [(name, json.loads(text)) for name, text in found.calls] == list(TWO)
    for place in range(len(HARMONY)):
        assert parse("gpt-oss", list(cut(HARMONY, [place])), "gpt-oss") == found


def test_a_message_may_begin_with_its_recipient() -> None:
    text = f' to=functions.search<|channel|>commentary json<|message|>{{"a": 1}}<|call|>{HARMONY}'
    found = parse("gpt-oss", [text], "gpt-oss")
    assert found.calls[0] == ("search", '{"a": 1}') and len(found.calls) == 3
    assert parse("gpt-oss", list(text), "gpt-oss") == found


def test_messages_without_a_reasoning_parser_are_all_content() -> None:
    assert parse("gpt-oss", [HARMONY]).content == "Need the weather.One moment."


@pytest.mark.parametrize(
    "text",
    [
        "plain",
        " to=you",
        "<|channel|>",
        "<|channel|>final a text without a tag",
        "<|channel|>commentary to=functions.unknown<|message|>{}",
        "a <|b|>",
    ],
)
def test_messages_that_are_none_are_text(text: str) -> None:
    for cut_off in (False, True):
        assert parse("gpt-oss", [text], "gpt-oss", cut_off=cut_off) == Parsed("", text, [])


LONG: dict[str, Any] = {
    "text": ("hermes", "word < word [1] " * 20_000),
    "space": ("hermes", " \n" * 100_000),
    "begins": ("hermes", "<tool_call>" * 20_000),
    "early": ("hermes", '<tool_call>{"arguments": {' * 20_000),
    "string": ("hermes", '<tool_call>{"name": "now", "arguments": {"a": "' + "b" * 200_000),
    "json": ("hermes", '<tool_call>{"name": "now", "arguments": [' + '{"a": 1}, ' * 20_000),
    "value": ("qwen3_coder", "<function=now><parameter=a>" + "<b> \n" * 30_000),
    "number": ("qwen3_coder", "<function=get_weather><parameter=days>" + "<1" * 60_000),
    "names": ("deepseekv31", "<｜tool▁call▁begin｜>aaaaaaaa" * 15_000),
    "quoted": ("qwen3_coder", '<function=get_weather><parameter=days>["</parameter>' * 8_000),
    "list": ("pythonic", "[now(a=" * 20_000),
    "nested": ("pythonic", "[now(a=" + "[" * 200_000),
    "messages": ("gpt-oss", "<|channel|>" * 30_000),
}


def test_strings_that_are_cut_off_have_no_calls_in_them() -> None:
    begin = "<tool_call>get_weather<arg_key>places</arg_key><arg_value>"
    cut_off = '["</arg_value></tool_call><tool_call>now</tool_call>'
    assert parse("glm45", [begin + cut_off]).calls == [("get_weather", f'{{"places": {cut_off}')]


TAGS = {
    "qwen3_coder": ("<function=now>", "<parameter=a>1</parameter>", "</function>"),
    "glm45": ("<tool_call>now", "<arg_key>a</arg_key><arg_value>1</arg_value>", "</tool_call>"),
    "minimax-m2": ('<invoke name="now">', '<parameter name="a">1</parameter>', "</invoke>"),
}


@pytest.mark.parametrize("name", TAGS)
def test_long_schemas_are_looked_at_once(name: str) -> None:
    begin, tag, end = TAGS[name]
    schema = {"anyOf": [{"enum": list(range(50))} for _ in range(300)]}
    offered = ParseOptions(tools={"now": {"properties": {"a": schema}}})
    begun = time.process_time()
    found = parse(name, [(begin + tag * 9 + end) * 100], options=offered)
    assert len(found.calls) == 100 and time.process_time() - begun < 1.0


@pytest.mark.parametrize("kind", LONG)
def test_long_answers_take_time_in_proportion(kind: str) -> None:
    name, text = LONG[kind]
    parse(name, [text[:1000]])

    def seconds(length: int) -> float:
        parser = AnswerParser(answer_format(name, None), OFFERED)
        begin = time.process_time()
        for start in range(0, length, 4):
            parser.push(text[start : min(start + 4, length)])
        parser.finish()
        return time.process_time() - begin

    eighth = seconds(len(text) // 8)
    assert seconds(len(text)) < 8 * 4 * max(eighth, 0.02)
