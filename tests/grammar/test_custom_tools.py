"""Custom tools: what is drawn is read as their input, which obeys the grammar, in every syntax of
calls; and expressions inside strings of JSON."""

from __future__ import annotations

import json
import re
from contextlib import nullcontext, suppress

import numpy as np
import pytest
from call_parsers import DISTINCT
from grammar_kit import (
    EOS,
    VOCABULARY,
    backend,
    compiled,
    encode,
    next_answer,
    obeys,
    spell,
    walk_randomly,
)
from hypothesis import given
from hypothesis import strategies as st

from vivace.frontend.errors import BadRequest
from vivace.grammar.backend import GrammarError, JsonFormat
from vivace.grammar.endless_rules import check_input_ends
from vivace.grammar.flat_grammars import NO_FORCING, flat_terminals
from vivace.grammar.joint_matcher import STUCK
from vivace.grammar.llguidance_backend import LLGuidanceBackend
from vivace.grammar.masks import mask_words
from vivace.grammar.quoted_regex import quote_regex
from vivace.grammar.thinking import ThinkingBackend
from vivace.grammar.tool_tags import regex
from vivace.parsers.events import CallInput, CallStart
from vivace.parsers.inputs import InputReader
from vivace.parsers.parser import AnswerParser, ParseOptions, answer_format
from vivace.protocol.constraints import EBNF, REGEX, STRUCTURAL_TAG, Constraint
from vivace.requests.custom_tools import CustomDefinition, CustomFormat, GrammarDefinition
from vivace.requests.tool_constraints import ToolCalls, ToolSyntax
from vivace.requests.tools import ToolChoice, ToolDefinition, offered_tools

BACKEND = ThinkingBackend(backend(JsonFormat(compact=True)), VOCABULARY)
PATTERN = r'(?s)[a-c"\\]+\n?(?:\t.)?'
LARK = 'start: "{" lines "}"\nlines: WORD LF lines?\nWORD: /[ab"\\\\]+/\nLF: /\\n/\n'
ENDS = ["\n```", "</parameter>", "</arg_value>", "[TOOL_CALLS]", "<|call|", "</steptml:parameter>"]
ENDS += [")", "]", "}", "<｜tool▁call▁end｜>", "</｜DSML｜parameter>", "<|tool_call_end|>"]
PARTS = [part for end in ENDS for part in (end[:-1], end[-1]) if part]
FREE = f'start: "{{" ("\\n```" ({"|".join(map(json.dumps, PARTS))})){{1,50}} "e"'
"""has in it what may end an input"""
GRAMMARS = {"find": ("regex", PATTERN), "patch": ("lark", LARK), "quote": ("lark", FREE)}


def custom_tool(name: str, kind: str, text: str) -> ToolDefinition:
    form = CustomFormat(type="grammar", grammar=GrammarDefinition(syntax=kind, definition=text))
    return ToolDefinition(type="custom", custom=CustomDefinition(name=name, format=form))


TOOLS = [custom_tool(name, kind, text) for name, (kind, text) in GRAMMARS.items()]


class Body:
    def __init__(self, choice: str | ToolChoice | None, tools: list[ToolDefinition]) -> None:
        self.tools, self.tool_choice = tools, choice


def syntax(
    parser: str | None, choice: str | None, tools: list[ToolDefinition] = TOOLS
) -> tuple[ToolSyntax, ParseOptions]:
    offered = offered_tools(Body(choice, tools))
    found = ToolCalls(offered=offered, form=answer_format(parser, None), parallel=True).syntax(None)
    return found, ParseOptions(tools=offered.schemas, inputs=offered.inputs)


def read(found: ToolSyntax, options: ParseOptions, text: str) -> list[list[str]]:
    parser = AnswerParser(found.form, options)
    calls: list[list[str]] = []
    events = [event for character in text for event in parser.push(character)]
    for event in [*events, *parser.finish()]:
        if isinstance(event, CallStart):
            assert event.custom
            calls.append([event.name, ""])
        else:
            assert isinstance(event, CallInput), event
            calls[-1][1] += event.text
    return calls


@pytest.mark.parametrize("name", [None, *DISTINCT])
def test_inputs_obey_whatever_calls_look_like(name: str | None) -> None:
    rng = np.random.default_rng(3)
    found, options = syntax(name, "required")
    assert found.constraint is not None
    begin = "<|channel|>commentary" if name == "gpt-oss" else ""
    called = set[str]()
    for _ in range(15):
        drawn = next_answer(BACKEND, found.constraint)
        assert drawn.accept(encode(begin)) == len(begin)
        try:
            text = begin + spell(walk_randomly(drawn, rng, 3000)).decode()
        except AssertionError as stuck:
            assert stuck.args == (STUCK,)
            continue
        calls = read(found, options, text)
        assert calls, text
        for tool, said in calls:
            called.add(tool)
            kind = REGEX if tool == "find" else EBNF
            assert obeys(kind, GRAMMARS[tool][1], said), (text, said)
        if name is not None:
            free = syntax(name, None)[0].constraint
            assert free is not None
            assert next_answer(BACKEND, free).accept(encode(text)) == len(encode(text))
    assert called == set(GRAMMARS)


FENCED = {
    "mistral": "[TOOL_CALLS]page[ARGS]```\n%s\n```",
    "hermes": '<tool_call>{"name": "page", "arguments": ```\n%s\n```}</tool_call>',
    "pythonic": "[page(```\n%s\n```)]",
    "deepseekv3": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>page\n```json\n"
    "```\n%s\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
}


@pytest.mark.parametrize("text", [r'start: (/[^.]/)+ "."', 'start: x "."\nx: /[^.]/ x?'])
@pytest.mark.parametrize("name", FENCED)
def test_fences_in_inputs_end_none(name: str, text: str) -> None:
    tool = custom_tool("page", "lark", text)
    found, options = syntax(name, "required", [tool])
    assert found.constraint is not None
    for page in ("See\n```\nls\n```\n.", "```py\nx = [1]\n```\n\n```.", "\n```."):
        text = FENCED[name] % page
        assert BACKEND.compile(found.constraint).accept([*encode(text), EOS]) > len(encode(text))
        assert read(found, options, text) == [["page", page]]
    early = FENCED[name] % (FENCED[name].partition("%s")[2] + "[a.")
    assert BACKEND.compile(found.constraint).accept(encode(early)) < len(encode(early))


def test_masks_of_inputs_are_filled_together_as_alone() -> None:
    found, _ = syntax("hermes", "required")
    assert found.constraint is not None
    rows = [BACKEND.compile(found.constraint) for _ in range(3)]
    alone, masks = np.zeros((2, 1, mask_words(len(VOCABULARY.tokens))), np.int32)
    rows[0].fill(alone[0])
    BACKEND.fill([(rows[1], 0)], masks)
    assert alone.any() and np.array_equal(masks, alone)
    plain = BACKEND.compile(Constraint(kind=REGEX, text="a"))
    both = np.zeros((2, masks.shape[1]), np.int32)
    BACKEND.fill([(plain, 0), (rows[2], 1)], both)
    assert both[0].any() and np.array_equal(both[1:], alone)


CODEX = r"""
start: pragma_source | plain_source
pragma_source: PRAGMA_LINE NEWLINE SOURCE
plain_source: SOURCE
PRAGMA_LINE: /[ \t]*\/\/ @exec:[^\r\n]*/
NEWLINE: /\r?\n/
SOURCE: /[\s\S]+/
"""
"""its `exec`: the last terminal takes whatever comes"""
TAGGED = (
    "<tool_call>\n<function=page>\n<parameter=input>\n%s\n</parameter>\n</function>\n</tool_call>"
)


@pytest.mark.parametrize("name", [*FENCED, "qwen3_coder"])
@pytest.mark.parametrize("said", ["text(1)\n", "// @exec: {}\nx()", "a\n```\nb"])
def test_terminals_without_end_end_with_the_input(name: str, said: str) -> None:
    text = {**FENCED, "qwen3_coder": TAGGED}[name] % said
    for choice in ("required", None):
        found, options = syntax(name, choice, [custom_tool("page", "lark", CODEX)])
        assert read(found, options, text) == [["page", said]]
        assert found.constraint is not None
        drawn = BACKEND.compile(found.constraint)
        assert drawn.accept([*encode(text), EOS]) == len(encode(text)) + 1


BACK = "start: line\nline: %s\nREST: /[\\s\\S]+/\nALL: /x(?s:.)*/\n"
BACK += 'SAME: REST\nOTHER: "b" SAME\nANY: "b" (/[\\s\\S]/*\n  | ALL)\nMAY: "b" REST?\n'
BACK += "DOT: /(?s)b.+/\n"
BACK += 'SOME: "b"\n  | REST\nONE: /[\\s\\S]/\nBOTH: REST & /[ab]+/\n'


@pytest.mark.parametrize("name", ["hermes", "qwen3_coder"])
@pytest.mark.parametrize(
    ("rule", "ends"),
    [
        ('"a" line REST | REST', False),
        ('"a" line | /b.*/s', False),
        ('"a" line | ALL', False),
        *((f'"a" line | {name}', False) for name in ("SAME", "OTHER", "ANY", "MAY", "DOT")),
        *((f'"a" line | {name}', True) for name in ("SOME", "ONE", "ONE+", "BOTH")),
        ('"a" line | REST?', True),
        ('"a" line | REST | "."', True),
        ('"a" line | /b.*/', True),
        (r'"a" line | /b|[\s\S]+/', True),
    ],
)
def test_inputs_without_end_are_refused(name: str, rule: str, ends: bool) -> None:
    found = syntax(name, "required", [custom_tool("page", "lark", BACK % rule)])[0].constraint
    assert found is not None
    with nullcontext() if ends else pytest.raises(GrammarError, match=r"tools\[0\].*never"):
        BACKEND.compile(found)


def test_rules_that_end_by_what_they_say_are_no_inputs_without_end() -> None:
    for attribute, text in {
        'stop="END"': "abENDx",
        'capture="a]", suffix="END"': "abENDx",
        "max_tokens=3": "abcx",
        "lazy": "ax",
    }.items():
        lark = f'start: a "x"\na[{attribute}]: /[\\s\\S]*/\n'
        check_input_ends(lark)
        assert obeys(EBNF, lark, text)


@pytest.mark.parametrize(
    "more",
    [
        "",
        'c[max_tokens=3]: "q"',
        'd: "q" c\nc[lazy]: "q"',
        '//a[lazy]: "q"',
        'a[capture="suffix"]: "q"',
    ],
)
def test_only_a_rule_that_says_so_ends(more: str) -> None:
    with pytest.raises(GrammarError, match="never"):
        check_input_ends(f'start: b /[\\s\\S]+/\nb: "(" b ")" | "x"\n{more}\n')


FLAT = """
%import common.LF
%import common.INT -> NUMBER
?start: a ("x".."z" ~ 2..3 | [NUMBER])  -> one // ->
     | "->" LF
!a: /b|->/i
"""


def test_grammars_without_recursion_are_one_terminal() -> None:
    lines = flat_terminals(FLAT, "T")
    assert lines is not None
    grammar = "\n".join(["start: T0", *lines])
    for text in ("Bxyz", "->xx", "b7", "b", "->\n"):
        assert obeys(EBNF, grammar, text) and obeys(EBNF, FLAT, text), text
    for text in ("bx", "b77x", "one", "->->"):
        assert not obeys(EBNF, grammar, text) and not obeys(EBNF, FLAT, text), text


@pytest.mark.parametrize(
    "text",
    [
        "start: a\na: start?",
        "start: missing",
        'start: "a"\n%ignore " "',
        'start: %json {"type": "null"}',
        "start: <[3]>",
        'start.2: "a"',
        'a: "a"',
        'start: "a"\nstart: "b"',
        "start: /" + 4096 * "a" + "/",
        "start: ~~~",
        'start: "a" %llguidance {}',
        'start: "a" & /b/',
    ],
)
def test_other_grammars_are_not(text: str) -> None:
    assert flat_terminals(text, "T") is None


def test_empty_rules_are_terminals_too() -> None:
    grammar = 'start: "a" e\ne:\n'
    lines = flat_terminals(NO_FORCING + grammar, "T")
    assert lines is not None
    assert obeys(EBNF, "\n".join(["start: T0", *lines]), "a") and obeys(EBNF, grammar, "a")


@pytest.mark.parametrize("name", FENCED)
def test_grammars_are_refused_in_words_about_what_was_sent(name: str) -> None:
    text = 'start: b%llguidance {"a":1}\n | "c"\nb: "b"\n'
    constraint = syntax(name, "required", [custom_tool("page", "lark", text)])[0].constraint
    assert constraint is not None
    with pytest.raises(GrammarError) as caught:
        BACKEND.compile(constraint)
    told = str(caught.value)
    assert told.startswith("tools[0]") and "line 1, column 9" in told


@pytest.mark.parametrize("kind", ["regex", "lark"])
def test_empty_definitions_are_refused(kind: str) -> None:
    with pytest.raises(BadRequest) as caught:
        syntax("qwen3_coder", "required", [custom_tool("page", kind, "")])
    assert caught.value.field.endswith("format.grammar.definition")


def joint(*patterns: str) -> LLGuidanceBackend:
    """That obeys all of these, whatever is asked."""
    from llguidance import LLMatcher

    class Joined:
        def translate(self, constraint: Constraint) -> list[str]:
            return [LLMatcher.grammar_from_regex(pattern) for pattern in patterns]

    return LLGuidanceBackend(VOCABULARY, JsonFormat(), translator=Joined().translate)


def test_an_answer_is_stuck_and_a_constraint_cannot_be_obeyed() -> None:
    asked = Constraint(kind=REGEX, text="a")
    with pytest.raises(GrammarError, match="nothing"):
        joint("a", "b").compile(asked)
    matcher = joint("ab", "ac").compile(asked)
    assert matcher.accept(encode("a")) == 1 and not matcher.error
    matcher.fill(np.zeros(mask_words(len(VOCABULARY.tokens)), np.int32))
    assert matcher.error == matcher.copy().error == STUCK


def test_calls_of_custom_tools_need_to_be_found() -> None:
    with pytest.raises(BadRequest) as caught:
        syntax(None, None)
    assert caught.value.field == "tools[0].custom"


@given(st.text(), st.integers(1, 5))
def test_inputs_are_read_as_they_come(text: str, size: int) -> None:
    text = text.encode("utf-8", "replace").decode()
    for escaped in (True, False):
        whole = json.dumps({"input": text}, ensure_ascii=escaped)
        reader = InputReader()
        parts = [reader.push(whole[i : i + size]) for i in range(0, len(whole), size)]
        assert "".join(parts) == text


ESCAPES = st.sampled_from(
    [*'\\\\\\"nu0', "\\u", "d83d", "\\ude00", "00e4", "\x01", "{", "input", " "]
)


@given(st.lists(ESCAPES, max_size=20), st.booleans())
def test_damaged_inputs_are_read_alike_however_they_are_cut(parts: list[str], begun: bool) -> None:
    text = '{"input": "' * begun + "".join(parts)
    whole, reader = InputReader().push(text), InputReader()
    assert "".join(reader.push(one) for one in text) == whole


def test_arguments_that_are_no_input_are_not_lost() -> None:
    for text in ('{"text": "a"}', "[1]", '"a"'):
        assert InputReader().push(text) == text
    assert InputReader().push('{"input": "\\d+"}') == "\\d+"
    assert InputReader().push('{"input": "\\ud83d"}') == "\\ud83d"
    assert (
        InputReader().push('{"input": "a\\qb\\ud800 and more of it"}')
        == "a\\qb\\ud800 and more of it"
    )


PATTERNS = [r'[^"]*', ".*", "(?s:.)*", r"[\s\S]+", r'["\\]+', r"\S+|\W", r'(?i)a"b\n', r"\P{L}+"]
PATTERNS += [r"[\p{P}x]+", r'[]"]+', r"[^]\\]*", "[!-~]*", r"\x22\u{5c}|\t", r'(?P<n>".)"', r"\.\/"]
PATTERNS += [rf"(?:\{name}|b)+" for name in ("P{Letter}", "p{gc=Cc}", "p{other_punctuation}")]
PATTERNS += [f"[[:{name}:]b]+" for name in ("punct", "^alnum", "cntrl", "^cntrl", "space", "print")]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_expressions_inside_of_strings(pattern: str) -> None:
    quoted = quote_regex(pattern)
    for text in [
        "",
        'a"b',
        'A"B\n',
        '"\\',
        "\t",
        "abc",
        "é\x01",
        ']"',
        '"x"',
        "./",
        "\\\\",
        "\x7f",
    ]:
        inside = json.dumps(text, ensure_ascii=False)[1:-1]
        assert allows(pattern, text) is allows(quoted, inside), text


@pytest.mark.parametrize("pattern", ["(?s:(a).).", "(?s)a(?-s:.).", "((?s)a.).", "(?s)a(?-s).."])
def test_flags_hold_where_they_stand(pattern: str) -> None:
    quoted = quote_regex(pattern)
    for text in ("abc", "a\nb", "ab\n", "a\n\n"):
        inside = json.dumps(text)[1:-1]
        assert allows(pattern, text) is allows(quoted, inside), text


def test_escapes_have_one_case() -> None:
    quoted = quote_regex("(?i)[a\n]")
    assert allows(quoted, "A") and allows(quoted, "\\n") and not allows(quoted, "\\N")


def allows(pattern: str, text: str) -> bool:
    tag = {"format": {"type": "regex", "pattern": pattern}}
    matcher, ids = compiled(STRUCTURAL_TAG, tag), encode(text)
    return matcher.accept([*ids, EOS]) == len(ids) + 1


@pytest.mark.parametrize(
    "pattern", ["[a[b]]", "[[:alpha:][b]]", r"\p{Greek}", "(?x)a", "(?sR).", "[a-z&&[^b]]"]
)
def test_expressions_that_cannot_be_written_in_strings(pattern: str) -> None:
    with pytest.raises(GrammarError, match=re.escape("JSON")):
        quote_regex(pattern)


@pytest.mark.parametrize("quoted", [True, False])
def test_a_backslash_escapes_something(quoted: bool) -> None:
    with pytest.raises(GrammarError, match=r"tools\[0\].*backslash"):
        compiled(STRUCTURAL_TAG, {"format": regex("a\\", "tools[0]", quoted=quoted)})
    with pytest.raises(GrammarError, match="backslash"):
        compiled(REGEX, "\\")


def test_comments_stay_for_the_library_to_refuse() -> None:
    assert quote_regex('a(?#"c)b') == 'a(?#"c)b'


SIGNS = st.sampled_from([*"\\[](){}?*+|^$.-&~pPxusdDWSA<>:=!i0a", "\\p{L}", "(?i", "[[:alpha:]]"])


@given(st.lists(SIGNS, max_size=25))
def test_any_text_is_an_expression_or_refused(signs: list[str]) -> None:
    with suppress(GrammarError):
        quote_regex("".join(signs))


def test_sets_that_do_not_end_take_no_time() -> None:
    for many in (r"\x{a}", "a-", r"\p{L}"):
        assert quote_regex("[" + 40 * many).startswith("[")
