"""What a request offers to the model: functions of the client's, and tools of servers that were
named at the start."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import chain, count
from typing import Any

from vivace.frontend.errors import BadRequest
from vivace.frontend.fields import abbreviate
from vivace.requests.custom_tools import CUSTOM, GRAMMAR
from vivace.requests.tools import FUNCTION
from vivace.server.apis.chat_messages import needed
from vivace.server.apis.responses_schema import (
    PEERS,
    InputFormat,
    ListedTool,
    ResponseTool,
    ToolApproval,
    ToolFilter,
)
from vivace.server.responses import HTTPError
from vivace.tool_servers.messages import ToolDescription
from vivace.tool_servers.servers import ToolServers
from vivace.tool_servers.transport import ToolServerError

MCP = "mcp"
OF_OTHERS = {
    FUNCTION: ("format", "is that of a custom tool's input; a function has parameters"),
    CUSTOM: ("parameters", "are a function's; the input of a custom tool is text"),
}
"""fields of the other kind of tool, and why not"""
OF_CUSTOM = ("description",)
BESIDE = "is required, beside type (chats have it in an object of its own)"
NO_OWN_TOOLS = "must be function, custom or mcp: this server runs no tools of its own"
AS_FUNCTION = "offer a function, and do in the client what it is called with"
ON_SERVER = "name a tool server that has it at the start (--tool-server)"
INSTEAD = {
    "namespace": "put its tools into tools, beside the others",
    "tool_search": "offer the tools themselves: all are listed",
    "apply_patch": "offer a custom tool whose input is the patch, and apply it in the client",
    "shell": AS_FUNCTION,
    "local_shell": AS_FUNCTION,
    "computer": AS_FUNCTION,
    "computer_use_preview": AS_FUNCTION,
}
"""of tools that OpenAI has -> what there is here; of others `ON_SERVER`"""
ALWAYS, NEVER = "always", "never"
EVERY = ToolFilter()
"""of `never`, where nobody is asked"""
UNKNOWN_SERVER = "no tool server of this name was named at the start (--tool-server); there is {}"
NOT_THERE = 424
"""HTTP's "failed dependency", as OpenAI answers"""


@dataclass(frozen=True)
class ServerTool:
    """A tool of a server; `asks`: the client has to approve each call."""

    label: str
    name: str
    asks: bool


@dataclass(frozen=True)
class ServerList:
    """The tools of a server that a request may call."""

    label: str
    tools: list[ListedTool]


@dataclass(frozen=True)
class ToolOffer:
    """`functions`: and custom tools, as the chat path takes them. `served`: those that servers
    have, by the names that the model knows; `lists`: the same, for the client. `places`: of the
    functions in the body."""

    functions: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    served: Mapping[str, ServerTool] = field(default_factory=dict[str, ServerTool])
    lists: Sequence[ServerList] = ()
    places: Sequence[str] = ()

    def known_name(self, label: str, name: str) -> str | None:
        """By which the model knows a tool of a server; None: it is not offered."""
        return next(iter(self.known_names(label, name)), None)

    def known_names(self, label: str, name: str | None) -> list[str]:
        """By which the model knows that tool of a server, or all that are offered."""
        return [
            known
            for known, tool in self.served.items()
            if tool.label == label and name in (None, tool.name)
        ]


async def read_offer(
    servers: ToolServers, tools: Sequence[ResponseTool], listed: frozenset[str]
) -> ToolOffer:
    """`listed`: labels of servers whose tools the client knows. BadRequest; HTTPError 424 for a
    server that is not there now."""
    own = {f"tools[{i}]": tool for i, tool in enumerate(tools) if tool.type != MCP}
    functions, places = [read_tool(tool, place) for place, tool in own.items()], list(own)
    names = {tool.name for tool in own.values() if tool.name is not None}
    served: dict[str, ServerTool] = {}
    lists: list[ServerList] = []
    labels: set[str] = set()
    for index, tool in enumerate(tools):
        if tool.type != MCP:
            continue
        place = f"tools[{index}]"
        label, found = await allowed_tools(servers, tool, place)
        if label in labels:
            raise BadRequest(f"{place}.server_label", f"{abbreviate(label)!r} is there twice")
        labels.add(label)
        approval = read_approval(tool.require_approval, f"{place}.require_approval")
        for one in found:
            known = free_name(label, one.name, names)
            names.add(known)
            served[known] = ServerTool(label, one.name, asks(approval, one))
            functions.append(as_function(known, one))
            places.append(place)
        if label not in listed:
            lists.append(ServerList(label, [as_listed(one) for one in found]))
    return ToolOffer(functions, served, lists, places)


def read_tool(tool: ResponseTool, place: str) -> dict[str, Any]:
    """A function or a custom tool of the client, as the chat path takes it."""
    if tool.type not in (FUNCTION, CUSTOM):
        reason = f"{NO_OWN_TOOLS}; {INSTEAD.get(tool.type, ON_SERVER)}"
        raise BadRequest(f"{place}.type", f"{abbreviate(tool.type)!r}: {reason}")
    found: dict[str, Any] = {"name": needed(tool.name, f"{place}.name", BESIDE)}
    name, reason = OF_OTHERS[tool.type]
    if getattr(tool, name) is not None:
        raise BadRequest(f"{place}.{name}", reason)
    for name in ("description", "parameters", "strict") if tool.type == FUNCTION else OF_CUSTOM:
        if (value := getattr(tool, name)) is not None:
            found[name] = value
    if tool.type == CUSTOM and tool.format is not None:
        found["format"] = read_format(tool.format, f"{place}.format")
    return {"type": tool.type, tool.type: found}


def read_format(form: InputFormat, place: str) -> dict[str, Any]:
    """Of a custom tool's input, as the chat path takes it."""
    if form.type != GRAMMAR:
        return {"type": form.type}
    given = {
        "syntax": needed(form.syntax, f"{place}.syntax", BESIDE),
        "definition": needed(form.definition, f"{place}.definition", BESIDE),
    }
    return {"type": GRAMMAR, GRAMMAR: given}


async def allowed_tools(
    servers: ToolServers, tool: ResponseTool, place: str
) -> tuple[str, list[ToolDescription]]:
    """The label of a server, and those of its tools that may be called."""
    for name, reason in PEERS.items():
        if getattr(tool, name) is not None:
            raise BadRequest(f"{place}.{name}", reason)
    label = needed(tool.server_label, f"{place}.server_label")
    server = servers.get(label)
    if server is None:
        there = ", ".join(servers) or "none"
        raise BadRequest(f"{place}.server_label", UNKNOWN_SERVER.format(there))
    try:
        tools = await server.tools()
    except ToolServerError as error:
        message = f"tool server {label}: {error}"
        raise HTTPError(NOT_THERE, message, param=f"{place}.server_label") from None
    wanted = tool.allowed_tools
    if wanted is None:
        return label, list(tools.values())
    names = wanted if isinstance(wanted, list) else wanted.tool_names or []
    for name in names:
        if name not in tools:
            reason = f"the server has no tool {abbreviate(name)!r}"
            raise BadRequest(f"{place}.allowed_tools", reason)
    chosen = ToolFilter(tool_names=wanted) if isinstance(wanted, list) else wanted
    return label, [one for one in tools.values() if matches(chosen, one)]


def matches(wanted: ToolFilter | None, tool: ToolDescription) -> bool:
    if wanted is None or (wanted.tool_names is None and wanted.read_only is None):
        return False
    named = wanted.tool_names is None or tool.name in wanted.tool_names
    return named and wanted.read_only in (None, tool.read_only)


def read_approval(value: str | ToolApproval | None, place: str) -> ToolApproval:
    """Which calls the client is asked about; without a word: all, as with OpenAI. BadRequest."""
    if isinstance(value, ToolApproval):
        return value
    if value not in (None, ALWAYS, NEVER):
        raise BadRequest(place, f"must be {ALWAYS}, {NEVER} or an object with filters")
    return ToolApproval(never=EVERY if value == NEVER else None)


def asks(approval: ToolApproval, tool: ToolDescription) -> bool:
    free = approval.never is EVERY or matches(approval.never, tool)
    return not free or matches(approval.always, tool)


def free_name(label: str, name: str, taken: Set[str]) -> str:
    """What the model calls a tool: as its server does, unless another one is called so."""
    own = re.sub(r"\W", "_", label) + "__" + name
    numbered = (f"{own}_{number}" for number in count(2))
    return next(known for known in chain((name, own), numbered) if known not in taken)


def as_function(name: str, tool: ToolDescription) -> dict[str, Any]:
    function: dict[str, Any] = {"name": name, "parameters": tool.input_schema}
    if tool.description is not None:
        function["description"] = tool.description
    return {"type": FUNCTION, "function": function}


def as_listed(tool: ToolDescription) -> ListedTool:
    return ListedTool(
        name=tool.name,
        input_schema=tool.input_schema,
        description=tool.description,
        annotations=tool.annotations,
    )
