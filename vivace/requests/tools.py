"""The tools that a request offers to the model, and which of them may be called."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import msgspec

from vivace.frontend.errors import BadRequest
from vivace.frontend.fields import abbreviate
from vivace.grammar.schema_references import with_pointers
from vivace.requests.custom_tools import (
    CUSTOM,
    CustomDefinition,
    InputGrammar,
    input_schema,
    read_grammar,
)
from vivace.requests.limits import Entries, Members

FUNCTION, ALLOWED = "function", "allowed_tools"
NO_DEFINITION = 'is missing: an object with name and the rest, which do not stand beside "type"'
NO_NAMED = "is missing: it has the name of a tool in it"
FUNCTION_NAME = re.compile(r"[\w.:/\-]{1,256}")


class FunctionDefinition(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A function that may be called. `parameters`: the JSON schema of its arguments."""

    name: str
    description: str | None = None
    parameters: Members[Any] | None = None
    strict: bool | None = None


class ToolDefinition(msgspec.Struct, kw_only=True):
    """One of `tools`: of type function, or custom."""

    function: FunctionDefinition | None = None
    custom: CustomDefinition | None = None
    type: str = FUNCTION


class ToolName(msgspec.Struct, kw_only=True):
    """Which one is to be called."""

    name: str


class NamedTool(msgspec.Struct, kw_only=True):
    """A tool by its name, of type function or custom."""

    function: ToolName | None = None
    custom: ToolName | None = None
    type: str = FUNCTION


class AllowedTools(msgspec.Struct, kw_only=True):
    """`mode`: auto, or required."""

    tools: Entries[NamedTool]
    mode: str = "auto"


class ToolChoice(NamedTool, kw_only=True):
    """`tool_choice` as an object: of type function or custom, or allowed_tools."""

    allowed_tools: AllowedTools | None = None


class ToolFields(Protocol):
    """What requests with conversations say of tools."""

    @property
    def tools(self) -> Sequence[ToolDefinition] | None: ...

    @property
    def tool_choice(self) -> str | ToolChoice | None: ...


@dataclass(frozen=True)
class OfferedTools:
    """`described`: as the chat template gets them; `schemas`: of the arguments, by name, of those
    that may be called, and `places` where these stand in the request. `inputs`: custom tools among
    them, with what their inputs obey. `strict`: those whose calls
    have to obey their schemas; `required`: those of which one has to be called, none when the model
    may do without; `single`: at most one call is made; `narrowed`: others are described, too."""

    described: list[dict[str, Any]] = field(default_factory=list)
    schemas: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    places: Mapping[str, str] = field(default_factory=dict)
    inputs: Mapping[str, InputGrammar | None] = field(default_factory=dict)
    strict: frozenset[str] = frozenset()
    required: tuple[str, ...] = ()
    single: bool = False
    narrowed: bool = False


def offered_tools(params: ToolFields) -> OfferedTools:
    """The tools that may be called: none when `tool_choice` says so. BadRequest."""
    tools, choice = read_tools(params.tools or ()), params.tool_choice
    if choice == "none":
        return OfferedTools()
    schemas = with_pointers(
        {name: tool.definition.parameters or {} for name, tool in tools.items()}
    )
    offered = OfferedTools(
        described=[tool.described() for tool in tools.values()],
        schemas=schemas,
        places={name: tool.place for name, tool in tools.items()},
        inputs={name: tool.grammar for name, tool in tools.items() if tool.custom},
        strict=frozenset(name for name, tool in tools.items() if tool.definition.strict),
    )
    if isinstance(choice, ToolChoice):
        return chosen_tools(offered, choice)
    if choice == "required":
        if not schemas:
            raise BadRequest("tool_choice", "needs tools")
        return replace(offered, required=tuple(schemas))
    if choice not in (None, "auto"):
        reason = f"{abbreviate(choice)!r}: must be none, auto, required, a tool or allowed_tools"
        raise BadRequest("tool_choice", reason)
    return offered


def chosen_tools(offered: OfferedTools, choice: ToolChoice) -> OfferedTools:
    """What a `tool_choice` leaves of them that is an object. BadRequest."""
    if choice.type != ALLOWED:
        name = known_name(choice, offered, "tool_choice", f"{FUNCTION}, {CUSTOM} or {ALLOWED}")
        return replace(offered, required=(name,), single=True)
    place, allowed = f"tool_choice.{ALLOWED}", choice.allowed_tools
    if allowed is None:
        raise BadRequest(place, "is missing: an object with mode and tools")
    if not allowed.tools:
        raise BadRequest(f"{place}.tools", "must name some of tools, or use none")
    if allowed.mode not in ("auto", "required"):
        raise BadRequest(f"{place}.mode", f"{abbreviate(allowed.mode)!r}: must be auto or required")
    names = {
        known_name(tool, offered, f"{place}.tools[{index}]", f"{FUNCTION} or {CUSTOM}")
        for index, tool in enumerate(allowed.tools)
    }
    schemas = {name: schema for name, schema in offered.schemas.items() if name in names}
    return replace(
        offered,
        schemas=schemas,
        strict=offered.strict & names,
        required=tuple(schemas) if allowed.mode == "required" else (),
        narrowed=len(schemas) < len(offered.schemas),
    )


def known_name(tool: NamedTool, offered: OfferedTools, place: str, kinds: str) -> str:
    """Of one that is offered. BadRequest. `kinds`: what its type may be."""
    if tool.type not in (FUNCTION, CUSTOM):
        raise BadRequest(f"{place}.type", f"{abbreviate(tool.type)!r}: must be {kinds}")
    named = tool.function if tool.type == FUNCTION else tool.custom
    if named is None:
        raise BadRequest(f"{place}.{tool.type}", NO_NAMED)
    if named.name not in offered.schemas or (named.name in offered.inputs) != (tool.type == CUSTOM):
        reason = f"{abbreviate(named.name)!r} is none of tools of this type"
        raise BadRequest(f"{place}.{tool.type}.name", reason)
    return named.name


@dataclass(frozen=True)
class ReadTool:
    """A tool as the function that the model is told of. `place`: of what its calls obey."""

    definition: FunctionDefinition
    place: str
    custom: bool = False
    grammar: InputGrammar | None = None

    def described(self) -> dict[str, Any]:
        """As the chat template gets it."""
        definition = self.definition
        if self.custom:
            definition = msgspec.structs.replace(definition, strict=None)
        return {"type": FUNCTION, "function": msgspec.to_builtins(definition)}


def read_tools(tools: Sequence[ToolDefinition]) -> dict[str, ReadTool]:
    """By name. BadRequest for what cannot be called."""
    found: dict[str, ReadTool] = {}
    for number, tool in enumerate(tools):
        place = f"tools[{number}].{tool.type}"
        one = read_tool(tool, f"tools[{number}]")
        name = one.definition.name
        if FUNCTION_NAME.fullmatch(name) is None:
            reason = "must be 1 to 256 letters, digits and _ . : / -"
            raise BadRequest(f"{place}.name", reason)
        if name in found:
            raise BadRequest(f"{place}.name", f"{abbreviate(name)!r} is there twice")
        found[name] = one
    return found


def read_tool(tool: ToolDefinition, place: str) -> ReadTool:
    """BadRequest for one that is neither a function nor custom, or has no definition."""
    if tool.type not in (FUNCTION, CUSTOM):
        reason = f"{abbreviate(tool.type)!r}: tools are of type {FUNCTION} or {CUSTOM}"
        raise BadRequest(f"{place}.type", reason)
    place = f"{place}.{tool.type}"
    if tool.type == FUNCTION:
        if tool.function is None:
            raise BadRequest(place, NO_DEFINITION)
        return ReadTool(tool.function, f"{place}.parameters")
    if tool.custom is None:
        raise BadRequest(place, NO_DEFINITION)
    grammar = read_grammar(tool.custom, place)
    definition = FunctionDefinition(
        name=tool.custom.name,
        description=tool.custom.description,
        parameters=input_schema(grammar),
        strict=True,
    )
    return ReadTool(definition, f"{place}.format", custom=True, grammar=grammar)
