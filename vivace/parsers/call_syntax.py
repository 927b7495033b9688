"""How the models of a family write calls, said so that a grammar can demand it.

Where {name} stands in a text, the function's name is; where {key} stands, a parameter's.
"""

from __future__ import annotations

from dataclasses import dataclass

NAME, KEY, NAMES = "{name}", "{key}", "{names}"


@dataclass(frozen=True, kw_only=True)
class ParameterTags:
    """Arguments of which each stands between `begin` and `end`: JSON, or text that has none of
    `excluded` in it. `json_begin`: what those that are JSON begin with, where the reader goes by
    that and not by the schema. `edge` stands at both ends of a value and is no part of it.
    `untyped`: the reader takes a value without a schema for JSON where it is some."""

    begin: str
    end: str
    excluded: tuple[str, ...]
    json_begin: str = ""
    edge: str = ""
    untyped: bool = False


@dataclass(frozen=True)
class KeywordArguments:
    """Arguments as in Python: `city="Paris", days=3`."""


@dataclass(frozen=True, kw_only=True)
class CallSyntax:
    """`begin` and `end` stand around the arguments, which are a JSON object unless `arguments` says
    how else they are written; `separator` between calls, `section` around all of them. With `each`
    a section has one call, and the separator is between sections. `label`: (an expression, a text)
    for an id or number that stands behind `begin`, and what stands behind that. `stray`: models
    leave the section out, too. `behind_input`: what the reader of a fenced input knows its end by,
    unless the answer ends there; of `end` it stands first, or what is before it is left out.
    `id_behind`: (a text, an expression, a text) for an id that may stand behind the arguments.

    A separator is not what a section's end begins with: then it belongs to `end`.
    """

    begin: str
    end: str = ""
    separator: str = ""
    section: tuple[str, str] | None = None
    each: bool = False
    label: tuple[str, str] | None = None
    stray: bool = False
    arguments: ParameterTags | KeywordArguments | None = None
    behind_input: str = "}"
    id_behind: tuple[str, str, str] | None = None

    @property
    def input_end(self) -> str:
        """The end of a call with a fenced input."""
        return self.end[max(0, self.end.find(self.behind_input)) :]

    @property
    def opening(self) -> str:
        """What stands first."""
        return self.section[0] if self.section else self.begin


@dataclass(frozen=True, kw_only=True)
class AnswerShape:
    """What answers look like that may have calls in them.

    `syntaxes`: in which a call may be written, each begins with one of `markers`, which no text
    has; `newlines_optional`: models may leave them out of what frames calls and arguments. `bare`:
    one more that an answer may begin with, and `bare_like`, an expression, what it must not begin
    with then if it is none. `call_like`: an expression; no text has that either. `last`: nothing
    but calls follows calls. `messages`: (begin, end) of messages that may come before, and `final`
    the begin of the last one, where text stands in messages.
    """

    syntaxes: tuple[CallSyntax, ...]
    markers: tuple[str, ...] = ()
    newlines_optional: bool = False
    bare: CallSyntax | None = None
    bare_like: str = ""
    call_like: str = ""
    last: bool = False
    messages: tuple[tuple[str, str], ...] = ()
    final: str = ""

    @property
    def ways(self) -> tuple[CallSyntax, ...]:
        """All in which a call may be written."""
        return self.syntaxes if self.bare is None else (*self.syntaxes, self.bare)

    def marker(self, text: str) -> str:
        """That the text begins with; empty: with none."""
        return next((one for one in self.markers if text.startswith(one)), "")
