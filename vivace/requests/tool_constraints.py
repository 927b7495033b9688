"""What a request says of its tools -> what its answer has to obey, and how it is parsed then."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vivace.frontend.constraints import check_json
from vivace.frontend.errors import BadRequest
from vivace.grammar.tool_tags import (
    ToolTag,
    calls_or_json,
    possible_calls,
    required_calls,
    required_json_calls,
)
from vivace.parsers.answer import CallFrame
from vivace.parsers.parser import ParserFormat
from vivace.protocol.constraints import JSON_SCHEMA, Constraint
from vivace.requests.tools import OfferedTools

ANY_OBJECT = {"type": "object"}
NO_ARGUMENTS = {**ANY_OBJECT, "additionalProperties": False}
"""of a function without parameters"""
TOOLS, CHOICE = "tools", "tool_choice"
NOT_NARROWED = (
    "allowed_tools can be enforced only with --tool-call-parser; leave the other tools out of tools"
)


@dataclass(frozen=True)
class ToolSyntax:
    """`form`: how answers are parsed; `constraint`: what they have to obey."""

    form: ParserFormat
    constraint: Constraint | None


@dataclass(frozen=True, kw_only=True)
class ToolCalls:
    """The calls that the answers to a request may have. `form`: how the model writes them;
    `parallel`: there may be several."""

    offered: OfferedTools
    form: ParserFormat
    parallel: bool

    def syntax(self, asked: Constraint | None) -> ToolSyntax:
        """`asked`: what the content of an answer has to obey. Required calls are written as the
        model does, or as a JSON list where arguments are no JSON in its own syntax; others obey
        their schemas where they are `strict`. BadRequest."""
        offered = self.offered
        if asked is None and not (offered.required or offered.strict or offered.narrowed):
            return ToolSyntax(self.form, None)
        check_json(list(offered.schemas.values()), TOOLS)  # before texts are made of them
        if offered.required:
            return self._required(asked)
        frames = self._frames(tuple(offered.schemas))
        if not frames and offered.narrowed:
            raise BadRequest(CHOICE, NOT_NARROWED)
        if not frames:
            return ToolSyntax(self.form, asked)
        if asked is None:
            return ToolSyntax(self.form, self._possible(frames))
        schema = read_json(asked.text) if asked.kind == JSON_SCHEMA else None
        if not isinstance(schema, dict):
            return ToolSyntax(self.form, asked)
        return ToolSyntax(self.form, self._beside(schema, asked.field, frames))

    def _required(self, asked: Constraint | None) -> ToolSyntax:
        if asked is not None:
            reason = f"does not go with {asked.field} where it wants a call; leave one of them out"
            raise BadRequest(CHOICE, reason)
        names = self.offered.required
        frames = self._frames(names)
        parallel = self._parallel(frames)
        if frames:
            constraint = required_calls(
                self._tags(frames, names),
                separator=frames[names[0]].separator,
                parallel=parallel,
                field=CHOICE,
            )
            return ToolSyntax(self.form, constraint)
        places = self.offered.places
        functions = [(name, self._schema(name), places[name]) for name in names]
        constraint = required_json_calls(functions, parallel=parallel, field=CHOICE)
        return ToolSyntax(self.form.of_json_calls(), constraint)

    def _possible(self, frames: Mapping[str, CallFrame]) -> Constraint:
        return possible_calls(
            self._tags(frames, self.offered.strict),
            sorted({frame.trigger for frame in frames.values()}),
            parallel=self._parallel(frames),
            field=TOOLS,
        )

    def _beside(
        self, schema: dict[str, Any], field: str, frames: Mapping[str, CallFrame]
    ) -> Constraint:
        return calls_or_json(
            self._tags(frames, self.offered.strict),
            schema,
            separator=next(iter(frames.values())).separator,
            parallel=self._parallel(frames),
            field=field,
        )

    def _frames(self, names: Sequence[str]) -> dict[str, CallFrame]:
        """Of all these functions; none where calls have no frames."""
        found = {name: self.form.call_frame(name) for name in names}
        return {name: frame for name, frame in found.items() if frame is not None}

    def _tags(
        self, frames: Mapping[str, CallFrame], strict: Sequence[str] | frozenset[str]
    ) -> list[ToolTag]:
        places = self.offered.places
        return [
            ToolTag(
                frame.begin,
                self._schema(name) if name in strict else ANY_OBJECT,
                frame.end,
                places[name],
            )
            for name, frame in frames.items()
        ]

    def _schema(self, name: str) -> dict[str, Any]:
        schema = self.offered.schemas[name]
        return {**ANY_OBJECT, **schema} if schema else NO_ARGUMENTS

    def _parallel(self, frames: Mapping[str, CallFrame]) -> bool:
        last = any(frame.last for frame in frames.values())
        return self.parallel and not self.offered.single and not last


def read_json(text: str) -> Any:
    """None for what is none: the engine says why."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
