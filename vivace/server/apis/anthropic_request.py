"""From a body of Anthropic's Messages API to a request of the chat path."""

from __future__ import annotations

from typing import Any

from vivace.frontend.errors import BadRequest
from vivace.frontend.fairness import Work
from vivace.frontend.fields import NO_TEXT, abbreviate, refuse_unsupported
from vivace.requests.schema import FunctionCall, Message, ToolCall
from vivace.server.apis.anthropic_schema import (
    ANTHROPIC_REFUSED,
    ContentBlock,
    CountTokensRequest,
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
CHOICES = {"auto": "auto", "any": "required", "none": "none"}
THOUGHTS = {"enabled": True, "adaptive": True, "disabled": False}


def read_turns(params: CountTokensRequest) -> Work[ChatMessages]:
    """The messages of a body; BadRequest for parts that the served model cannot take."""
    found = ChatMessages(RENAMED_FIELDS, tool_fields={".parameters": ".input_schema"})
    add_system(found, params.system)
    for number, turn in enumerate(params.messages):
        yield from add_turn(found, turn, f"messages[{number}]")
        yield
    return found


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
            message = found.message("assistant", turn)
            one = ToolCall(function=call, id=needed(block.id, f"{place}.id"), type="function")
            message.tool_calls = [*(message.tool_calls or ()), one]
        case "thinking":
            message = found.message("assistant", turn)
            thought = needed(block.thinking, f"{place}.thinking")
            message.reasoning_content = (message.reasoning_content or "") + thought
        case "redacted_thinking":
            pass
        case _:
            found.add_text(role, plain_text(block, place), turn)


def plain_text(block: ContentBlock | ResultBlock | SystemBlock, place: str) -> str:
    """BadRequest for a part that is no text."""
    if block.type != "text":
        kind = abbreviate(block.type)
        raise BadRequest(place, f"part of type {kind!r}: the served model takes text only")
    if block.text is None:
        raise BadRequest(f"{place}.text", NO_TEXT)
    return block.text


def result_text(block: ContentBlock, place: str) -> str:
    """What a tool returned; that it failed is told in words, since templates know no other way."""
    parts = block.content or ""
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
        stream_options={"include_usage": True, "continuous_usage_stats": True} if stream else None,
    )
    request.continue_final_message = goes_on(found.messages)
    return request


def with_shared_fields(
    params: CountTokensRequest, found: ChatMessages, **fields: Any
) -> ChatRequest:
    """What decides the prompt, and more `fields` of the chat path."""
    refuse_unsupported(params, ANTHROPIC_REFUSED)
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
        kind = abbreviate(tool.type)
        raise BadRequest(f"{place}.type", f"{kind!r}: this server runs no tools of its own")
    if tool.input_schema is None:
        raise BadRequest(f"{place}.input_schema", "is required")
    function: dict[str, Any] = {"name": tool.name, "parameters": tool.input_schema}
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
    if form is None:
        return None
    if form.type != "json_schema":
        raise BadRequest("output_config.format.type", "must be json_schema")
    if form.schema is None:
        raise BadRequest("output_config.format.schema", "is required")
    schema = {"name": "output", "schema": form.schema, "strict": True}
    return {"type": "json_schema", "json_schema": schema}


def shows_thoughts(params: MessagesRequest) -> bool:
    return params.thinking is None or params.thinking.display != "omitted"
