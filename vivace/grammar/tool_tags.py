"""Formats of structural tags, for those who know how a model writes calls: this JSON schema behind
that text, then that text."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from vivace.protocol.constraints import STRUCTURAL_TAG, Constraint

TagFormat = dict[str, Any]
"""a format of structural tags"""


def constant(text: str) -> TagFormat:
    return {"type": "const_string", "value": text}


def json_value(schema: Any, place: str) -> TagFormat:
    """JSON. `place`: of the schema in the request, for errors."""
    return {"type": "json_schema", "json_schema": schema, "place": place}


def grammar(text: str, place: str) -> TagFormat:
    """What a grammar in Lark's syntax allows."""
    return {"type": "grammar", "grammar": text, "place": place}


def regex(pattern: str, place: str, *, quoted: bool = False) -> TagFormat:
    """What an expression allows; `quoted`: as it is written inside a string of JSON."""
    return {"type": "regex", "pattern": pattern, "place": place, "quoted": quoted}


def any_text(
    excludes: Sequence[str] = (),
    *,
    patterns: Sequence[str] = (),
    unlike: Sequence[str] = (),
    place: str = "",
) -> TagFormat:
    """Text without `excludes` in it, which obeys all `patterns` and is not `unlike`, expressions
    for the whole of it. `place`: of `patterns` in the request, for errors."""
    rules = text_rules(excludes, patterns=patterns, unlike=unlike)
    return {"type": "any_text"} | rules | ({"place": place} if place else {})


def closed_text(pattern: str, *, unlike: str) -> TagFormat:
    """Text that an expression allows and another one does not; these say where it ends."""
    return any_text(patterns=[pattern], unlike=[unlike]) | {"closed": True}


def guarded(
    text: str, place: str, guard: TagFormat, around: tuple[str, str] = ("", ""), end: str = ""
) -> TagFormat:
    """What a grammar in Lark's syntax allows between two texts, and `end`, in an answer that obeys
    what the whole format is with all guards instead, too."""
    before, behind = (regex(re.escape(one), "") for one in around)  # to the letter
    whole = sequence(before, grammar(text, place), behind) if any(around) else grammar(text, place)
    return {
        "type": "guarded",
        "format": tagged("", whole, end) if end else whole,
        "guard": guard,
        "grammar": text,
        "place": place,
        "before": around[0],
        "behind": around[1],
    }


def text_rules(
    excludes: Sequence[str] = (), *, patterns: Sequence[str] = (), unlike: Sequence[str] = ()
) -> TagFormat:
    rules = {"excludes": excludes, "patterns": patterns, "unlike": unlike}
    return {name: list(texts) for name, texts in rules.items() if texts}


def tagged(begin: str, content: TagFormat, end: str) -> TagFormat:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def sequence(*elements: TagFormat) -> TagFormat:
    return elements[0] if len(elements) == 1 else {"type": "sequence", "elements": list(elements)}


def either(elements: Sequence[TagFormat]) -> TagFormat:
    return elements[0] if len(elements) == 1 else {"type": "or", "elements": list(elements)}


def optional(element: TagFormat) -> TagFormat:
    return either([element, constant("")])


def listed(
    elements: Sequence[TagFormat], separator: str = "", *, several: bool = True, needed: bool = True
) -> TagFormat:
    """One of these, or `several` with the separator between them; or none unless it is `needed`."""
    return {
        "type": "tags_with_separator",
        "tags": list(elements),
        "separator": separator,
        "at_least_one": needed,
        "stop_after_first": not several,
    }


def triggered(
    tags: Sequence[TagFormat],
    triggers: Sequence[str],
    rules: Mapping[str, Any],
    *,
    several: bool = True,
) -> TagFormat:
    """Any text that obeys `rules` (of `text_rules`), in which what begins with one of `triggers` is
    one of `tags`, which all begin with one. The answer ends behind the first unless there may be
    `several`."""
    return {
        "type": "triggered_tags",
        "triggers": list(triggers),
        "tags": list(tags),
        "stop_after_first": not several,
        **rules,
    }


def with_definitions(formats: Mapping[str, TagFormat], form: TagFormat) -> TagFormat:
    """A format that refers to others by their names (`defined`), as may each to those before it."""
    return {"type": "definitions", "formats": dict(formats), "format": form} if formats else form


def with_optional_newlines(form: TagFormat) -> TagFormat:
    """Those in what begins, ends and separates tags, and last in texts, may be left out."""
    return {"type": "optional_newlines", "format": form}


def defined(name: str) -> TagFormat:
    return {"type": "defined", "name": name}


def json_calls(functions: Mapping[str, TagFormat], *, parallel: bool = True) -> TagFormat:
    """A JSON list of `{"name": ..., "parameters": ...}`: calls of a model whose own syntax is not
    known. `functions`: the arguments of each, by its name. Each schema stands alone, since what it
    refers to is its own."""
    calls = [
        tagged(f'{{"name": {json.dumps(name)}, "parameters": ', arguments, "}")
        for name, arguments in functions.items()
    ]
    return sequence(constant("["), listed(calls, ", ", several=parallel), constant("]"))


def tag_constraint(form: TagFormat, field: str) -> Constraint:
    """`field`: of the request, for errors."""
    text = json.dumps({"type": STRUCTURAL_TAG, "format": form}, ensure_ascii=False)
    return Constraint(kind=STRUCTURAL_TAG, text=text, field=field)
