"""From bodies of Ollama's API to requests of the chat path and of text completions."""

from __future__ import annotations

from typing import Any

from vivace.frontend.errors import BadRequest
from vivace.frontend.fairness import Work
from vivace.frontend.fields import PLAIN_TEXT, abbreviate, refuse_unsupported
from vivace.requests.schema import TEXT_ONLY, FunctionCall, Message, ToolCall
from vivace.requests.tools import FUNCTION
from vivace.server.apis.chat_run import chat_request, completion_request, renamed
from vivace.server.apis.ollama_schema import (
    OPTIONS_HARMLESS,
    OPTIONS_REFUSED,
    OllamaChatRequest,
    OllamaFields,
    OllamaGenerateRequest,
    OllamaMessage,
    OllamaOptions,
)
from vivace.server.openai.schema import ChatRequest, CompletionRequest

SAMPLING = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "seed": "seed",
    "stop": "stop",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "repetition_penalty": "repeat_penalty",
    "max_tokens": "num_predict",
}
"""The chat path's name -> the option's."""
RENAMED_FIELDS = {
    **{name: f"options.{option}" for name, option in SAMPLING.items()},
    "response_format.json_schema.schema": "format",
    "response_format.json_schema": "format",
    "response_format": "format",
    "reasoning_effort": "think",
    "chat_template_kwargs": "think",
}
EFFORTS = ("low", "medium", "high", "xhigh", "max")
LATEST = ":latest"


def rename_chat(name: str) -> str:
    """The field of /api/chat that the chat path knows by another name."""
    return renamed(name, RENAMED_FIELDS)


def rename_generate(name: str) -> str:
    """The same of /api/generate, whose prompt is the only message."""
    return "prompt" if name.startswith("messages") else rename_chat(name)


def plain_name(model: str) -> str:
    """A model's name without the tag that Ollama's clients add where nobody gave one."""
    return model.removesuffix(LATEST)


def read_chat(params: OllamaChatRequest, rid: str) -> ChatRequest:
    """What /api/chat asks of the chat path, without its messages (`read_messages`)."""
    for number, tool in enumerate(params.tools or ()):
        if isinstance(tool, dict) and tool.get("type", FUNCTION) != FUNCTION:
            raise BadRequest(f"tools[{number}].type", f"must be {FUNCTION}")
    return chat_request(
        {**shared_fields(params, rid), **thinking_fields(params), "tools": params.tools or None}
    )


def read_messages(messages: list[OllamaMessage]) -> Work[list[Message]]:
    found: list[Message] = []
    for number, message in enumerate(messages):
        if message.images:
            raise BadRequest(f"messages[{number}].images", TEXT_ONLY)
        calls = [
            ToolCall(
                type="function",
                function=FunctionCall(
                    name=call.function.name, arguments=call.function.arguments or {}
                ),
            )
            for call in message.tool_calls or ()
        ]
        found.append(
            Message(
                role=message.role,
                content=message.content,
                name=message.tool_name,
                tool_call_id=message.tool_call_id,
                tool_calls=calls or None,
                reasoning_content=message.thinking,
            )
        )
        yield
    return found


def read_prompt(params: OllamaGenerateRequest, rid: str) -> ChatRequest:
    """What /api/generate asks of the chat path: a conversation of the prompt alone."""
    request = chat_request({**shared_fields(params, rid), **thinking_fields(params)})
    if params.system:
        request.messages.append(Message(role="system", content=params.system))
    request.messages.append(Message(role="user", content=params.prompt))
    return request


RAW_REFUSED: dict[str, str] = dict.fromkeys(
    ("system", "think", "logprobs"),
    "goes with a chat template, which raw prompts and those with a suffix do without",
)


def read_raw(params: OllamaGenerateRequest, rid: str) -> CompletionRequest:
    """What /api/generate asks of text completions: the prompt as it stands, or what is missing
    between it and the suffix."""
    refuse_unsupported(params, RAW_REFUSED)
    fields = {"prompt": params.prompt or "", "suffix": params.suffix}
    return completion_request({**shared_fields(params, rid), **fields})


def shared_fields(params: OllamaFields, rid: str) -> dict[str, Any]:
    stream = params.stream is not False
    return {
        "model": plain_name(params.model),
        "rid": rid,
        "stream": stream,
        "stream_options": {"include_usage": True} if stream else None,
        "response_format": read_format(params.format),
        **sampling_fields(params.options or OllamaOptions()),
    }


def sampling_fields(options: OllamaOptions) -> dict[str, Any]:
    refuse_unsupported(options, OPTIONS_REFUSED, OPTIONS_HARMLESS, place="options.")
    if options.penalize_newline is False:
        reason = "penalties look at every token; remove the option"
        raise BadRequest("options.penalize_newline", reason)
    found = {name: getattr(options, option) for name, option in SAMPLING.items()}
    if options.repeat_last_n == 0 and options.repeat_penalty is not None:
        found["repetition_penalty"] = 1.0  # it looks at nothing
    if found["max_tokens"] in (-1, -2):
        found["max_tokens"] = None
    return found


def thinking_fields(params: OllamaFields) -> dict[str, Any]:
    """What only the chat path has."""
    found: dict[str, Any] = {"logprobs": params.logprobs, "top_logprobs": params.top_logprobs}
    think = params.think
    if isinstance(think, str):
        if think not in EFFORTS:
            raise BadRequest("think", f"must be true, false or one of {', '.join(EFFORTS)}")
        found["reasoning_effort"] = think
    if think is not None:
        wanted = think is not False
        found["chat_template_kwargs"] = {"enable_thinking": wanted, "thinking": wanted}
    return found


def read_format(form: str | dict[str, Any] | None) -> dict[str, Any] | None:
    if not form or form == PLAIN_TEXT:
        return None
    if form == "json":
        return {"type": "json_object"}
    if isinstance(form, str):
        raise BadRequest("format", f"{abbreviate(form)!r}: must be json, or a JSON schema")
    schema = {"name": "format", "schema": form, "strict": True}
    return {"type": "json_schema", "json_schema": schema}
