"""Messages of a conversation as chat templates expect them."""

from __future__ import annotations

from typing import Any

import msgspec

from vivace.frontend.errors import BadRequest
from vivace.frontend.fields import refuse_unsupported
from vivace.frontend.pace import Work
from vivace.requests.json_scan import Scan
from vivace.requests.limits import DEPTH, VALUES
from vivace.requests.schema import MESSAGE_REFUSED, Message

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
SPEAKERS_WITHOUT_TEXT = ("assistant", "tool", "function")


def template_messages(messages: list[Message]) -> Work[list[dict[str, Any]]]:
    """Messages as templates expect them."""
    normalized: list[dict[str, Any]] = []
    values = 0
    for number, message in enumerate(messages):
        normalized.append(template_message(message, f"messages[{number}]"))
        yield
        for index, call in enumerate(normalized[-1].get("tool_calls", ())):
            values += yield from read_arguments(call, f"messages[{number}].tool_calls[{index}]")
            if values > VALUES:
                reason = f"the arguments of tool calls hold more than {VALUES} values"
                raise BadRequest("messages", reason)
    return normalized


def template_message(message: Message, field: str) -> dict[str, Any]:
    """One message, with the arguments of its tool calls as they came."""
    if message.role not in ROLES:
        raise BadRequest(f"{field}.role", f"must be one of {', '.join(ROLES)}")
    refuse_unsupported(message, MESSAGE_REFUSED, place=f"{field}.")
    normalized: dict[str, Any] = {"role": message.role, "content": content(message, field)}
    for name in ("name", "tool_call_id", "reasoning_content"):
        value = getattr(message, name)
        if value is not None:
            normalized[name] = value
    if message.tool_calls:
        normalized["tool_calls"] = [dict(call) for call in message.tool_calls]
    return normalized


def content(message: Message, field: str) -> str | list[dict[str, str]] | None:
    """The content if it is text, whole or in parts; other parts are refused."""
    parts = message.content
    if parts is None and message.role not in SPEAKERS_WITHOUT_TEXT:
        raise BadRequest(f"{field}.content", "is required")
    if parts is None or isinstance(parts, str):
        return parts
    texts: list[dict[str, str]] = []
    for number, part in enumerate(parts):
        if part.type != "text" or part.text is None:
            raise BadRequest(
                f"{field}.content[{number}]",
                f"part of type {part.type!r}: the served model takes text only",
            )
        texts.append({"type": "text", "text": part.text})
    return texts


def read_arguments(call: dict[str, Any], field: str) -> Work[int]:
    """Make an object of a past call's arguments: templates want one, clients send a string.
    Returns how many values it holds, at most."""
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return 0
    name = f"{field}.function.arguments"
    try:
        data = function["arguments"].encode()
        values = sum(data.count(mark) for mark in (b",", b"[", b"{"))
        if values > DEPTH:  # many of them, or commas in a text
            scan = Scan(data, {})
            yield from scan.run()
            values = scan.values
        call["function"] = {**function, "arguments": msgspec.json.decode(data)}
    except BadRequest as error:
        raise BadRequest(name, error.reason) from None
    except (msgspec.DecodeError, ValueError, RecursionError):
        raise BadRequest(name, "is not valid JSON") from None
    return values
