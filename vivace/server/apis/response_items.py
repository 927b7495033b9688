"""The items of a response: what they are called, their ids, and how they begin."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from vivace.server.apis.responses_schema import OutputItem, OutputPart


class Item(StrEnum):
    """What items of an input and of a response are called."""

    MESSAGE = "message"
    REASONING = "reasoning"
    CALL = "function_call"
    CALL_OUTPUT = "function_call_output"
    CUSTOM_CALL = "custom_tool_call"
    CUSTOM_OUTPUT = "custom_tool_call_output"
    SERVER_CALL = "mcp_call"
    SERVER_TOOLS = "mcp_list_tools"
    APPROVAL_REQUEST = "mcp_approval_request"
    APPROVAL_RESPONSE = "mcp_approval_response"
    REFERENCE = "item_reference"


PREFIXES = {
    Item.MESSAGE: "msg",
    Item.REASONING: "rs",
    Item.CALL: "fc",
    Item.CUSTOM_CALL: "ctc",
    Item.SERVER_CALL: "mcp",
    Item.SERVER_TOOLS: "mcpl",
    Item.APPROVAL_REQUEST: "mcpr",
}
"""of the ids of items that a response has"""
TEXT_EVENTS = {
    Item.MESSAGE: "response.output_text",
    Item.REASONING: "response.reasoning_text",
    Item.CALL: "response.function_call_arguments",
    Item.CUSTOM_CALL: "response.custom_tool_call_input",
    Item.SERVER_CALL: "response.mcp_call_arguments",
}
"""What events of an item's text, or of its arguments or input, are called."""


def new_item(kind: Item, **fields: Any) -> OutputItem:
    identity = f"{PREFIXES[kind]}_{secrets.token_hex(12)}"
    return OutputItem(id=identity, type=kind, status="in_progress", **fields)


def call_item(kind: Item, **fields: Any) -> OutputItem:
    return new_item(kind, arguments="", **fields)


def text_part(kind: str, text: str = "", logprobs: Sequence[Any] = ()) -> OutputPart:
    if kind == Item.REASONING:
        return OutputPart(type="reasoning_text", text=text)
    return OutputPart(type="output_text", text=text, annotations=[], logprobs=list(logprobs))
