"""From a body of Anthropic's Messages API to a request of the chat path."""

from __future__ import annotations

import re
from typing import Any

from vivace.frontend.errors import BadRequest
from vivace.frontend.fairness import Work
from vivace.frontend.fields import NO_TEXT, abbreviate, is_set, refuse_part, refuse_unsupported
from vivace.requests.schema import FunctionCall, Message, ToolCall
from vivace.server.apis.anthropic_schema import (
    ANTHROPIC_REFUSED,
    ContentBlock,
    ContextEdit,
    ContextManagement,
    CountTokensRequest,
    DocumentSource,
    KeptThoughts,
    MessagesRequest,
    OutputConfig,
    ResultBlock,
    SystemBlock,
    ThinkingParam,
    ToolChoiceParam,
    ToolParam,
    Turn,
)
from vivace.server.apis.chat_messages import ChatMessages, needed
from vivace.server.apis.chat_run import chat_request, goes_on
from vivace.server.openai.schema import ChatRequest

RENAMED_FIELDS = {
    "stop": "stop_sequences",
    "response_format.json_schema.schema": "output_config.format.schema",
    "response_format.json_schema": "output_config.format",
    "response_format": "output_config.format",
    "reasoning_effort": "output_config.effort",
    "chat_template_kwargs": "thinking",
    "max_thinking_tokens": "thinking.budget_tokens",
    "tool_choice.function.name": "tool_choice.name",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
}
"""The chat path's name -> Anthropic's."""
CLEAR_THINKING = "clear_thinking_20251015"
BLOCKS = "text, document, tool_use, tool_result, thinking and redacted_thinking"
CHOICES = {"auto": "auto", "any": "required", "none": "none"}
CLIENT_TOOL = re.compile(r"(?:bash|text_editor|computer|memory)_\d+")
OF_CHATS = "name, description and input_schema stand in the tool itself here; leave type out"
OF_CLIENTS = (
    "only Anthropic's models know how it is called; leave type out, and describe it with name, "
    "description and input_schema"
)
OF_SERVERS = (
    "this server runs no tools of its own, nor asks MCP servers here; leave it out or offer a tool "
    "with name, description and input_schema (/v1/responses has those of --tool-server)"
)
THOUGHTS = {"enabled": True, "adaptive": True, "disabled": False}


def read_turns(params: CountTokensRequest) -> Work[ChatMessages]:
    """The messages of a body; BadRequest for parts that the served model cannot take."""
    refuse_unsupported(params, ANTHROPIC_REFUSED)
    found = ChatMessages(RENAMED_FIELDS, tool_fields={".parameters": ".input_schema"})
    add_system(found, params.system)
    for number, turn in enumerate(params.messages):
        yield from add_turn(found, turn, f"messages[{number}]")
        yield
    found.join_thoughts()
    management = params.context_management or ContextManagement()
    for index, edit in enumerate(management.edits or ()):
        clear_thoughts(found.messages, edit, f"context_management.edits[{index}]")
    return found


def clear_thoughts(messages: list[Message], edit: ContextEdit, place: str) -> None:
    """Leave out thoughts of past turns. A turn is all that the assistant says between two messages
    of the user, calls of tools included."""
    if edit.type != CLEAR_THINKING:
        kind = abbreviate(edit.type)
        reason = f"{kind!r}: only {CLEAR_THINKING} is done here; send what is to be read"
        raise BadRequest(f"{place}.type", reason)
    left = turns_with_thoughts(edit.keep, f"{place}.keep")
    if left is None:
        return
    thinks = False
    for message in reversed(messages):
        if message.role == "user":
            left -= thinks
            thinks = False
        elif message.reasoning_content:
            thinks = True
            message.reasoning_content = message.reasoning_content if left > 0 else None


def turns_with_thoughts(keep: str | KeptThoughts | None, place: str) -> int | None:
    """How many turns keep their thoughts; None: all."""
    match keep:
        case None:
            return 1
        case "all" | KeptThoughts(type="all"):
            return None
        case KeptThoughts(type="thinking_turns"):
            if keep.value is None or keep.value < 1:
                raise BadRequest(f"{place}.value", "must be 1 or more")
            return keep.value
        case _:
            raise BadRequest(place, "must be all, or thinking_turns with a value")


def add_system(found: ChatMessages, system: str | list[SystemBlock] | None) -> None:
    if isinstance(system, str):
        found.add_text("system", system, "system")
    for index, block in enumerate(system if isinstance(system, list) else ()):
        found.add_text("system", plain_text(block, f"system[{index}]"), "system")


def add_turn(found: ChatMessages, turn: Turn, place: str) -> Work[None]:
    if turn.role not in ("user", "assistant", "system"):
        raise BadRequest(f"{place}.role", "must be user or assistant")
    if isinstance(turn.content, str):
        found.add_text(turn.role, turn.content, place)
        return
    for index, block in enumerate(turn.content):
        add_block(found, turn.role, block, place, f"{place}.content[{index}]")
        yield


def add_block(found: ChatMessages, role: str, block: ContentBlock, turn: str, place: str) -> None:
    """One part of the turn at `turn`, which stands at `place`. Calls and thoughts are the
    assistant's, and what a tool returned has a role of its own."""
    match block.type:
        case "tool_result":
            identity = needed(block.tool_use_id, f"{place}.tool_use_id")
            text = result_text(block, place)
            found.add(Message(role="tool", content=text, tool_call_id=identity), turn)
        case "tool_use":
            name = needed(block.name, f"{place}.name")
            call = FunctionCall(name=name, arguments=block.input or {})
            one = ToolCall(function=call, id=needed(block.id, f"{place}.id"), type="function")
            found.add_call(one, turn, place)
        case "thinking":
            found.add_thought(needed(block.thinking, f"{place}.thinking"), turn)
        case "redacted_thinking":
            pass
        case "document":
            found.add_text(role, document_text(block, place), turn)
        case _:
            found.add_text(role, plain_text(block, place, BLOCKS), turn)


def plain_text(
    block: ContentBlock | ResultBlock | SystemBlock, place: str, known: str = "text"
) -> str:
    """BadRequest for a part that is no text. `known`: the types that may stand there."""
    if block.type != "text":
        raise refuse_part(block.type, place, known)
    if block.text is None:
        raise BadRequest(f"{place}.text", NO_TEXT)
    return block.text


def document_text(block: ContentBlock, place: str) -> str:
    """What is said of a document, and its text. BadRequest for one that is none."""
    if is_set(block.citations) and block.citations != {"enabled": False}:
        raise BadRequest(f"{place}.citations", "answers name no places; leave citations out")
    text = source_text(block.source, f"{place}.source")
    return "\n".join(one for one in (block.title, block.context, text) if one)


def source_text(source: str | DocumentSource | None, place: str) -> str:
    match source:
        case DocumentSource(type="text"):
            return needed(source.data, f"{place}.data")
        case DocumentSource(type="content", content=list(parts)):
            found = (plain_text(one, f"{place}.content[{i}]") for i, one in enumerate(parts))
            return "\n".join(found)
        case DocumentSource(type="content", content=str() | None as text):
            return needed(text, f"{place}.content")
        case _:
            reason = "must be text with data, or content: the served model takes text only"
            raise BadRequest(place, reason)


def result_text(block: ContentBlock, place: str) -> str:
    """What a tool returned; that it failed is told in words, since templates know no other way."""
    parts = block.content or ""
    if isinstance(parts, dict):
        raise BadRequest(f"{place}.content", "must be a text, or a list of parts of type text")
    if not isinstance(parts, str):
        texts = (plain_text(part, f"{place}.content[{i}]") for i, part in enumerate(parts))
        parts = "\n".join(texts)
    return f"Error: {parts}" if block.is_error else parts


# -- everything else -------------------------------------------------------------------------------


def read_request(params: MessagesRequest, found: ChatMessages, rid: str) -> ChatRequest:
    """What /v1/messages asks of the chat path."""
    stream = bool(params.stream)
    metadata = {key: value for key, value in (params.metadata or {}).items() if value is not None}
    request = with_shared_fields(
        params,
        found,
        max_tokens=params.max_tokens,
        stop=params.stop_sequences or None,
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k,
        metadata=metadata or None,
        rid=rid,
        stream=stream,
        stream_options={"include_usage": True} if stream else None,
    )
    request.continue_final_message = goes_on(found.messages)
    return request


def with_shared_fields(
    params: CountTokensRequest, found: ChatMessages, **fields: Any
) -> ChatRequest:
    """What decides the prompt, and more `fields` of the chat path."""
    output = params.output_config or OutputConfig()
    request = chat_request(
        {
            **fields,
            "model": params.model,
            "tools": [read_tool(tool, index) for index, tool in enumerate(params.tools or ())]
            or None,
            **read_choice(params.tool_choice),
            "chat_template_kwargs": read_thinking(params.thinking),
            "reasoning_effort": output.effort,
            "response_format": read_format(output),
        }
    )
    request.messages = found.messages
    return request


def read_tool(tool: ToolParam, index: int) -> dict[str, Any]:
    place = f"tools[{index}]"
    if tool.type not in (None, "custom"):
        reason = OF_CLIENTS if CLIENT_TOOL.fullmatch(tool.type) else OF_SERVERS
        reason = OF_CHATS if tool.type == "function" else reason
        raise BadRequest(f"{place}.type", f"{abbreviate(tool.type)!r}: {reason}")
    name = needed(tool.name, f"{place}.name")
    if tool.input_schema is None:
        raise BadRequest(f"{place}.input_schema", "is required")
    function: dict[str, Any] = {"name": name, "parameters": tool.input_schema}
    if tool.description is not None:
        function["description"] = tool.description
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def read_choice(choice: ToolChoiceParam | None) -> dict[str, Any]:
    if choice is None:
        return {}
    parallel = False if choice.disable_parallel_tool_use else None
    if choice.type == "tool":
        named = {"name": needed(choice.name, "tool_choice.name")}
        wanted: Any = {"type": "function", "function": named}
    elif choice.type in CHOICES:
        wanted = CHOICES[choice.type]
    else:
        raise BadRequest("tool_choice.type", f"must be tool or one of {', '.join(CHOICES)}")
    return {"tool_choice": wanted, "parallel_tool_calls": parallel}


def read_thinking(thinking: ThinkingParam | None) -> dict[str, Any] | None:
    """What templates call it: Qwen's `enable_thinking`, DeepSeek's `thinking`."""
    if thinking is None:
        return None
    if thinking.type not in THOUGHTS:
        raise BadRequest("thinking.type", f"must be one of {', '.join(THOUGHTS)}")
    if thinking.display not in (None, "summarized", "omitted"):
        raise BadRequest("thinking.display", "must be summarized or omitted")
    wanted = THOUGHTS[thinking.type]
    return {"enable_thinking": wanted, "thinking": wanted}


def thinking_budget(params: MessagesRequest) -> int | None:
    """Tokens that the model may think, where it is known how it does."""
    thinking = params.thinking
    return thinking.budget_tokens if thinking and THOUGHTS.get(thinking.type) else None


def read_format(output: OutputConfig) -> dict[str, Any] | None:
    form = output.format
    if form is None or form.type == "text":
        return None
    if form.type != "json_schema":
        raise BadRequest("output_config.format.type", "must be json_schema")
    if form.schema is None:
        raise BadRequest("output_config.format.schema", "is required")
    schema = {"name": "output", "schema": form.schema, "strict": True}
    return {"type": "json_schema", "json_schema": schema}


def shows_thoughts(params: MessagesRequest) -> bool:
    return params.thinking is None or params.thinking.display != "omitted"
