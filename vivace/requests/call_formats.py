"""The calls of an answer, in the syntax of the model, as formats of structural tags."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from vivace.grammar.tool_tags import (
    TagFormat,
    any_text,
    constant,
    defined,
    either,
    json_value,
    listed,
    optional,
    sequence,
    tagged,
    text_rules,
    triggered,
    with_definitions,
    with_optional_newlines,
)
from vivace.parsers.call_syntax import (
    KEY,
    NAME,
    NAMES,
    AnswerShape,
    CallSyntax,
    KeywordArguments,
    ParameterTags,
)
from vivace.parsers.inputs import INPUT
from vivace.requests.argument_schemas import NotWritable, ReadingAllowance
from vivace.requests.custom_tools import InputGrammar
from vivace.requests.keyword_formats import PYTHON_KEY, keyword_arguments
from vivace.requests.parameter_formats import tagged_arguments

MORE = " more"
"""what calls behind the first one are defined as: no function's name"""
NO_NAME = "a function of this name cannot be called in this model's syntax"


@dataclass(frozen=True)
class CalledFunction:
    """`schema`: of the arguments, which stands at `place` in the request; of a custom tool the
    `grammar` of its input, where that has one."""

    schema: dict[str, Any]
    place: str
    grammar: InputGrammar | None = None

    def json(self, behind: Sequence[str]) -> TagFormat:
        """The arguments of a call that is JSON. `behind`: what may follow the fence of an input."""
        if self.grammar is None:
            return json_value(self.schema, self.place)
        return self.grammar.as_json(f'{{"{INPUT}": "', '"}', behind)

    def tagged(self, tags: ParameterTags, allowance: ReadingAllowance) -> TagFormat:
        """In tags. Raises NotWritable."""
        if self.grammar is None:
            return tagged_arguments(self.schema, self.place, tags, allowance)
        begin = constant(tags.begin.replace(KEY, INPUT) + tags.edge)
        return sequence(begin, self.grammar.plain(tags.excluded, tags.edge + tags.end))

    def keywords(self, behind: Sequence[str], allowance: ReadingAllowance) -> TagFormat:
        """As in Python. Raises NotWritable."""
        if self.grammar is None:
            return keyword_arguments(self.schema, self.place, allowance)
        return self.grammar.as_json(f'{INPUT}="', '"', behind)


Functions = Mapping[str, CalledFunction]
"""by name"""


def can_call(shape: AnswerShape, name: str) -> bool:
    """Whether the function's name can be written where calls are."""
    python = isinstance(shape.syntaxes[0].arguments, KeywordArguments)
    return not python or PYTHON_KEY.fullmatch(name) is not None


@dataclass(frozen=True)
class CallFormats:
    """`parallel`: there may be several calls. Raises NotWritable."""

    shape: AnswerShape
    functions: Functions
    parallel: bool
    _allowance: ReadingAllowance = field(default_factory=ReadingAllowance)

    def __post_init__(self) -> None:
        for name, function in self.functions.items():
            if not can_call(self.shape, name):
                raise NotWritable(function.place.rpartition(".")[0] + ".name", NO_NAME)

    def required(self) -> TagFormat:
        """Calls and nothing else. Raises NotWritable."""
        calls = either([self._calls(way) for way in self.shape.ways])
        if self.parallel and any(way.separator == "\n" for way in self.shape.ways):
            calls = sequence(calls, optional(constant("\n")))  # some models do not stop before it
        return self._with_arguments(calls)

    def possible(self) -> TagFormat:
        """Any text with calls in it that obey. Raises NotWritable."""
        shape = self.shape
        if shape.messages:
            return self._with_arguments(self._messages())
        form = self._text_with_calls()
        if shape.bare is not None:
            form = either([self._calls(shape.bare), form])
        return self._with_arguments(form)

    # -- the whole answer --------------------------------------------------------------------------

    def _text_with_calls(self) -> TagFormat:
        shape, tags, triggers = self.shape, list[TagFormat](), list[str]()
        for syntax in shape.syntaxes:
            found = self._first_calls(syntax) if self._goes_on(syntax) else self._tags(syntax)
            marker = shape.marker(syntax.opening)
            triggers += [marker] if marker else [tag["begin"] for tag in found]
            tags += found
            if syntax.stray:
                triggers.append(shape.marker(syntax.begin))
                tags += [self._call(syntax, name) for name in self.functions]
        names = "|".join(map(re.escape, self.functions))
        unlike = [shape.bare_like] if shape.bare_like else []
        if shape.call_like:
            unlike.append(f"(?s:.*){shape.call_like.replace(NAMES, names)}(?s:.*)")
        several = self.parallel and not shape.last
        unmarked = [marker for marker in shape.markers if marker not in triggers]
        rules = text_rules(unmarked, unlike=unlike)
        return triggered(tags, list(dict.fromkeys(triggers)), rules, several=several)

    def _messages(self) -> TagFormat:
        """Any messages, of which the last one may be a call."""
        shape = self.shape
        text = any_text(shape.markers)
        before = [tagged(begin, text, end) for begin, end in shape.messages]
        calls = [self._call(syntax, name) for syntax in shape.syntaxes for name in self.functions]
        last = [sequence(constant(shape.final), text), *calls, text]
        return sequence(listed(before, needed=False), either(last))

    def _with_arguments(self, form: TagFormat) -> TagFormat:
        """With what it refers to."""
        form = self._with_definitions(form) if self._shared else form
        return with_optional_newlines(form) if self.shape.newlines_optional else form

    def _with_definitions(self, form: TagFormat) -> TagFormat:
        way = self.shape.ways[0].arguments
        formats = {
            known: self._arguments(way, known)
            for known in dict.fromkeys(self._definitions.values())
        }
        more = [
            self._call(syntax, name, syntax.separator)
            for syntax in filter(self._goes_on, self.shape.syntaxes)
            for name in self.functions
        ]
        return with_definitions(
            {**formats, MORE: listed(more, needed=False)} if more else formats, form
        )

    # -- calls -------------------------------------------------------------------------------------

    def _calls(self, syntax: CallSyntax) -> TagFormat:
        """One, or several if there may be."""
        calls = [self._call(syntax, name) for name in self.functions]
        if syntax.section is None:
            several = self.parallel and not self.shape.messages
            return listed(calls, syntax.separator, several=several)
        if syntax.each:
            return listed(self._tags(syntax), syntax.separator, several=self.parallel)
        return self._tags(syntax)[0]

    def _tags(self, syntax: CallSyntax) -> list[TagFormat]:
        """What begins with the syntax's marker: calls, or a section with them."""
        calls = [self._call(syntax, name) for name in self.functions]
        if syntax.section is None:
            return calls
        several = self.parallel and not syntax.each
        begin, end = syntax.section
        return [tagged(begin, listed(calls, syntax.separator, several=several), end)]

    def _goes_on(self, syntax: CallSyntax) -> bool:
        """Whether what a first call begins has others behind it: a section whose begin may be text,
        or an answer that has calls alone then."""
        shape = self.shape
        alone = shape.last and not shape.messages and syntax.section is None
        return alone or not shape.marker(syntax.opening)

    def _first_calls(self, syntax: CallSyntax) -> list[TagFormat]:
        """What goes on, by the call that it begins with."""
        begin, end = syntax.section or ("", "")
        rest = [defined(MORE)] if self.parallel else []
        return [
            tagged(
                begin + syntax.begin.replace(NAME, name),
                sequence(self._labeled(syntax, name), constant(self._end(syntax, name)), *rest),
                end,
            )
            for name in self.functions
        ]

    def _call(self, syntax: CallSyntax, name: str, before: str = "") -> TagFormat:
        begin = before + syntax.begin.replace(NAME, name)
        return tagged(begin, self._labeled(syntax, name), self._end(syntax, name))

    def _end(self, syntax: CallSyntax, name: str) -> str:
        return syntax.input_end if self._is_fenced(name) else syntax.end

    def _is_fenced(self, name: str) -> bool:
        grammar = self.functions[name].grammar
        return grammar is not None and grammar.fenced

    def _labeled(self, syntax: CallSyntax, name: str) -> TagFormat:
        arguments = self._argument(syntax, name)
        if syntax.id_behind is not None and not self._is_fenced(name):
            before, pattern, after = syntax.id_behind
            known = (constant(before), any_text(patterns=[pattern]), constant(after))
            arguments = sequence(arguments, optional(sequence(*known)))
        if syntax.label is None:
            return arguments
        pattern, behind = syntax.label
        return sequence(any_text(patterns=[pattern]), constant(behind), arguments)

    # -- arguments ---------------------------------------------------------------------------------

    @property
    def _shared(self) -> bool:
        """Whether several parts have the same arguments in them."""
        first, *others = self.shape.ways
        return bool(others) or first.arguments is not None

    @cached_property
    def _definitions(self) -> dict[str, str]:
        """By which name the arguments of each function are defined: of the first with the same."""
        first: dict[Any, str] = {}
        texts = {name: (json.dumps(f.schema), f.grammar) for name, f in self.functions.items()}
        return {name: first.setdefault(text, name) for name, text in texts.items()}

    def _argument(self, syntax: CallSyntax, name: str) -> TagFormat:
        if self._shared:
            return defined(self._definitions[name])
        return self._arguments(syntax.arguments, name)

    def _arguments(self, way: ParameterTags | KeywordArguments | None, name: str) -> TagFormat:
        function = self.functions[name]
        behind = [one.behind_input for one in self.shape.ways]
        match way:
            case ParameterTags():
                return function.tagged(way, self._allowance)
            case KeywordArguments():
                return function.keywords(behind, self._allowance)
            case None:
                return function.json(behind)
