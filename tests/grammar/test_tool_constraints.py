"""Whatever is drawn under the constraint of a request with tools, its parser finds calls in it that
obey their schemas."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import jsonschema
import numpy as np
import pytest
from call_parsers import DISTINCT
from grammar_kit import (
    EOS,
    SIZE,
    TOKENS,
    VOCABULARY,
    allowed,
    backend,
    encode,
    next_answer,
    spell,
    walk_randomly,
)

from vivace.frontend.errors import BadRequest
from vivace.frontend.fairness import run_now
from vivace.grammar.backend import GrammarMatcher, JsonFormat
from vivace.grammar.llguidance_backend import LLGuidanceBackend
from vivace.grammar.thinking import ThinkingBackend, ThinkingVocabulary
from vivace.grammar.thinking_rule import THINKING, read_thinking_rule
from vivace.grammar.tool_tags import tag_constraint
from vivace.parsers.answer import ThinkingState
from vivace.parsers.events import gather
from vivace.parsers.names import TOOL_CALL_PARSERS
from vivace.parsers.parser import AnswerParser, ParseOptions, answer_format
from vivace.protocol.constraints import JSON_SCHEMA, REGEX, Constraint
from vivace.requests.answer_rules import answer_rules
from vivace.requests.answer_syntax import AnswerSyntax
from vivace.requests.schema import Message
from vivace.requests.thinking import ThinkingLimit, behind_thinking, thinking_frame
from vivace.requests.tool_constraints import ToolCalls, ToolSyntax
from vivace.requests.tools import OfferedTools
from vivace.server.openai.schema import ChatRequest

LOOK = {
    "$defs": {"days": {"enum": [1, 2.5, None]}},
    "type": "object",
    "properties": {"city": {"enum": ["Rome", 'a"<b']}, "days": {"$ref": "#/$defs/days"}},
    "required": ["city"],
    "additionalProperties": False,
}
SCHEMAS: dict[str, Any] = {"look": LOOK, "stop": {}}
NO_ARGUMENTS = {"maxProperties": 0}
"""what a function without parameters takes"""
ANSWER = {"type": "object", "properties": {"n": {"const": 1}}, "required": ["n"]}
ANSWER["additionalProperties"] = False


BACKEND = ThinkingBackend(backend(JsonFormat(compact=True)), VOCABULARY)
SPECIAL = np.isin(np.arange(SIZE), [*VOCABULARY.special_ids, *range(len(TOKENS), SIZE)])
STATES = (ThinkingState.BEFORE, ThinkingState.INSIDE)
"""of answers that do not begin inside the thinking, and that do"""
ANALYSIS = ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant")
FRAMES = {"qwen3": ("<think>", "</think>\n\n"), "kimi": ("◁think▷", "◁/think▷")}
UNTHOUGHT = {"gpt-oss": "<|channel|>commentary"}
"""how answers begin that do not think"""


def syntax(
    tools: str | None,
    reasoning: str | None = None,
    *,
    asked: Constraint | None = None,
    inside: bool = False,
    parallel: bool = True,
    limit: ThinkingLimit | None = None,
    **offered: Any,
) -> ToolSyntax:
    calls = ToolCalls(
        offered=OfferedTools(schemas=SCHEMAS, places=dict.fromkeys(SCHEMAS, "here"), **offered),
        form=answer_format(tools, reasoning),
        parallel=parallel,
    )
    found = calls.syntax(asked)
    frame = thinking_frame(found.form.thinking, found.constraint)
    constraint = behind_thinking(found.constraint, frame, limit, STATES[inside])
    return replace(found, constraint=constraint)


def matcher(found: ToolSyntax, text: str = "") -> GrammarMatcher:
    """In the state behind `text`."""
    assert found.constraint is not None
    created = next_answer(BACKEND, found.constraint)
    tokens = encode(text)
    assert created.accept(tokens) == len(tokens), (text, found.constraint.text)
    return created


def answer(found: ToolSyntax, rng: np.random.Generator, begin: str = "") -> str:
    """A random one that begins so."""
    walked = walk_randomly(matcher(found, begin), rng, 3000)
    assert len(walked) < 3000
    return begin + spell(walked).decode()


def read(found: ToolSyntax, text: str, *, inside: bool = False) -> tuple[str, str, list[list[str]]]:
    """(reasoning, content, [name, arguments] of the calls) of an answer, character by character."""
    wanted = found.constraint
    thinks = wanted is not None and wanted.kind == THINKING
    ends = (read_thinking_rule(wanted.text).end,) if thinks else ()
    options = ParseOptions(tools=SCHEMAS, state=STATES[inside], thinking_ends=ends)
    parser = AnswerParser(found.form, options)
    events = [event for character in text for event in parser.push(character)]
    answer = run_now(gather([*events, *parser.finish()]))
    return answer.reasoning, answer.text, [[call.name, call.arguments] for call in answer.calls]


def check(calls: list[list[str]]) -> None:
    for name, arguments in calls:
        jsonschema.validate(
            json.loads(arguments), {"type": "object", **(SCHEMAS[name] or NO_ARGUMENTS)}
        )


@pytest.mark.parametrize("name", [None, *TOOL_CALL_PARSERS])
def test_required_calls_are_calls_and_valid(name: str | None) -> None:
    rng = np.random.default_rng(1)
    found = syntax(name, required=("look", "stop"))
    several = False
    for _ in range(12):
        text = answer(found, rng, UNTHOUGHT.get(name or "", ""))
        _, content, calls = read(found, text)
        assert calls and not content.strip(), text
        check(calls)
        several = several or len(calls) > 1
    assert several or name == "gpt-oss"


@pytest.mark.parametrize("name", [None, "hermes", "gpt-oss", "deepseekv3", "pythonic"])
@pytest.mark.parametrize("named", [True, False])
def test_one_call_is_one(name: str | None, named: bool) -> None:
    rng = np.random.default_rng(2)
    required = ("look",) if named else tuple(SCHEMAS)
    found = syntax(name, parallel=named, required=required, single=named)
    for _ in range(8):
        text = answer(found, rng, UNTHOUGHT.get(name or "", ""))
        (call,) = read(found, text)[2]
        check([call])
        assert call[0] == "look" or not named


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize(
    ("tools", "reasoning"),
    [("hermes", "qwen3"), ("glm45", "qwen3"), (None, "qwen3"), ("kimi_k2", "kimi")],
)
def test_thinking_comes_first_if_the_model_thinks(
    tools: str | None, reasoning: str, inside: bool
) -> None:
    begin, end = FRAMES[reasoning]
    found = syntax(tools, reasoning, required=("look",), inside=inside)
    thought = f"{'' if inside else begin}Let me {{see [x]\n{end}"
    rng = np.random.default_rng(3)
    text = answer(found, rng, thought)
    said, content, calls = read(found, text, inside=inside)
    assert (said, content) == ("Let me {see [x]", "") and calls
    check(calls)
    if not inside:
        unthought = text.removeprefix(thought).lstrip()
        assert matcher(found, unthought) and read(found, unthought)[2]


def test_messages_may_have_an_analysis_first() -> None:
    begin, end = ANALYSIS
    found = syntax("gpt-oss", "gpt-oss", required=("look",))
    text = answer(found, np.random.default_rng(4), f"{begin}Hm.{end}<|channel|>")
    said, content, calls = read(found, text)
    assert (said, content, len(calls)) == ("Hm.", "", 1)
    check(calls)


@pytest.mark.parametrize("name", DISTINCT)
def test_strict_calls_obey_where_the_model_makes_them(name: str) -> None:
    found = syntax(name, strict=frozenset({"look"}))
    required = syntax(name, required=tuple(SCHEMAS))
    rng = np.random.default_rng(8)
    for text in ("hello { there", "<b> [1, 2] </tool", ""):
        assert name == "gpt-oss" or allowed(matcher(found, text))[EOS]
    called = set[str]()
    for _ in range(8):
        text = answer(required, rng, UNTHOUGHT.get(name, ""))
        calls = read(found, text)[2]
        called |= {one for one, _ in calls}
        ids = encode(text)
        assert matcher(found).accept(ids) == len(ids), text
        before = "" if name == "gpt-oss" or text[0] == "{" else "So: "
        assert matcher(found).accept(encode(before + text)) == len(ids) + len(before)
    assert called == set(SCHEMAS)


@pytest.mark.parametrize("name", DISTINCT)
def test_strict_calls_cannot_be_wrong(name: str) -> None:
    """Valid calls with one character changed are calls that obey, text, or not to be said."""
    required, found = syntax(name, required=("look",)), syntax(name, strict=frozenset(SCHEMAS))
    rng, refused = np.random.default_rng(9), 0
    for _ in range(15):
        text = answer(required, rng, UNTHOUGHT.get(name, ""))
        place, other = rng.integers(len(text)), chr(rng.choice(list(b'<>[]{}"=,:|ax1 ')))
        text = text[:place] + other + text[place + 1 :]
        ids = encode(text)
        if matcher(found).accept(ids) < len(ids):
            refused += 1
        else:
            check([one for one in read(found, text)[2] if is_whole(one)])
    assert refused > 4


@pytest.mark.parametrize("name", DISTINCT)
def test_what_follows_a_call(name: str) -> None:
    """Nothing, where there may be one only; else text, and calls, or these alone."""
    rng, strict = np.random.default_rng(10), frozenset({"look"})
    one = answer(
        syntax(name, parallel=False, required=tuple(SCHEMAS)), rng, UNTHOUGHT.get(name, "")
    )
    only = matcher(syntax(name, parallel=False, strict=strict), one)
    assert np.flatnonzero(allowed(only)).tolist() == [EOS]
    several = syntax(name, strict=strict)
    if name in ("llama3", "gpt-oss"):
        assert several.constraint is not None and matcher(several, one)
        return
    then, last = ("", "") if name == "mistral" else (" then [ ", " < and")
    text = f"First {one}{then}{one}{one}{last}"
    assert allowed(matcher(several, text))[EOS]
    assert len(read(several, text)[2]) == 3


@pytest.mark.parametrize("name", ["hermes", "qwen3_coder", "lfm2", "gpt-oss"])
def test_only_tools_that_are_allowed_are_called(name: str) -> None:
    rng = np.random.default_rng(11)
    calls = ToolCalls(
        offered=OfferedTools(schemas={"stop": {}}, places={"stop": "here"}, narrowed=True),
        form=answer_format(name, None),
        parallel=True,
    )
    found = calls.syntax(None)
    for wanted in ("look", "stop"):
        one = answer(syntax(name, required=(wanted,)), rng, UNTHOUGHT.get(name, ""))
        drawn = BACKEND.compile(found.constraint) if found.constraint else None
        said = drawn.accept(encode(one)) if drawn else 0
        assert (said == len(encode(one))) is (wanted == "stop")


def test_nobody_knows_which_tools_are_called_without_a_parser() -> None:
    offered = OfferedTools(schemas={"stop": {}}, places={"stop": "here"}, narrowed=True)
    with pytest.raises(BadRequest) as caught:
        ToolCalls(offered=offered, form=answer_format(None, None), parallel=True).syntax(None)
    assert caught.value.field == "tool_choice"


def is_whole(call: list[str]) -> bool:
    """Not cut off."""
    try:
        json.loads(call[1])
    except ValueError:
        return False
    return True


def test_without_strict_tools_nothing_is_demanded() -> None:
    assert syntax("hermes").constraint is None
    assert syntax(None, strict=frozenset({"look"})).constraint is None


def test_a_call_or_the_json_that_is_asked_for() -> None:
    asked = Constraint(kind=JSON_SCHEMA, text=json.dumps(ANSWER), field="response_format")
    found = syntax("hermes", "qwen3", asked=asked, strict=frozenset(SCHEMAS))
    rng = np.random.default_rng(5)
    for thought in ("", "<think>x</think>"):
        made = answer(found, rng, f"{thought}<tool_call>")
        check(read(found, made)[2])
        assert json.loads(read(found, answer(found, rng, f"{thought}{{"))[1]) == {"n": 1}
    alone = syntax("hermes", required=("look",)).constraint
    assert syntax("hermes", asked=asked, required=("look",)).constraint == alone  # there is no text


def test_constraints_that_say_two_things_are_refused() -> None:
    asked = Constraint(kind=REGEX, text="a", field="regex")
    assert syntax("hermes", asked=asked).constraint is asked
    with pytest.raises(BadRequest) as caught:
        syntax("hermes", asked=asked, required=("look",))
    assert caught.value.field == "tool_choice"


HUGE = {"a": [10**4000] * 20_000}
"""to write it takes seconds"""


@pytest.mark.parametrize(
    "large", [{"x" * 300_000: 1}, {"a": "x" * 300_000}, {"a": [1] * 60_000}, HUGE]
)
def test_tools_that_are_too_large_are_refused(large: Any) -> None:
    offered = OfferedTools(
        schemas={"a": {"properties": large}}, places={"a": "here"}, required=("a",)
    )
    with pytest.raises(BadRequest) as caught:
        ToolCalls(offered=offered, form=answer_format(None, None), parallel=True).syntax(None)
    assert caught.value.field == "tools"


def test_a_call_is_not_over_before_it_is_whole() -> None:
    created = matcher(syntax("hermes", required=("look",)), '<tool_call>\n{"name": "look"')
    assert not allowed(created)[EOS]


def test_listed_values_of_other_types_cannot_be_said() -> None:
    number = {"type": ["integer", "null"], "enum": [1, "x", None, 2.5]}
    schema = {"type": "object", "properties": {"n": number}, "required": ["n"]}
    offered = OfferedTools(schemas={"f": schema}, places={"f": "here"}, required=("f",))
    calls = ToolCalls(offered=offered, form=answer_format("qwen3_coder", None), parallel=False)
    constraint = calls.syntax(None).constraint
    assert constraint is not None
    drawn = BACKEND.compile(constraint)
    for value, fits in (("1", True), ("null", True), ("None", True), ("x", False), ("2.5", False)):
        text = encode(f"<tool_call>\n<function=f>\n<parameter=n>\n{value}\n</parameter>")
        assert (drawn.copy().accept(text) == len(text)) is fits, value


# -- thinking --------------------------------------------------------------------------------------

ASKED = Constraint(kind=JSON_SCHEMA, text=json.dumps(ANSWER), field="response_format")


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("budget", [0, 3, 20])
@pytest.mark.parametrize("reasoning", ["qwen3", "kimi"])
def test_thinking_ends_in_time(reasoning: str, budget: int, inside: bool) -> None:
    begin, end = FRAMES[reasoning]
    found = syntax(None, reasoning, limit=ThinkingLimit(budget, "x"), inside=inside)
    rng = np.random.default_rng(6)
    drawn = matcher(found, "" if inside else begin)
    thought: list[int] = []
    while not spell(thought).endswith(end.strip().encode()):
        ids = np.flatnonzero(allowed(drawn) & ~SPECIAL)
        thought.append(int(rng.choice(ids)))
        assert drawn.accept([thought[-1]]) == 1
    forced = thought[budget:]
    assert spell(forced) == end.strip().encode() and len(thought) == budget + len(forced)
    assert drawn.accept(encode("anything")) == len("anything")


def test_a_part_of_its_end_is_not_said_twice() -> None:
    found = syntax(None, "kimi", limit=ThinkingLimit(4, "x"), inside=True)
    begun = "a◁".encode()
    drawn = matcher(found)
    assert drawn.accept(list(begun)) == 4
    rest: list[int] = []
    while (mask := allowed(drawn)).sum() == 1:
        rest += [int(token) for token in np.flatnonzero(mask)]
        drawn.accept(rest[-1:])
    assert begun + spell(rest) == "a◁/think▷".encode()


def test_the_grammar_begins_behind_the_thinking() -> None:
    found = syntax(None, "qwen3", asked=ASKED, limit=ThinkingLimit(9, "x"))
    for text in (
        '{"n":1}',
        "<think>a {</think>{",
        "<think>123456789</think>\n\n{",
        "<think></think> {",
    ):
        assert matcher(found, text)
    for text in ("x", "<thinx", "<think></think>x", "<think>123456789x", "<think></think>\n\n\n{"):
        assert matcher(found).accept(encode(text)) < len(text)
    drawn = matcher(found, "<think>so")
    assert not allowed(drawn)[EOS]
    copied = drawn.copy()
    assert copied.accept(encode('</think>{"n":1}')) == 15 and copied.accept([EOS]) == 1
    assert drawn.accept(encode("</think>y")) == 8
    alone = syntax(None, "qwen3", limit=ThinkingLimit(9, "x"), inside=True)
    assert allowed(matcher(alone))[EOS]


@pytest.mark.parametrize("places", [{}, dict.fromkeys(SCHEMAS, "here")])
@pytest.mark.parametrize("budget", [None, 3])
def test_text_behind_thinking_is_a_final_message(
    budget: int | None, places: dict[str, str]
) -> None:
    """Without its frame gpt-oss's header of the message is text, and so no JSON."""
    rules_syntax = AnswerSyntax(form=answer_format("gpt-oss", "gpt-oss"))
    offered = OfferedTools(schemas=SCHEMAS if places else {}, places=places)
    messages = [Message(role="user", content="n?")]
    params = ChatRequest(messages=messages, max_thinking_tokens=budget)
    rules = run_now(answer_rules(rules_syntax, params, offered, "", ASKED))
    assert rules.constraint is not None
    drawn = BACKEND.compile(rules.constraint)
    (begin, end), final = ANALYSIS, "<|channel|>final<|message|>"
    bare = drawn.copy()
    bare.accept(encode(begin + "xyz" + end + '{"n":1}'))
    assert not allowed(bare)[EOS]
    said = begin + "xyz" + end + final + '{"n":1}'
    assert drawn.accept(encode(said)) == len(said) and drawn.accept([EOS]) == 1
    parser = AnswerParser(rules.syntax.form, rules.options)
    found = run_now(gather(parser.push(said) + parser.finish()))
    assert (found.reasoning, found.text, found.calls) == ("xyz", '{"n":1}', [])


def test_the_header_of_a_final_message_has_no_type() -> None:
    """What `<|constrain|>` begins would be thought, so the answer could not end."""
    marks = ["<|end|>", "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"]
    vocabulary = replace(
        VOCABULARY,
        tokens=[*VOCABULARY.tokens, *[mark.encode() for mark in marks]],
        special_texts={mark: len(VOCABULARY.tokens) + i for i, mark in enumerate(marks)},
    )
    special = ThinkingBackend(LLGuidanceBackend(vocabulary, JsonFormat()), vocabulary)
    frame = thinking_frame(answer_format("gpt-oss", "gpt-oss").thinking, ASKED)
    rule = behind_thinking(ASKED, frame, None, STATES[False])
    drawn = special.compile(rule or ASKED)
    ids = ThinkingVocabulary(vocabulary).ids
    said = ids(f"{ANALYSIS[0]}xyz{ANALYSIS[1]}<|channel|>final")
    assert drawn.accept(said) == len(said)
    assert [mark for mark in marks if drawn.allows(*ids(mark))] == ["<|message|>"]
    assert not drawn.allows(ord(" "))


def test_a_tag_that_names_channels_comes_in_the_place_of_a_final_message() -> None:
    """A client's own format of gpt-oss's calls; other tags are text."""
    form, (begin, end) = answer_format("gpt-oss", "gpt-oss"), ANALYSIS
    tag = {"begin": "<|channel|>commentary to=functions.look<|message|>", "end": ""}
    for head, final in ((tag["begin"], ""), ("say ", "<|channel|>final<|message|>")):
        one = {"type": "tag", "content": {"type": "json_schema", "json_schema": ANSWER}}
        one["excludes"] = ["<|channel|>"]
        asked = tag_constraint({**one, **tag, "begin": head}, "structural_tag")
        frame = thinking_frame(form.thinking, asked)
        drawn = BACKEND.compile(behind_thinking(asked, frame, None, STATES[False]) or asked)
        said = encode(begin + "xyz" + end + final + head + '{"n":1}')
        assert drawn.accept(said) == len(said) and drawn.accept([EOS]) == 1


@pytest.mark.parametrize("reasoning", ["qwen3", "kimi"])
def test_no_token_that_ends_thinking_begins_the_answer(reasoning: str) -> None:
    """Where that is several tokens the last of them may go on; the answer would begin twice."""
    end = FRAMES[reasoning][1].strip().encode()
    mixed = [end[-1:] + b"{", end[-3:] + b' {"', end + b"{", b".\n" + end + b"{", end[-2:] + b"\n "]
    tokens = [*VOCABULARY.tokens[: -len(mixed)], *mixed]
    vocabulary = replace(VOCABULARY, tokens=tokens)
    backend = ThinkingBackend(LLGuidanceBackend(vocabulary, JsonFormat()), vocabulary)
    form = syntax(None, reasoning, asked=ASKED, inside=True).constraint
    free = syntax(None, reasoning, limit=ThinkingLimit(99, "x"), inside=True).constraint
    assert form is not None and free is not None
    for number, token in enumerate(mixed, SIZE - len(mixed)):
        said = [*b"hm ", *(b"" if end in token else end.removesuffix(token.strip(b' \n{"')))]
        drawn, other = backend.compile(form), backend.compile(free)
        assert drawn.accept(said) == other.accept(said) == len(said)
        assert drawn.allows(number) == (number == SIZE - 1) and other.allows(number)
        assert drawn.accept([number]) == (number == SIZE - 1)
        assert number < SIZE - 1 or drawn.accept([*b'{"n":1}', EOS]) == 8


@pytest.mark.parametrize("inside", [True, False])
def test_where_it_stands_follows_from_its_tokens(inside: bool) -> None:
    """An engine that replaces one that died goes on with the same masks."""
    found = syntax("hermes", "kimi", required=("look",), limit=ThinkingLimit(5, "x"), inside=inside)
    rng = np.random.default_rng(7)
    drawn, tokens = matcher(found), encode("" if inside else "◁think▷")
    assert drawn.accept(tokens) == len(tokens)
    for _ in range(60):
        again = matcher(found)
        assert again.accept(tokens) == len(tokens)
        mask = allowed(drawn)
        assert (allowed(again) == mask).all()
        tokens.append(int(rng.choice(np.flatnonzero(mask & ~SPECIAL))))
        assert drawn.accept(tokens[-1:]) == 1


def test_limits_that_cannot_be_kept_are_refused() -> None:
    with pytest.raises(BadRequest) as caught:
        syntax("hermes", limit=ThinkingLimit(9, "thinking_budget"))
    assert caught.value.field == "thinking_budget"


def test_parameters_without_a_keyword_are_refused_where_they_count() -> None:
    """They were written as properties are."""
    schemas: dict[str, Any] = {"f": {"city": {"type": "string"}}}
    for wanted in ({"strict": frozenset({"f"})}, {"required": ("f",)}):
        offered = OfferedTools(schemas=schemas, places={"f": "here"}, **wanted)
        calls = ToolCalls(offered=offered, form=answer_format("hermes", None), parallel=True)
        with pytest.raises(BadRequest, match="keyword") as caught:
            calls.syntax(None)
        assert caught.value.field == "here"


@pytest.mark.parametrize("name", [None, "hermes", "qwen3_coder", "pythonic"])
@pytest.mark.parametrize("named", ["string", "array", ["string", "null"]])
def test_parameters_that_are_no_object_are_refused(name: str | None, named: Any) -> None:
    offered = OfferedTools(schemas={"a": {"type": named}}, places={"a": "here"}, required=("a",))
    with pytest.raises(BadRequest, match="type"):
        ToolCalls(offered=offered, form=answer_format(name, None), parallel=True).syntax(None)
