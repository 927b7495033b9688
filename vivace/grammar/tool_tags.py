"""Constraints for tool calls, for those who know how a model writes them: this JSON schema behind
that text, then that text.

`before`, of all of them: what stands in front, as formats of structural tags; `field`: of the
request, for errors.
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

    def format(self) -> dict[str, Any]:
        content = {"type": "json_schema", "json_schema": self.schema}
        return {"type": "tag", "begin": self.begin, "content": content, "end": self.end}


def required_calls(
    tags: Sequence[ToolTag],
    *,
    separator: str = "",
    parallel: bool = True,
    before: Sequence[TagFormat] = (),
    field: str = "tools",
) -> Constraint:
    """The answer is a call, or with `parallel` calls with `separator` between them, and nothing
    else: tool_choice required or named."""
    return _constraint([*before, calls_format(tags, separator, parallel=parallel)], field)


def possible_calls(
    tags: Sequence[ToolTag],
    triggers: Sequence[str],
    *,
    parallel: bool = True,
    before: Sequence[TagFormat] = (),
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
    return _constraint([*before, form], field)


def calls_or_json(
    tags: Sequence[ToolTag],
    schema: Any,
    *,
    separator: str = "",
    parallel: bool = True,
    before: Sequence[TagFormat] = (),
    field: str = "tools",
) -> Constraint:
    """As `required_calls`, or JSON of a schema: tools beside a response_format."""
    json_format = {"type": "json_schema", "json_schema": schema}
    choices = [calls_format(tags, separator, parallel=parallel), json_format]
    return _constraint([*before, {"type": "or", "elements": choices}], field)


def required_json_calls(
    names_and_schemas: Sequence[tuple[str, Any]],
    *,
    arguments: str = "parameters",
    parallel: bool = True,
    before: Sequence[TagFormat] = (),
    field: str = "tools",
) -> Constraint:
    """The answer is a JSON list of `{"name": ..., arguments: ...}`: required calls of a model whose
    own syntax is not known."""
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": name}, arguments: schema},
            "required": ["name", arguments],
            "additionalProperties": False,
        }
        for name, schema in names_and_schemas
    ]
    schema: dict[str, Any] = {"type": "array", "minItems": 1, "items": {"anyOf": calls}}
    if not parallel:
        schema["maxItems"] = 1
    return _constraint([*before, {"type": "json_schema", "json_schema": schema}], field)


def thinking_first(begin: str, end: str, behind: str, *, inside: bool) -> list[TagFormat]:
    """What may stand before calls: thinking between `begin` and `end`, or none; when the answer
    begins `inside`, its rest up to `end`."""
    space = {"type": "regex", "pattern": r"[ \n]{0,4}"}
    rest = [{"type": "any_text"}, _constant(end), space, *([_constant(behind)] if behind else ())]
    if inside:
        return rest
    thinking = {"type": "sequence", "elements": [_constant(begin), *rest]}
    return [{"type": "or", "elements": [thinking, _constant("")]}]


def calls_format(tags: Sequence[ToolTag], separator: str, *, parallel: bool) -> TagFormat:
    return {
        "type": "tags_with_separator",
        "tags": [tag.format() for tag in tags],
        "separator": separator,
        "at_least_one": True,
        "stop_after_first": not parallel,
    }


def _constant(text: str) -> TagFormat:
    return {"type": "const_string", "value": text}


def _constraint(parts: Sequence[TagFormat], field: str) -> Constraint:
    form = parts[0] if len(parts) == 1 else {"type": "sequence", "elements": list(parts)}
    text = json.dumps({"type": STRUCTURAL_TAG, "format": form}, ensure_ascii=False)
    return Constraint(kind=STRUCTURAL_TAG, text=text, field=field)
