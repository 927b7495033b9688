"""The functions that a request offers to the model, and which of them may be called."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import msgspec

from vivace.frontend.errors import BadRequest
from vivace.frontend.fields import MISSING, abbreviate
from vivace.requests.limits import Entries, Members

FUNCTION, ALLOWED = "function", "allowed_tools"
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
    type: str = FUNCTION


class FunctionName(msgspec.Struct, kw_only=True):
    """Which function is to be called."""

    name: str


class NamedTool(msgspec.Struct, kw_only=True):
    """One of those that a `tool_choice` allows."""

    function: FunctionName
    type: str = FUNCTION


class AllowedTools(msgspec.Struct, kw_only=True):
    """`mode`: auto, or required."""

    tools: Entries[NamedTool]
    mode: str = "auto"


class ToolChoice(msgspec.Struct, kw_only=True):
    """`tool_choice` as an object: of type function, or allowed_tools."""

    type: str = FUNCTION
    function: FunctionName | None = None
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
    that may be called, and `places` where these stand in the request. `strict`: those whose calls
    have to obey their schemas; `required`: those of which one has to be called, none when the model
    may do without; `single`: at most one call is made; `narrowed`: others are described, too."""

    described: list[dict[str, Any]] = field(default_factory=list)
    schemas: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    places: Mapping[str, str] = field(default_factory=dict)
    strict: frozenset[str] = frozenset()
    required: tuple[str, ...] = ()
    single: bool = False
    narrowed: bool = False


def offered_tools(params: ToolFields) -> OfferedTools:
    """The tools that may be called: none when `tool_choice` says so. BadRequest."""
    schemas, choice = read_tools(params.tools or ()), params.tool_choice
    if choice == "none":
        return OfferedTools()
    functions = [tool.function for tool in params.tools or ()]
    offered = OfferedTools(
        described=[{"type": FUNCTION, "function": msgspec.to_builtins(f)} for f in functions],
        schemas=schemas,
        places={name: f"tools[{index}].function.parameters" for index, name in enumerate(schemas)},
        strict=frozenset(function.name for function in functions if function.strict),
    )
    if isinstance(choice, ToolChoice):
        return chosen_tools(offered, choice)
    if choice == "required":
        if not schemas:
            raise BadRequest("tool_choice", "needs tools")
        return replace(offered, required=tuple(schemas))
    if choice not in (None, "auto"):
        reason = (
            f"{abbreviate(choice)!r}: must be none, auto, required, a function or allowed_tools"
        )
        raise BadRequest("tool_choice", reason)
    return offered


def chosen_tools(offered: OfferedTools, choice: ToolChoice) -> OfferedTools:
    """What a `tool_choice` leaves of them that is an object. BadRequest."""
    if choice.type == FUNCTION:
        if choice.function is None:
            raise BadRequest("tool_choice.function", MISSING["function"])
        name = choice.function.name
        check_known(name, offered, "tool_choice.function.name")
        return replace(offered, required=(name,), single=True)
    if choice.type != ALLOWED:
        reason = f"{abbreviate(choice.type)!r}: must be {FUNCTION} or {ALLOWED}"
        raise BadRequest("tool_choice.type", reason)
    place, allowed = f"tool_choice.{ALLOWED}", choice.allowed_tools
    if allowed is None or not allowed.tools:
        raise BadRequest(f"{place}.tools", "must name functions of tools, or use none")
    if allowed.mode not in ("auto", "required"):
        raise BadRequest(f"{place}.mode", f"{abbreviate(allowed.mode)!r}: must be auto or required")
    for index, tool in enumerate(allowed.tools):
        at = f"{place}.tools[{index}]"
        if tool.type != FUNCTION:
            reason = f"{abbreviate(tool.type)!r}: tools are of type function"
            raise BadRequest(f"{at}.type", reason)
        check_known(tool.function.name, offered, f"{at}.function.name")
    names = {tool.function.name for tool in allowed.tools}
    schemas = {name: schema for name, schema in offered.schemas.items() if name in names}
    return replace(
        offered,
        schemas=schemas,
        strict=offered.strict & names,
        required=tuple(schemas) if allowed.mode == "required" else (),
        narrowed=len(schemas) < len(offered.schemas),
    )


def check_known(name: str, offered: OfferedTools, place: str) -> None:
    if name not in offered.schemas:
        raise BadRequest(place, f"{abbreviate(name)!r} is none of tools")


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
