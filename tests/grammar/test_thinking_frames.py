"""Where thinking ends is one thing for the grammar of an answer and for its parser, whatever the
thinking spells."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import jsonschema
import numpy as np
import pytest
from grammar_kit import EOS, VOCABULARY, next_answer
from hypothesis import given, settings
from hypothesis import strategies as st

from vivace.frontend.fairness import run_now
from vivace.grammar.backend import JsonFormat
from vivace.grammar.llguidance_backend import LLGuidanceBackend
from vivace.grammar.thinking import ThinkingBackend, ThinkingVocabulary
from vivace.grammar.thinking_rule import ThinkingRule, read_thinking_rule, thinking_constraint
from vivace.parsers.answer import ThinkingState
from vivace.parsers.events import ParsedAnswer, gather
from vivace.parsers.formats import REASONING_FORMATS
from vivace.parsers.harmony import MARKERS
from vivace.parsers.names import HARMONY, REASONING_PARSERS
from vivace.parsers.parser import AnswerParser, ParserFormat, answer_format
from vivace.protocol.constraints import JSON_SCHEMA, REGEX, STRUCTURAL_TAG, Constraint
from vivace.requests.answer_rules import AnswerRules, answer_rules
from vivace.requests.answer_syntax import AnswerSyntax
from vivace.requests.schema import Message
from vivace.requests.thinking import begins_messages
from vivace.requests.tools import OfferedTools
from vivace.server.openai.parsed import ChatParsing
from vivace.server.openai.schema import ChatRequest

SPECIAL = (*MARKERS, "<think>", "</think>", "<tool_call>", "<|tool_calls_section_begin|>")
FIRST = len(VOCABULARY.tokens)
MARKED = replace(
    VOCABULARY,
    tokens=[*VOCABULARY.tokens, *[text.encode() for text in SPECIAL]],
    special_ids=[*VOCABULARY.special_ids, *range(FIRST, FIRST + len(SPECIAL))],
    special_texts={text: FIRST + place for place, text in enumerate(SPECIAL)},
)
BACKEND = ThinkingBackend(LLGuidanceBackend(MARKED, JsonFormat(compact=True)), MARKED)
WORDS = ThinkingVocabulary(MARKED)
ARGUMENTS = {
    "type": "object",
    "properties": {"n": {"const": 1}},
    "required": ["n"],
    "additionalProperties": False,
}
ASKED = Constraint(kind=JSON_SCHEMA, text=json.dumps(ARGUMENTS), field="response_format")
KEPT = "minimax-append-think"
"""which has no reasoning to count"""
BAD = '{"n": 2}'
CALLS = (
    f'<tool_call>{{"name": "look", "arguments": {BAD}}}</tool_call>',
    "<tool_call>look\n<arg_key>n</arg_key>\n<arg_value>2</arg_value>\n</tool_call>",
    f'<|python_tag|>{{"name": "look", "parameters": {BAD}}}',
    f'{{"name": "look", "parameters": {BAD}}}',
    f'[{{"name": "look", "parameters": {BAD}}}]',
    f"<|tool_calls_section_begin|><|tool_call_begin|>functions.look:0{BAD}",
    f"<|channel|>commentary to=functions.look <|constrain|>json<|message|>{BAD}<|call|>",
    f" to=functions.look<|channel|>commentary<|message|>{BAD}",
    f"<|channel|>final<|message|>{BAD}",
    f"<|end|><|start|>assistant<|channel|>commentary<|message|>{BAD}",
    "<|end|>",
    "<|end|><|start|>user<|message|>",
)
PIECES = st.lists(
    st.sampled_from((*CALLS, *SPECIAL, "◁/thin", "</thin", "hm ", "\n", "{", "[look(n=2)]")),
    max_size=4,
)


def rules(tools: str | None, reasoning: str, *, required: bool, separate: bool) -> AnswerRules:
    """Of a conversation whose prompt ends in the thinking where the model has a tag for it."""
    form = answer_format(tools, reasoning)
    places = {"look": "tools.0.function.parameters"} if tools or required else {}
    offered = OfferedTools(
        schemas=dict.fromkeys(places, ARGUMENTS),
        places=places,
        required=("look",) if required else (),
        strict=frozenset(places),
    )
    params = ChatRequest(messages=[Message(role="user", content="n?")], separate_reasoning=separate)
    prompt = form.thinking.begin if form.thinking and reasoning != HARMONY else ""
    asked = None if required else ASKED
    return run_now(answer_rules(answer_syntax(form), params, offered, prompt, asked))


def answer_syntax(form: ParserFormat) -> AnswerSyntax:
    ends = tuple(text.encode() for text in form.reasoning_ends)
    return AnswerSyntax(form=form, reasoning_ends=ends, token_bytes=MARKED.tokens.__getitem__)


def think(found: AnswerRules, pieces: Sequence[str], *, spelled: bool) -> list[int]:
    """The tokens of an answer up to the end of its thinking, which has those pieces as far as the
    grammar lets it; `spelled`: no special tokens are in it."""
    assert found.constraint is not None
    rule = read_thinking_rule(found.constraint.text)
    drawn = next_answer(BACKEND, found.constraint)
    tokens = [] if found.options.state is ThinkingState.INSIDE else WORDS.ids(rule.begin)
    assert drawn.accept(tokens) == len(tokens)
    for piece in pieces:
        for token in [*piece.encode()] if spelled else WORDS.ids(piece):
            if drawn.allows(token) and not spell([*tokens, token]).endswith(rule.end):
                assert drawn.accept([token]) == 1
                tokens.append(token)
    said = max(n for n in range(len(rule.end)) if spell(tokens).endswith(rule.end[:n]))
    for rest in (WORDS.ids(rule.end[said:]), WORDS.ids(rule.end)):
        trial = drawn.copy()
        if trial.accept(rest) == len(rest):
            return tokens + rest
    raise AssertionError(f"it cannot end behind {spell(tokens)!r}")


def spell(tokens: Sequence[int]) -> str:
    return b"".join(MARKED.tokens[token] for token in tokens).decode("utf-8", "replace")


def answered(found: AnswerRules, tokens: list[int], seed: int) -> tuple[ParsedAnswer, int | None]:
    """What the parser finds in a random answer behind that thinking, and how many tokens of it are
    said to be reasoning."""
    assert found.constraint is not None
    drawn = next_answer(BACKEND, found.constraint)
    assert drawn.accept(tokens) == len(tokens)
    rng = np.random.default_rng(seed)
    said = [*tokens]
    while len(said) < 3000:
        mask = np.zeros((len(MARKED.tokens) + 31) // 32, np.int32)
        drawn.fill(mask)
        ids = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
        if EOS in ids:
            break
        said.append(int(rng.choice(ids)))
        assert drawn.accept(said[-1:]) == 1
    parser = AnswerParser(found.syntax.form, found.options)
    events = [event for character in spell(said) for event in parser.push(character)]
    counter = ChatParsing(found).counter()
    return run_now(gather([*events, *parser.finish()])), counter.count(said, parser)


def thought(found: AnswerRules, tokens: list[int]) -> str:
    """What is between the frames, of which models may say the first though the prompt has it."""
    assert found.constraint is not None
    rule = read_thinking_rule(found.constraint.text)
    return spell(tokens).removesuffix(rule.end).lstrip().removeprefix(rule.begin).strip()


@pytest.mark.parametrize("required", [False, True])
@pytest.mark.parametrize("reasoning", REASONING_PARSERS)
@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from((None, "hermes", "llama3", "glm45", "kimi_k2", "mistral")),
    PIECES,
    st.booleans(),
    st.booleans(),
    st.integers(0, 99),
)
def test_thinking_may_spell_whatever_it_likes(
    required: bool,
    reasoning: str,
    tools: str | None,
    pieces: list[str],
    spelled: bool,
    separate: bool,
    seed: int,
) -> None:
    """What is behind it obeys, and what looks like a call in it is none."""
    if reasoning == HARMONY:
        tools = HARMONY
    found = rules(tools, reasoning, required=required, separate=separate)
    tokens = think(found, pieces, spelled=spelled)
    said, counted = answered(found, tokens, seed)
    inside = thought(found, tokens)
    splits = separate and not (reasoning != HARMONY and REASONING_FORMATS[reasoning].kept)
    assert said.reasoning.strip() == (inside if splits else "")
    assert counted == (None if reasoning == KEPT else len(tokens))
    content = said.text
    if not splits:
        before = inside if reasoning == HARMONY else spell(tokens).strip()
        assert before in said.text
        content = said.text.partition(before)[2] if before else said.text
    for call in said.calls:
        jsonschema.validate(json.loads(call.arguments), ARGUMENTS)
    if required:
        assert said.calls and not content.strip()
    elif not said.calls:
        jsonschema.validate(json.loads(content), ARGUMENTS)


@pytest.mark.parametrize(
    ("tools", "text"),
    [
        ("glm45", "<tool_call>look</tool_call>"),
        ("pythonic", "[look(n=2)]"),
        ("lfm2", "<|tool_call_start|>[look(n=2)]<|tool_call_end|>"),
        ("mistral", "[TOOL_CALLS]look[ARGS]{}"),
        ("deepseekv31", "<｜tool▁call▁begin｜>look<｜tool▁sep｜>{}<｜tool▁call▁end｜>"),
        (
            "kimi_k2",
            "<|tool_call_begin|>functions.look:0<|tool_call_argument_begin|>{}<|tool_call_end|>",
        ),
        ("qwen3_coder", "<function=look></function>"),
    ],
)
def test_what_looks_like_a_call_in_json_is_text(tools: str, text: str) -> None:
    """Where an answer is JSON or calls, those begin it: they would not obey their schemas."""
    schema = json.dumps({"type": "object", "required": ["n"], "properties": {"n": {"const": text}}})
    wanted = Constraint(kind=JSON_SCHEMA, text=schema, field="response_format")
    offered = OfferedTools(
        schemas={"look": ARGUMENTS}, places={"look": "tools.0"}, strict=frozenset({"look"})
    )
    params = ChatRequest(messages=[Message(role="user", content="n?")])
    syntax = AnswerSyntax(form=answer_format(tools, None))
    found = run_now(answer_rules(syntax, params, offered, "", wanted))
    said = f' {{"n":{json.dumps(text, ensure_ascii=False)}}}'
    for answer in (said, said.strip()):
        parser = AnswerParser(found.syntax.form, found.options)
        events = [event for character in answer for event in parser.push(character)]
        parsed = run_now(gather([*events, *parser.finish()]))
        assert (parsed.text, parsed.calls) == (answer, [])


@pytest.mark.parametrize("parts", [("<think", "></", "think>"), ("<think></think>",)])
def test_thinking_may_end_in_the_token_that_begins_it(parts: Sequence[str]) -> None:
    """Text may have such tokens."""
    tokens = [*VOCABULARY.tokens, *map(str.encode, parts)]
    spelled = replace(VOCABULARY, tokens=tokens)
    backend = ThinkingBackend(LLGuidanceBackend(spelled, JsonFormat()), spelled)
    wanted = Constraint(kind=REGEX, text="[^x]*", field="regex")
    rule = ThinkingRule(begin="<think>", end="</think>", answer=wanted)
    drawn = backend.compile(thinking_constraint(rule, "regex"))
    assert drawn.accept([*range(FIRST, len(tokens))]) == len(parts)
    assert drawn.allows(ord("a")) and not drawn.allows(ord("x"))


def test_thinking_may_spell_each_part_of_its_end() -> None:
    """In letters where tokens of their own would end it: it is never left without a next token."""
    found = rules(None, HARMONY, required=False, separate=True)
    assert found.constraint is not None
    rule = read_thinking_rule(found.constraint.text)
    drawn = next_answer(BACKEND, found.constraint)
    begin = WORDS.ids(rule.begin)
    assert drawn.accept([*begin, *rule.end.encode()[:-1]]) == len(begin) + len(rule.end) - 1
    assert drawn.allows(ord("x")) and drawn.allows(ord(rule.end[-1]))


@pytest.mark.parametrize(
    ("text", "begins"),
    [
        ('{"format": {"begin": "\\u003c|channel|>final<|message|>"}}', True),
        ('{"format": {"elements": [{"type": "const_string", "value": "<|channel|>"}]}}', True),
        ('{"structures": [{"begin": "<|channel|>x"}], "triggers": ["<|channel|>"]}', True),
        (r'{"format": {"type": "regex", "pattern": "<\\|channel\\|>final"}}', True),
        ('{"format": {"formats": {"schema": {"begin": "<|channel|>x"}}}}', True),
        ('{"format": {"begin": "x", "excludes": ["<|channel|>"]}}', False),
        ('{"format": {"begin": "x", "json_schema": {"value": "<|channel|>"}}}', False),
        ('{"structures": [{"begin": "x", "schema": {"begin": "<|channel|>"}}]}', False),
        ('{"format": {"begin": ["<|channel|>"], "value": {"value": 1}}}', False),
        ("[" * 10_000, False),
        ("{", False),
    ],
)
def test_a_tag_that_frames_messages_is_known_by_its_texts(text: str, begins: bool) -> None:
    assert begins_messages(Constraint(kind=STRUCTURAL_TAG, text=text, field="f")) is begins


@pytest.mark.parametrize("thought", [True, False])
@pytest.mark.parametrize("value", ["<|channel|>final<|message|>", "<|end|>", " to=f<|message|>{}"])
def test_a_final_message_that_obeys_may_spell_frames(value: str, thought: bool) -> None:
    form, text = answer_format(HARMONY, HARMONY), json.dumps(value)
    asked = Constraint(kind=JSON_SCHEMA, text=json.dumps({"const": value}), field="response_format")
    params = ChatRequest(messages=[Message(role="user", content="n?")])
    found = run_now(answer_rules(answer_syntax(form), params, OfferedTools(), "", asked))
    assert found.constraint is not None and found.options.thinking_ends
    begin = read_thinking_rule(found.constraint.text).begin
    said = f"{begin}hm{found.options.thinking_ends[0]}" if thought else ""
    tokens = [*WORDS.ids(said), *text.encode(), EOS]
    assert BACKEND.compile(found.constraint).accept(tokens) == len(tokens)
    for pieces in ([said + text], list(said + text)):
        parser = AnswerParser(form, found.options)
        events = [event for piece in pieces for event in parser.push(piece)]
        answer = run_now(gather([*events, *parser.finish()]))
        assert (answer.reasoning, answer.text) == ("hm" if thought else "", text)


def test_no_token_is_reasoning_where_the_prompt_has_ended_it() -> None:
    form = answer_format("hermes", "qwen3")
    asked = Constraint(kind=JSON_SCHEMA, text='{"const": "</think>"}', field="response_format")
    params = ChatRequest(messages=[Message(role="user", content="n?")], separate_reasoning=False)
    prompt = "<think></think>"
    found = run_now(answer_rules(answer_syntax(form), params, OfferedTools(), prompt, asked))
    parser = AnswerParser(form, found.options)
    parser.push('"</think>"')
    assert ChatParsing(found).counter().count([*b'"</think>"'], parser) == 0
