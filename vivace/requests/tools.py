"""The functions that a request offers to the model, and which of them may be called."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from vivace.frontend.errors import BadRequest
from vivace.frontend.fields import abbreviate
from vivace.requests.limits import Members

FUNCTION_NAME = re.compile(r"[\w.:/\-]{1,256}")


class FunctionDefinition(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A function that may be called. `parameters`: the JSON schema of its arguments."""

    name: str
    description: str | None = None
    parameters: Members[Any] | None = None
    strict: bool | None = None


class ToolDefinition(msgspec.Struct, kw_only=True):
    """One of `tools`; only `type: function` is served."""

    function: FunctionDefinition
    type: str = "function"


class FunctionName(msgspec.Struct, kw_only=True):
    """Which function is to be called."""

    name: str


class NamedToolChoice(msgspec.Struct, kw_only=True):
    """`tool_choice` as an object."""

    function: FunctionName
    type: str = "function"


class ToolFields(Protocol):
    """What requests with conversations say of tools."""

    @property
    def tools(self) -> Sequence[ToolDefinition] | None: ...

    @property
    def tool_choice(self) -> str | NamedToolChoice | None: ...


@dataclass(frozen=True)
class OfferedTools:
    """`described`: as the chat template gets them; `schemas`: of the arguments, by name. `strict`:
    those whose calls have to obey their schemas; `required`: those of which one has to be called,
    none when the model may do without; `single`: at most one call is made."""

    described: list[dict[str, Any]] = field(default_factory=list)
    schemas: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    strict: frozenset[str] = frozenset()
    required: tuple[str, ...] = ()
    single: bool = False


def offered_tools(params: ToolFields) -> OfferedTools:
    """The tools that may be called: none when `tool_choice` says so. BadRequest."""
    schemas = read_tools(params.tools or ())
    if params.tool_choice == "none":
        return OfferedTools()
    required = required_tools(params.tool_choice, schemas)
    functions = [tool.function for tool in params.tools or ()]
    return OfferedTools(
        described=[{"type": "function", "function": msgspec.to_builtins(f)} for f in functions],
        schemas=schemas,
        strict=frozenset(function.name for function in functions if function.strict),
        required=required,
        single=isinstance(params.tool_choice, NamedToolChoice),
    )


def required_tools(
    choice: str | NamedToolChoice | None, schemas: Mapping[str, Mapping[str, Any]]
) -> tuple[str, ...]:
    """The names of which `tool_choice` wants one to be called. BadRequest."""
    if isinstance(choice, NamedToolChoice):
        if choice.type != "function":
            reason = f"{abbreviate(choice.type)!r}: tools are of type function"
            raise BadRequest("tool_choice.type", reason)
        if choice.function.name not in schemas:
            reason = f"{abbreviate(choice.function.name)!r} is none of tools"
            raise BadRequest("tool_choice.function.name", reason)
        return (choice.function.name,)
    if choice == "required":
        if not schemas:
            raise BadRequest("tool_choice", "needs tools")
        return tuple(schemas)
    if choice not in (None, "auto"):
        reason = f"{abbreviate(choice)!r}: must be none, auto, required or a function"
        raise BadRequest("tool_choice", reason)
    return ()


def read_tools(tools: Sequence[ToolDefinition]) -> dict[str, Mapping[str, Any]]:
    """The schemas of all functions by name. BadRequest for what cannot be called."""
    schemas: dict[str, Mapping[str, Any]] = {}
    for number, tool in enumerate(tools):
        place, name = f"tools[{number}]", tool.function.name
        if tool.type != "function":
            reason = f"{abbreviate(tool.type)!r}: tools are of type function"
            raise BadRequest(f"{place}.type", reason)
        if FUNCTION_NAME.fullmatch(name) is None:
            reason = "must be 1 to 256 letters, digits and _ . : / -"
            raise BadRequest(f"{place}.function.name", reason)
        if name in schemas:
            raise BadRequest(f"{place}.function.name", f"{abbreviate(name)!r} is there twice")
        schemas[name] = tool.function.parameters or {}
    return schemas
