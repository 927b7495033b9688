"""From messages to the text the model sees."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from vivace.frontend.errors import BadRequest
from vivace.server.context import Context
from vivace.server.fields import refuse_unsupported
from vivace.server.schema import MESSAGE_REFUSED, Message

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
SPEAKERS_WITHOUT_TEXT = ("assistant", "tool", "function")


class Conversation(Protocol):
    """What /v1/chat/completions and /tokenize have in common."""

    continue_final_message: bool
    chat_template_kwargs: dict[str, Any] | None
    reasoning_effort: str | None


def chat_text(
    context: Context,
    messages: list[Message],
    asked: Conversation,
    *,
    add_generation_prompt: bool = True,
) -> str:
    """Render messages with the model's chat template; BadRequest on what it cannot take."""
    template = context.tokenizer("messages").chat
    if template is None:
        raise BadRequest(
            "messages",
            "the model has no chat template; use /v1/completions or start with --chat-template",
        )
    if not messages:
        raise BadRequest("messages", "must not be empty")
    keywords = dict(asked.chat_template_kwargs or {})
    for name in ("add_generation_prompt", "continue_final_message", "tools", "messages"):
        if name in keywords:
            raise BadRequest(f"chat_template_kwargs.{name}", "is set by the server")
    if asked.reasoning_effort is not None:
        keywords.setdefault("reasoning_effort", asked.reasoning_effort)
    return template.render(
        [turn(message, f"messages[{i}]") for i, message in enumerate(messages)],
        add_generation_prompt=add_generation_prompt,
        continue_final_message=asked.continue_final_message,
        **keywords,
    )


def turn(message: Message, field: str) -> dict[str, Any]:
    """A message as templates expect it."""
    if message.role not in ROLES:
        raise BadRequest(f"{field}.role", f"must be one of {', '.join(ROLES)}")
    refuse_unsupported(message, MESSAGE_REFUSED, place=f"{field}.")
    shaped: dict[str, Any] = {"role": message.role, "content": content(message, field)}
    for name in ("name", "tool_call_id", "reasoning_content"):
        value = getattr(message, name)
        if value is not None:
            shaped[name] = value
    if message.tool_calls:
        shaped["tool_calls"] = [
            tool_call(call, f"{field}.tool_calls[{i}]") for i, call in enumerate(message.tool_calls)
        ]
    return shaped


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


def tool_call(call: dict[str, Any], field: str) -> dict[str, Any]:
    """A past tool call; templates want its arguments as an object, clients send a string."""
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = msgspec.json.decode(function["arguments"].encode())
    except (msgspec.DecodeError, ValueError, RecursionError):
        raise BadRequest(f"{field}.function.arguments", "is not valid JSON") from None
    return {**call, "function": {**function, "arguments": arguments}}
