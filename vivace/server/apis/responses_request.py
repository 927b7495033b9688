"""From a body of OpenAI's Responses API to a request of the chat path, and what of it is repeated
in the answer."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from vivace.frontend.errors import BadRequest
from vivace.frontend.fairness import Work
from vivace.frontend.fields import NO_TEXT, abbreviate, refuse_part
from vivace.parsers.answer import new_call_id
from vivace.requests.input_files import read_file
from vivace.requests.limits import ENTRIES
from vivace.requests.schema import ContentPart, CustomCall, FunctionCall, Message, ToolCall
from vivace.requests.tools import ALLOWED
from vivace.server.apis.chat_messages import ChatMessages, needed
from vivace.server.apis.chat_run import chat_request
from vivace.server.apis.response_items import Item
from vivace.server.apis.responses_schema import (
    InputItem,
    ItemPart,
    ReasoningParam,
    ResponseObject,
    ResponsesRequest,
    TextFormat,
    TextParam,
)
from vivace.server.apis.server_calls import call_messages
from vivace.server.apis.server_tools import CUSTOM, FUNCTION, MCP, ToolOffer
from vivace.server.openai.schema import ChatRequest

RENAMED_FIELDS = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "response_format.json_schema.schema": "text.format.schema",
    "response_format.json_schema": "text.format",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
    "tool_choice.function": "tool_choice",
    "tool_choice.custom": "tool_choice",
    "tool_choice.allowed_tools": "tool_choice",
    "logprobs": "top_logprobs",
}
"""The chat path's name -> the name here."""
TOOL_FIELDS = {".format.grammar": ".format"}
SAME = (
    *("model", "temperature", "top_p", "parallel_tool_calls", "service_tier", "metadata", "user"),
    *("safety_identifier", "prompt_cache_key", "prompt_cache_retention", "top_k", "min_p", "stop"),
    *("frequency_penalty", "presence_penalty", "repetition_penalty", "chat_template_kwargs"),
    *("priority", "extra_key", "cache_salt", "routed_dp_rank", "data_parallel_rank"),
)
"""Fields that the chat path has by the same name."""
LOGPROBS = "message.output_text.logprobs"
CHOICES = ("auto", "none", "required")
NO_CHOICE = (
    f"must be one of {', '.join(CHOICES)}, a function, a custom tool or a tool of a server (mcp) "
    f"by its name, or {ALLOWED}"
)
AUTO, DISABLED = "auto", "disabled"
"""whether the oldest turns may be left out"""
ROLES = ("system", "developer", "user", "assistant")
FILE = "input_file"
TEXTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text")


# -- items -> messages -----------------------------------------------------------------------------


def read_input(
    params: ResponsesRequest, earlier: list[Message], offer: ToolOffer
) -> Work[ChatMessages]:
    """Instructions, then `earlier` messages, then those of the input."""
    found = ChatMessages(RENAMED_FIELDS, tool_places=offer.places, tool_fields=TOOL_FIELDS)
    if params.instructions is not None:
        found.add(Message(role="system", content=params.instructions), "instructions")
    for message in earlier:
        found.add(message, "previous_response_id")
    if isinstance(params.input, str):
        found.add(Message(role="user", content=params.input), "input")
        return found
    if not params.input:
        raise BadRequest("input", "must not be empty")
    for number, item in enumerate(params.input):
        yield from add_item(found, item, f"input[{number}]", offer)
        yield
    found.join_thoughts()
    return found


def add_item(found: ChatMessages, item: InputItem, place: str, offer: ToolOffer) -> Work[None]:
    """One item; what the assistant thought, said and called in a row is one message."""
    match item.type:
        case None | Item.MESSAGE:
            role = needed(item.role, f"{place}.role")
            if role not in ROLES:
                raise BadRequest(f"{place}.role", f"must be one of {', '.join(ROLES)}")
            yield from add_said(found, role, item, place)
        case Item.CALL:
            name = needed(item.name, f"{place}.name")
            call = FunctionCall(name=name, arguments=item.arguments)
            one = ToolCall(
                function=call, id=needed(item.call_id, f"{place}.call_id"), type="function"
            )
            found.add_call(one, place)
        case Item.CUSTOM_CALL:
            name = needed(item.name, f"{place}.name")
            called = CustomCall(name=name, input=needed(item.input, f"{place}.input"))
            identity = needed(item.call_id, f"{place}.call_id")
            found.add_call(ToolCall(custom=called, id=identity, type=CUSTOM), place)
        case Item.CALL_OUTPUT | Item.CUSTOM_OUTPUT:
            identity = needed(item.call_id, f"{place}.call_id")
            output = "\n".join((yield from texts(item.output, f"{place}.output")))
            found.add(Message(role="tool", content=output, tool_call_id=identity), place)
        case Item.REASONING:
            said = yield from texts(item.content or item.summary or "", f"{place}.content")
            thought = "\n".join(said)
            if thought:
                found.add_thought(thought, place)
        case Item.SERVER_CALL:
            add_server_call(found, item, place, offer)
        case Item.SERVER_TOOLS | Item.APPROVAL_REQUEST | Item.APPROVAL_RESPONSE:
            pass  # `server_calls` reads them
        case _:
            kind = abbreviate(item.type)
            raise BadRequest(f"{place}.type", f"{kind!r}: this server knows no such items")


def add_server_call(found: ChatMessages, item: InputItem, place: str, offer: ToolOffer) -> None:
    """A call that a tool server has made, and what came of it."""
    if isinstance(item.output, list):
        raise BadRequest(f"{place}.output", "must be a text")
    item.name = needed(item.name, f"{place}.name")
    call, result = call_messages(item, item.call_id or item.id or new_call_id(), offer)
    found.add_call(call, place)
    found.add(result, place)


def add_said(found: ChatMessages, role: str, item: InputItem, place: str) -> Work[None]:
    parts = yield from texts(item.content, f"{place}.content")
    if role == "assistant":
        for text in parts:
            found.add_text(role, text, place)
    elif len(parts) == 1:
        found.add(Message(role=role, content=parts[0]), place)
    else:
        content = [ContentPart(type="text", text=text) for text in parts]
        found.add(Message(role=role, content=content), place)


def texts(parts: str | list[ItemPart] | None, place: str) -> Work[list[str]]:
    """BadRequest for parts that are no text."""
    if parts is None:
        raise BadRequest(place, "is required")
    if isinstance(parts, str):
        return [parts]
    found: list[str] = []
    for index, part in enumerate(parts):
        if part.type == FILE:
            found.append((yield from read_file(part, f"{place}[{index}]")))
            continue
        if part.type not in TEXTS:
            raise refuse_part(part.type, f"{place}[{index}]", f"{FILE}, {', '.join(TEXTS)}")
        if part.text is None:
            raise BadRequest(f"{place}[{index}].text", NO_TEXT)
        found.append(part.text)
    return found


# -- everything else -------------------------------------------------------------------------------


def read_request(
    params: ResponsesRequest, found: ChatMessages, rid: str, offer: ToolOffer
) -> ChatRequest:
    """What /v1/responses asks of the chat path."""
    if params.truncation not in (None, AUTO, DISABLED):
        raise BadRequest("truncation", f"must be {AUTO} or {DISABLED}")
    text = params.text or TextParam()
    logprobs = bool(params.top_logprobs) or LOGPROBS in (params.include or ())
    stream = bool(params.stream)
    request = chat_request(
        {
            **{name: getattr(params, name) for name in SAME},
            "rid": rid,
            "stream": stream,
            "stream_options": {"include_usage": True} if stream else None,
            "max_completion_tokens": params.max_output_tokens,
            "logprobs": logprobs or None,
            "top_logprobs": params.top_logprobs if logprobs else None,
            "tools": offer.functions or None,
            "tool_choice": read_choice(params.tool_choice, offer),
            "reasoning_effort": (params.reasoning or ReasoningParam()).effort,
            "response_format": read_format(text.format),
            "verbosity": text.verbosity,
        }
    )
    request.messages = found.messages
    return request


def read_choice(choice: Any, offer: ToolOffer) -> Any:
    if isinstance(choice, dict):
        return read_choice_object(choice, offer)
    if choice is None or choice in CHOICES:
        return choice
    raise BadRequest("tool_choice", NO_CHOICE)


def read_choice_object(choice: dict[str, Any], offer: ToolOffer) -> dict[str, Any]:
    """One tool, or those that are allowed."""
    if choice.get("type") != ALLOWED:
        (one,) = chosen(choice, offer, "tool_choice", one=True)
        return one
    tools = choice.get("tools")
    if tools is None and ALLOWED in choice:
        raise BadRequest(f"tool_choice.{ALLOWED}", "mode and tools stand beside type here")
    if not isinstance(tools, list) or len(tools) > ENTRIES:
        raise BadRequest("tool_choice.tools", f"must be a list of at most {ENTRIES} tools")
    named: list[dict[str, Any]] = []
    for index, tool in enumerate(tools):
        named += chosen(tool, offer, f"tool_choice.tools[{index}]", one=False)
    return {"type": ALLOWED, ALLOWED: {"mode": choice.get("mode", "auto"), "tools": named}}


def chosen(tool: Any, offer: ToolOffer, place: str, *, one: bool) -> list[dict[str, Any]]:
    """A tool as the chat path names it, or all of a server unless it is `one`. BadRequest."""
    kind = tool.get("type") if isinstance(tool, dict) else None
    name = tool.get("name") if kind in (FUNCTION, CUSTOM, MCP) else None
    if kind in (FUNCTION, CUSTOM) and isinstance(name, str):
        return [{"type": kind, kind: {"name": name}}]
    if kind == MCP and (isinstance(name, str) or (name is None and not one)):
        names = offer.known_names(str(tool.get("server_label")), name)
        if not names:
            raise BadRequest(place, "names no tool of a server that tools have")
        return [{"type": FUNCTION, FUNCTION: {"name": known}} for known in names]
    raise BadRequest(place, NO_CHOICE)


def read_format(form: TextFormat | None) -> dict[str, Any] | None:
    if form is None:
        return None
    if form.type in ("text", "json_object"):
        return {"type": form.type}
    if form.type != "json_schema":
        raise BadRequest("text.format.type", "must be text, json_object or json_schema")
    if form.schema is None:
        raise BadRequest("text.format.schema", "is required")
    schema: dict[str, Any] = {
        "name": needed(form.name, "text.format.name"),
        "schema": form.schema,
    }
    for name in ("strict", "description"):
        if (value := getattr(form, name)) is not None:
            schema[name] = value
    return {"type": "json_schema", "json_schema": schema}


def begin_response(
    params: ResponsesRequest, rid: str, model: str, *, store: bool
) -> ResponseObject:
    """The answer before anything of it is there."""
    reasoning = params.reasoning or ReasoningParam()
    form = (params.text or TextParam()).format or TextFormat(type="text")
    return ResponseObject(
        id=rid,
        created_at=int(time.time()),
        model=model,
        status="in_progress",
        background=bool(params.background),
        instructions=params.instructions,
        max_output_tokens=params.max_output_tokens,
        max_tool_calls=params.max_tool_calls,
        metadata=params.metadata or {},
        parallel_tool_calls=params.parallel_tool_calls is not False,
        previous_response_id=params.previous_response_id,
        reasoning={"effort": reasoning.effort, "summary": reasoning.summary},
        service_tier="default" if params.service_tier else None,
        store=store,
        temperature=params.temperature,
        text={"format": without_none(form)},
        tool_choice="auto" if params.tool_choice is None else params.tool_choice,
        tools=[without_none(tool) for tool in params.tools or ()],
        top_logprobs=params.top_logprobs or 0,
        top_p=params.top_p,
        truncation=params.truncation or DISABLED,
        user=params.user,
        safety_identifier=params.safety_identifier,
        prompt_cache_key=params.prompt_cache_key,
        prompt_cache_retention=params.prompt_cache_retention,
    )


def without_none(value: msgspec.Struct) -> dict[str, Any]:
    found = msgspec.to_builtins(value)
    return {name: one for name, one in found.items() if one is not None}
