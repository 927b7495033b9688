"""What a request says of its tools -> what its answer has to obey, and how it is parsed then."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from vivace.frontend.constraints import check_json
from vivace.frontend.errors import BadRequest
from vivace.grammar.tool_tags import either, json_calls, tag_constraint, tagged
from vivace.parsers.call_syntax import AnswerShape
from vivace.parsers.parser import ParserFormat
from vivace.parsers.schema_types import kinds
from vivace.protocol.constraints import JSON_SCHEMA, Constraint
from vivace.requests.argument_schemas import NotWritable, said
from vivace.requests.call_formats import CalledFunction, CallFormats, Functions, can_call
from vivace.requests.response_format import FORMAT
from vivace.requests.tools import OfferedTools

ANY_OBJECT = {"type": "object"}
NO_ARGUMENTS = {**ANY_OBJECT, "additionalProperties": False}
"""of a function without parameters"""
TOOLS, CHOICE = "tools", "tool_choice"
JSON_ENDS = ("}",)
"""what follows the fence of an input in a list of JSON"""
NO_KEYWORD = (
    "has no keyword of JSON schemas, so anything would obey; write "
    '{"type": "object", "properties": {...}} around the parameters'
)
NOT_NARROWED = (
    "allowed_tools can be enforced only with --tool-call-parser; leave the other tools out of tools"
)
NO_INPUTS = "custom tools need --tool-call-parser, which finds their calls; or require a call"


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
        model does, or as a JSON list where its own syntax is not known or cannot say what the
        schemas do; others obey their schemas where they are `strict`. BadRequest."""
        offered = self.offered
        if asked is None and not (offered.required or offered.strict or offered.narrowed):
            return ToolSyntax(self.form, None)
        check_json(list(offered.schemas.values()), TOOLS)  # before texts are made of them
        if offered.required:
            return self._required(asked)
        shape = self.form.shape
        if shape is None and offered.narrowed:
            raise BadRequest(CHOICE, NOT_NARROWED)
        if shape is None and offered.inputs:
            raise BadRequest(offered.places[min(offered.inputs)].rpartition(".")[0], NO_INPUTS)
        functions = self._callable(shape) if shape else {}
        if shape is None or not functions:
            return ToolSyntax(self.form, asked)
        try:
            calls = self._formats(shape, functions)
            if asked is None:
                return ToolSyntax(self.form, tag_constraint(calls.possible(), TOOLS))
            schema = read_json(asked.text) if asked.kind == JSON_SCHEMA else None
            if not isinstance(schema, dict):
                return ToolSyntax(self.form, asked)
            content = tagged(shape.final, {"type": "json_schema", "json_schema": schema}, "")
            form = either([calls.required(), content])
        except NotWritable as refusal:
            raise BadRequest(refusal.place, refusal.reason) from None
        return ToolSyntax(self.form, tag_constraint(form, asked.field))

    def _required(self, asked: Constraint | None) -> ToolSyntax:
        if asked is not None and not asked.field.startswith(FORMAT):  # which is of text
            reason = f"does not go with {asked.field} where it wants a call; leave one of them out"
            raise BadRequest(CHOICE, reason)
        offered, shape = self.offered, self.form.shape
        functions = {name: self._function(name) for name in offered.required}
        try:
            if shape is not None:
                form = self._formats(shape, functions).required()
                return ToolSyntax(self.form, tag_constraint(form, TOOLS))
        except NotWritable:
            pass  # a list of JSON can be
        listed = {name: function.json(JSON_ENDS) for name, function in functions.items()}
        form = json_calls(listed, parallel=self._several)
        return ToolSyntax(self.form.of_json_calls(), tag_constraint(form, TOOLS))

    def _formats(self, shape: AnswerShape, functions: Functions) -> CallFormats:
        return CallFormats(shape, functions, self._several)

    @property
    def _several(self) -> bool:
        return self.parallel and not self.offered.single

    def _callable(self, shape: AnswerShape) -> Functions:
        """All functions, but for those that the model could not call whatever it wrote."""
        offered = self.offered
        return {
            name: self._function(name)
            if name in offered.strict
            else CalledFunction(ANY_OBJECT, place)
            for name, place in offered.places.items()
            if name in offered.schemas and (name in offered.strict or can_call(shape, name))
        }

    def _function(self, name: str) -> CalledFunction:
        offered, schema = self.offered, self.offered.schemas[name]
        if schema and not said(schema) and all(isinstance(one, dict) for one in schema.values()):
            raise BadRequest(offered.places[name], NO_KEYWORD)
        named = kinds({"type": schema.get("type")}, schema)
        if named and "object" not in named:
            raise BadRequest(f"{offered.places[name]}.type", "must be object, as arguments are")
        whole = {**schema, **ANY_OBJECT} if schema else NO_ARGUMENTS
        return CalledFunction(whole, offered.places[name], offered.inputs.get(name))


def read_json(text: str) -> Any:
    """None for what is none: the engine says why."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
