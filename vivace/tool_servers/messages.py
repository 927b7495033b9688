"""What MCP's messages hold (JSON-RPC 2.0), as far as tools are concerned."""

from __future__ import annotations

from typing import Any

import msgspec

VERSION = "2025-11-25"
"""of the protocol that we ask for"""
VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", VERSION)
"""that a server may answer in: tools are the same in all of them"""
UNKNOWN_METHOD = -32601


class RpcError(msgspec.Struct, kw_only=True):
    code: int = 0
    message: str = ""


class RpcMessage(msgspec.Struct, kw_only=True):
    """A request (id and method), a notification (method), or an answer (id)."""

    id: int | str | None = None
    method: str | None = None
    result: msgspec.Raw = msgspec.Raw()
    """empty where there is none"""
    error: RpcError | None = None


class InitializeResult(msgspec.Struct, kw_only=True, rename="camel"):
    """Answer of `initialize`."""

    protocol_version: str


class ToolDescription(msgspec.Struct, kw_only=True, rename="camel"):
    """A tool as a server lists it."""

    name: str
    description: str | None = None
    input_schema: dict[str, Any] = {}
    annotations: dict[str, Any] | None = None

    @property
    def read_only(self) -> bool:
        return (self.annotations or {}).get("readOnlyHint") is True


class ToolList(msgspec.Struct, kw_only=True, rename="camel"):
    """Answer of `tools/list`: a page."""

    tools: list[ToolDescription] = []
    next_cursor: str | None = None


class EmbeddedResource(msgspec.Struct, kw_only=True):
    uri: str = ""
    text: str | None = None


class Content(msgspec.Struct, kw_only=True):
    """A part of what a call has found."""

    type: str
    text: str | None = None
    resource: EmbeddedResource | None = None
    uri: str | None = None


class CallOutcome(msgspec.Struct, kw_only=True, rename="camel"):
    """Answer of `tools/call`."""

    content: list[Content] = []
    structured_content: Any = None
    is_error: bool = False

    def text(self) -> str:
        """What a model that reads text gets of it."""
        if not self.content and self.structured_content is not None:
            return msgspec.json.encode(self.structured_content).decode()
        return "\n".join(map(content_text, self.content))


def content_text(part: Content) -> str:
    match part:
        case Content(type="text", text=str(text)):
            return text
        case Content(type="resource", resource=EmbeddedResource(text=str(text))):
            return text
        case Content(type="resource_link", uri=str(uri)):
            return uri
        case _:
            return f"[{part.type[:40]} left out: the model reads text only]"
