"""Thinking is split from the answer, whole and however the answer is cut."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transcripts import TOOLS, Parsed, cut, gathered

from vivace.parsers.answer import ThinkingState
from vivace.parsers.formats import REASONING_FORMATS
from vivace.parsers.parser import AnswerParser, ParseOptions, answer_format

BEFORE, INSIDE, BEHIND = ThinkingState
FORCED = [name for name, form in REASONING_FORMATS.items() if form.forced]
SPLIT = [name for name, form in REASONING_FORMATS.items() if not form.kept]


def parse(
    name: str, pieces: list[str], tools: str | None = None, *, cut_off: bool = False, **options: Any
) -> Parsed:
    chosen = ParseOptions(tools=TOOLS if tools else {}, **options)
    parser = AnswerParser(answer_format(tools, name), chosen)
    events = [event for piece in pieces for event in parser.push(piece)]
    return gathered(events + parser.finish(cut=cut_off))


@pytest.mark.parametrize("name", SPLIT)
def test_thinking_is_split_off(name: str) -> None:
    form = REASONING_FORMATS[name]
    text = f"{form.begin}\nWell, 2 < 3.\n\nSo.\n{form.end}\n\nIt is 3.\n"
    expected = Parsed("Well, 2 < 3.\n\nSo.", "It is 3.\n", [])
    assert parse(name, [text]) == expected
    for place in range(len(text)):
        assert parse(name, list(cut(text, [place]))) == expected


@pytest.mark.parametrize("name", SPLIT)
def test_answers_that_begin_inside(name: str) -> None:
    text = f"Well.{REASONING_FORMATS[name].end}Yes."
    assert parse(name, list(text), state=INSIDE) == Parsed("Well.", "Yes.", [])


@pytest.mark.parametrize("name", SPLIT)
def test_thinking_that_was_cut_off(name: str) -> None:
    assert parse(name, ["Well, "], state=INSIDE) == Parsed("Well,", "", [])
    form = REASONING_FORMATS[name]
    for place in range(1, len(form.end)):
        pieces = ["Well,", *form.end[:place]]
        for cut_off in (True, False):
            said = Parsed("".join(pieces), "", [])
            assert parse(name, pieces, state=INSIDE, cut_off=cut_off) == said
            assert parse(name, ["".join(pieces)], state=INSIDE, cut_off=cut_off) == said
    for place in range(1, len(form.begin)):
        said = form.begin[:place]
        assert parse(name, [f"\n{said}"], cut_off=True) == Parsed("", f"\n{said}", [])
        assert parse(name, [f"\n{said}"], state=INSIDE, cut_off=True) == Parsed(said, "", [])


def test_answers_without_thinking_are_content() -> None:
    text = " Tags: <think> and </think>."
    assert parse("qwen3", list(text)) == Parsed("", text, [])


def test_the_prompt_says_where_an_answer_begins() -> None:
    always, marked = (answer_format(None, name) for name in ("deepseek-r1", "qwen3"))
    opened, closed, neither = "<|assistant|><think>\n", "<think>\n\n</think>\n\n", "<|assistant|>"
    prompts = (opened, closed, neither)
    assert [always.state(prompt, "") for prompt in prompts] == [INSIDE, BEHIND, INSIDE]
    assert [marked.state(prompt, "") for prompt in prompts] == [INSIDE, BEHIND, BEFORE]
    for beginning, state in (
        ("<think>hm", INSIDE),
        ("<think>hm</think>So", BEHIND),
        ("So", BEHIND),
    ):
        assert always.state(neither + beginning, beginning) is state


def test_calls_end_thinking_where_models_forget_to() -> None:
    text = "Look it up.<tool_call>now\n</tool_call>"
    assert parse("glm45", list(text), "glm45", state=INSIDE).calls == [("now", "{}")]


def test_calls_inside_thinking_are_thoughts() -> None:
    call = '<tool_call>{"name": "now"}</tool_call>'
    found = parse("qwen3", [f"<think>or {call}</think>{call}"], "hermes")
    assert found == Parsed(f"or {call}", "", [("now", "{}")])


def test_reasoning_that_is_not_to_be_separate_stays_in_the_text() -> None:
    text = "<think>a</think>b"
    assert parse("qwen3", [text], separate_reasoning=False) == Parsed("", text, [])


@pytest.mark.parametrize("tools", ["json", "llama3"])
@pytest.mark.parametrize(
    ("name", "text", "separate", "content"),
    [
        ("qwen3", "<think>[{ a</think>\n\n", False, "<think>[{ a</think>"),
        ("deepseek-r1", "[{ a</think>", False, "[{ a</think>"),
        ("qwen3", "", False, ""),
        ("minimax-append-think", "[{ a</think>", True, "<think>[{ a</think>"),
        ("minimax-append-think", "[{ a</think>", False, "[{ a</think>"),
    ],
)
def test_calls_without_a_frame_are_found_behind_thinking_that_stays_in_the_text(
    name: str, text: str, separate: bool, content: str, tools: str
) -> None:
    """They are looked for where the answer begins."""
    call = '{"name": "now", "parameters": {}}'
    form = answer_format("llama3", name)
    if tools == "json":
        form, call = form.of_json_calls(), f"[{call}]"
    state = BEFORE if name == "qwen3" else INSIDE
    options = ParseOptions(tools=TOOLS, separate_reasoning=separate, state=state)
    for pieces in ([text + call], list(text + call)):
        parser = AnswerParser(form, options)
        events = [event for piece in pieces for event in parser.push(piece)]
        assert gathered(events + parser.finish()) == Parsed("", content, [("now", "{}")])


@pytest.mark.parametrize("name", ["deepseek-r1", "minimax-append-think"])
def test_framed_calls_are_found_in_thinking_that_stays_in_the_text(name: str) -> None:
    """As all other formats of calls have it: models may forget to end it, or not think at all."""
    call = '<|python_tag|>{"name": "now", "parameters": {}}'
    kept = "" if name == "deepseek-r1" else "<think>"
    for pieces in ([f"a{call}</think>b"], list(f"a{call}</think>b")):
        options = ParseOptions(tools=TOOLS, separate_reasoning=bool(kept), state=INSIDE)
        parser = AnswerParser(answer_format("llama3", name), options)
        events = [event for piece in pieces for event in parser.push(piece)]
        found = gathered(events + parser.finish())
        assert found == Parsed("", f"{kept}a</think>b", [("now", "{}")])


def test_reasoning_that_is_not_to_be_streamed_comes_in_one() -> None:
    parser = AnswerParser(answer_format(None, "qwen3"), ParseOptions(stream_reasoning=False))
    events = [parser.push(piece) for piece in ("<think>", "a", "b", "</think>", "c")]
    assert [[type(event).__name__ for event in some] for some in events] == [
        [],
        [],
        [],
        ["ReasoningText"],
        ["ContentText"],
    ]


def test_the_tag_of_the_prompt_is_put_before_the_answer() -> None:
    assert parse("minimax-append-think", ["a", "</think>b"]).content == "<think>a</think>b"


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(SPLIT),
    st.lists(
        st.one_of(
            st.sampled_from(
                [text for form in REASONING_FORMATS.values() for text in (form.begin, form.end)]
            ),
            st.text(max_size=4),
        ),
        max_size=6,
    ),
    st.lists(st.integers(0, 60), max_size=8),
    st.sampled_from(ThinkingState),
)
def test_whatever_comes_is_cut_alike(
    name: str, pieces: list[str], places: list[int], state: ThinkingState
) -> None:
    text = "".join(pieces)
    assert parse(name, list(cut(text, places)), state=state) == parse(name, [text], state=state)
