"""Constraints for tool calls, for those who know how a model writes them: this JSON schema behind
that text, then that text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vivace.protocol.constraints import STRUCTURAL_TAG, Constraint


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
    tags: Sequence[ToolTag], *, separator: str = "", parallel: bool = True, field: str = "tools"
) -> Constraint:
    """The answer is a call, or with `parallel` calls with `separator` between them, and nothing
    else: tool_choice required or named. `field`: of the request, for errors."""
    form = {
        "type": "tags_with_separator",
        "tags": [tag.format() for tag in tags],
        "separator": separator,
        "at_least_one": True,
        "stop_after_first": not parallel,
    }
    return _constraint(form, field)


def possible_calls(
    tags: Sequence[ToolTag], triggers: Sequence[str], *, field: str = "tools"
) -> Constraint:
    """Any text, in which calls obey their schemas: tool_choice auto with strict tools. What begins
    with one of `triggers` must be one of `tags`, which all begin with one."""
    form = {
        "type": "triggered_tags",
        "triggers": list(triggers),
        "tags": [tag.format() for tag in tags],
    }
    return _constraint(form, field)


def required_json_calls(
    names_and_schemas: Sequence[tuple[str, Any]],
    *,
    arguments: str = "parameters",
    parallel: bool = True,
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
    return _constraint({"type": "json_schema", "json_schema": schema}, field)


def _constraint(form: dict[str, Any], field: str) -> Constraint:
    text = json.dumps({"type": STRUCTURAL_TAG, "format": form}, ensure_ascii=False)
    return Constraint(kind=STRUCTURAL_TAG, text=text, field=field)
