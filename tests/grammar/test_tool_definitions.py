"""Tools that nobody would define: refused with a field, or obeyed; and read alike however cut."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from grammar_kit import VOCABULARY, backend, spell, walk_randomly
from hypothesis import given, settings
from hypothesis import strategies as st

from vivace.frontend.errors import BadRequest
from vivace.frontend.fairness import run_now
from vivace.grammar.backend import GrammarError, JsonFormat
from vivace.grammar.thinking import ThinkingBackend
from vivace.parsers.events import gather
from vivace.parsers.names import TOOL_CALL_PARSERS
from vivace.parsers.parser import AnswerParser, ParseOptions, ParserFormat, answer_format
from vivace.requests.tool_constraints import ToolCalls
from vivace.requests.tools import ToolChoice, ToolDefinition, offered_tools

BACKEND = ThinkingBackend(backend(JsonFormat(compact=True)), VOCABULARY)
TYPES = ("string", "integer", "number", "object", "array", "boolean", "null", "any", "")
LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 99), st.sampled_from(TYPES), st.text(max_size=4)
)


def keywords(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Objects that look like schemas."""
    names = st.text("ab{}<>\"'\\ \n", max_size=3)
    known = {
        "type": st.one_of(st.sampled_from(TYPES), st.lists(st.sampled_from(TYPES), max_size=2)),
        "properties": st.one_of(inner, st.dictionaries(names, inner, max_size=3)),
        "required": st.one_of(inner, st.lists(names, max_size=2)),
        "items": inner,
        "enum": st.one_of(LEAVES, st.lists(LEAVES, max_size=3)),
        "const": inner,
        "anyOf": st.one_of(inner, st.lists(inner, max_size=2)),
        "$ref": st.sampled_from(["#", "#/$defs/a", "http://x/y", 3]),
        "$defs": st.dictionaries(st.sampled_from("ab"), inner, max_size=1),
        "maxLength": st.one_of(LEAVES, st.integers(-1, 1 << 40)),
        "pattern": st.sampled_from(["a+", "(", "^x$", "(?=a)", 1]),
        "additionalProperties": st.one_of(st.just(False), inner),
        "uniqueItems": LEAVES,
    }
    return st.fixed_dictionaries({}, optional=known)


SCHEMAS = st.recursive(
    LEAVES, lambda inner: st.one_of(st.lists(inner, max_size=2), keywords(inner)), max_leaves=8
)
FUNCTIONS = st.fixed_dictionaries(
    {"name": st.one_of(st.sampled_from(["a", "a.b", "x-y"]), st.text(max_size=4))},
    optional={"parameters": SCHEMAS, "strict": st.booleans(), "description": LEAVES},
)
TOOLS = st.lists(st.fixed_dictionaries({"function": FUNCTIONS}), max_size=3)
CHOICES = st.sampled_from(
    [
        None,
        "auto",
        "required",
        "none",
        "x",
        {"function": {"name": "a"}},
        {"function": {"name": "z"}},
    ]
)


class DefinedTools(msgspec.Struct):
    tools: list[ToolDefinition]
    tool_choice: str | ToolChoice | None = None


def read(
    form: ParserFormat, options: ParseOptions, pieces: list[str]
) -> tuple[str, list[list[str]]]:
    """(content and reasoning, calls)"""
    parser = AnswerParser(form, options)
    events = [event for piece in pieces for event in parser.push(piece)]
    found = run_now(gather([*events, *parser.finish()]))
    return found.reasoning + found.text, [[call.name, call.arguments] for call in found.calls]


@settings(max_examples=120, deadline=None)
@given(TOOLS, CHOICES, st.sampled_from([None, *TOOL_CALL_PARSERS]), st.integers(0, 1 << 20))
def test_any_tools_are_refused_or_obeyed(
    tools: list[Any], choice: Any, name: str | None, seed: int
) -> None:
    given_tools = {"tools": tools, "tool_choice": choice}
    try:
        offered = offered_tools(msgspec.convert(given_tools, DefinedTools))
        found = ToolCalls(offered=offered, form=answer_format(name, None), parallel=True).syntax(
            None
        )
        drawn = None if found.constraint is None else BACKEND.compile(found.constraint)
    except (msgspec.ValidationError, BadRequest, GrammarError) as refusal:
        assert str(refusal)
        return
    if drawn is None:
        return
    rng = np.random.default_rng(seed)
    text = spell(walk_randomly(drawn, rng, 60)).decode(errors="ignore")
    options = ParseOptions(tools=offered.schemas)
    whole = read(found.form, options, [text])
    cuts = sorted(rng.integers(0, len(text) + 1, 6).tolist())
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert read(found.form, options, pieces) == whole == read(found.form, options, list(text))
    assert {called for called, _ in whole[1]} <= set(offered.schemas)
