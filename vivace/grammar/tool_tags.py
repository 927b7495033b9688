"""Constraints for tool calls, for those who know how a model writes them: this JSON schema behind
that text, then that text.

`field`, of all of them: of the request, for errors.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vivace.protocol.constraints import STRUCTURAL_TAG, Constraint

TagFormat = dict[str, Any]
"""a format of structural tags"""


@dataclass(frozen=True)
class ToolTag:
    """A call as the model writes it."""

    begin: str
    """the words in front of the arguments"""
    schema: Any
    """JSON schema of the arguments: a dict, or True for any JSON"""
    end: str
    """the words behind them"""
    place: str
    """of the schema in the request, for errors"""

    def format(self) -> dict[str, Any]:
        content = {"type": "json_schema", "json_schema": self.schema, "place": self.place}
        return {"type": "tag", "begin": self.begin, "content": content, "end": self.end}


def required_calls(
    tags: Sequence[ToolTag],
    *,
    separator: str = "",
    parallel: bool = True,
    field: str = "tools",
) -> Constraint:
    """The answer is a call, or with `parallel` calls with `separator` between them, and nothing
    else: tool_choice required or named."""
    return _constraint(calls_format(tags, separator, parallel=parallel), field)


def possible_calls(
    tags: Sequence[ToolTag],
    triggers: Sequence[str],
    *,
    parallel: bool = True,
    field: str = "tools",
) -> Constraint:
    """Any text, in which calls obey their schemas: tool_choice auto with strict tools. What begins
    with one of `triggers` must be one of `tags`, which all begin with one. The answer ends behind
    the first call unless they may be `parallel`."""
    form = {
        "type": "triggered_tags",
        "triggers": list(triggers),
        "tags": [tag.format() for tag in tags],
        "stop_after_first": not parallel,
    }
    return _constraint(form, field)


def calls_or_json(
    tags: Sequence[ToolTag],
    schema: Any,
    *,
    separator: str = "",
    parallel: bool = True,
    field: str = "tools",
) -> Constraint:
    """As `required_calls`, or JSON of a schema: tools beside a response_format."""
    json_format = {"type": "json_schema", "json_schema": schema}
    choices = [calls_format(tags, separator, parallel=parallel), json_format]
    return _constraint({"type": "or", "elements": choices}, field)


def required_json_calls(
    functions: Sequence[tuple[str, Any, str]],
    *,
    arguments: str = "parameters",
    parallel: bool = True,
    field: str = "tools",
) -> Constraint:
    """The answer is a JSON list of `{"name": ..., arguments: ...}`: required calls of a model whose
    own syntax is not known. `functions`: the name of each, its schema and the place of that. Each
    schema stands alone, since what it refers to is its own."""
    tags = [
        ToolTag(f'{{"name": {json.dumps(name)}, "{arguments}": ', schema, "}", place)
        for name, schema, place in functions
    ]
    listed = [constant("["), calls_format(tags, ", ", parallel=parallel), constant("]")]
    return _constraint({"type": "sequence", "elements": listed}, field)


def constant(text: str) -> TagFormat:
    return {"type": "const_string", "value": text}


def calls_format(tags: Sequence[ToolTag], separator: str, *, parallel: bool) -> TagFormat:
    return {
        "type": "tags_with_separator",
        "tags": [tag.format() for tag in tags],
        "separator": separator,
        "at_least_one": True,
        "stop_after_first": not parallel,
    }


def _constraint(form: TagFormat, field: str) -> Constraint:
    text = json.dumps({"type": STRUCTURAL_TAG, "format": form}, ensure_ascii=False)
    return Constraint(kind=STRUCTURAL_TAG, text=text, field=field)
