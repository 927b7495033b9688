"""Custom tools: what they are called with is text, which may have to obey a grammar. To the model
each is a function of one string."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from vivace.frontend.errors import BadRequest
from vivace.frontend.fields import abbreviate
from vivace.grammar.tool_tags import (
    TagFormat,
    any_text,
    closed_text,
    guarded,
    regex,
    tagged,
)
from vivace.parsers.inputs import FENCE, FENCE_END, INPUT

CUSTOM, TEXT, GRAMMAR = "custom", "text", "grammar"
LARK, REGEX = "lark", "regex"
NO_GRAMMAR = 'is missing: an object with syntax and definition, which do not stand beside "type"'


class GrammarDefinition(msgspec.Struct, kw_only=True):
    """`syntax`: lark or regex."""

    definition: str
    syntax: str


class CustomFormat(msgspec.Struct, kw_only=True):
    """Of an input: `text`, or `grammar`."""

    type: str = TEXT
    grammar: GrammarDefinition | None = None


class CustomDefinition(msgspec.Struct, kw_only=True):
    """A custom tool that may be called."""

    name: str
    description: str | None = None
    format: CustomFormat | None = None


@dataclass(frozen=True)
class InputGrammar:
    """What an input obeys. `place`: of the definition in the request."""

    syntax: str
    definition: str
    place: str

    @property
    def fenced(self) -> bool:
        """Whether it stands in a fence where arguments are JSON."""
        return self.syntax == LARK

    def as_json(self, begin: str, end: str, behind: Sequence[str]) -> TagFormat:
        """The argument, in JSON between `begin` and `end`, which have the quotes; or the input as
        it stands in a fence: terminals of a grammar cannot be told apart where each may begin with
        a backslash. `behind`: what may follow the fence: nothing in the input looks like both, even
        by a character, since there is no way back in a text."""
        if not self.fenced:
            return tagged(begin, regex(self.definition, self.place, quoted=True), end)
        firsts = "|".join(re.escape(text[0]) for text in dict.fromkeys(behind))
        unlike = f"(?s:.*){FENCE_END}(?:{firsts})(?s:.*)"
        guard = closed_text(f"(?s:{FENCE}.*{FENCE_END})", unlike=unlike)
        return guarded(self.definition, self.place, guard, (FENCE, FENCE_END))

    def plain(self, excludes: tuple[str, ...], end: str) -> TagFormat:
        """The input as it stands, which has none of `excludes`, and what ends it."""
        if self.syntax == REGEX:
            text = any_text(excludes, patterns=[self.definition], place=self.place)
            return tagged("", text, end)
        guard = tagged("", any_text(excludes), end)
        return guarded(self.definition, self.place, guard, end=end)


def read_grammar(custom: CustomDefinition, place: str) -> InputGrammar | None:
    """Of a tool at `place`; None: any text is an input. BadRequest."""
    form = custom.format
    if form is None or form.type == TEXT:
        return None
    if form.type != GRAMMAR:
        reason = f"{abbreviate(form.type)!r}: must be {TEXT} or {GRAMMAR}"
        raise BadRequest(f"{place}.format.type", reason)
    given = form.grammar
    if given is None:
        raise BadRequest(f"{place}.format.grammar", NO_GRAMMAR)
    if given.syntax not in (LARK, REGEX):
        reason = f"{abbreviate(given.syntax)!r}: must be {LARK} or {REGEX}"
        raise BadRequest(f"{place}.format.grammar.syntax", reason)
    at = f"{place}.format.grammar.definition"
    if not given.definition:
        raise BadRequest(at, "is empty: must be a grammar in the syntax that is named beside it")
    return InputGrammar(given.syntax, given.definition, at)


def input_schema(found: InputGrammar | None) -> dict[str, Any]:
    """Of the arguments that stand for an input, as the model is told of them."""
    text = {"type": "string"}
    if found is not None:
        syntax = "Lark grammar" if found.syntax == LARK else "regular expression"
        text["description"] = f"Text that obeys this {syntax}:\n{found.definition}"
    return {
        "type": "object",
        "properties": {INPUT: text},
        "required": [INPUT],
        "additionalProperties": False,
    }
