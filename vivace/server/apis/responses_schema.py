"""Bodies and answers of OpenAI's Responses API. Unknown fields are accepted, known ones typed."""

from __future__ import annotations

from typing import Any

import msgspec

from vivace.protocol.constraints import CONSTRAINTS
from vivace.requests.limits import Entries, Members, Messages, Parts, PerPrompt
from vivace.requests.schema import NO_SESSIONS, OTHER_CONSTRAINTS
from vivace.server.openai.schema import CHAT_REFUSED, DEFAULT_MODEL


class ItemPart(msgspec.Struct, kw_only=True):
    """A part of an item: input_text, output_text, reasoning_text or summary_text; or input_file,
    whose `file_data` is a text in base64, also as a `data:` URL."""

    type: str
    text: str | None = None
    file_data: str | None = None
    filename: str | None = None
    # Refused with a reason when set (`input_files`).
    file_id: Any = None
    file_url: Any = None
    detail: Any = None
    """Any value: how closely to look at pictures of pages."""
    annotations: Any = None
    """Of a past answer; this server makes none."""
    logprobs: Any = None
    """Of a past answer."""


class InputItem(msgspec.Struct, kw_only=True):
    """A message (also without `type`), function_call, function_call_output, custom_tool_call,
    custom_tool_call_output or reasoning; an mcp_approval_response; those of past answers as they
    came, or an item_reference with the `id` of one that is stored."""

    type: str | None = None
    role: str | None = None
    content: str | Parts[ItemPart] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    input: str | None = None
    """Of a custom_tool_call."""
    output: str | Parts[ItemPart] | None = None
    summary: Parts[ItemPart] | None = None
    """Of reasoning without content."""
    id: str | None = None
    """Of a reference; of others any value: items are told apart by their place."""
    status: str | None = None
    """Any value: what has come is complete."""
    encrypted_content: Any = None
    """Any value: it comes with content or summary, or nobody here can read it."""
    server_label: str | None = None
    """Of a call that a tool server has made, or is to make."""
    error: str | None = None
    """Of such a call, in the place of `output`."""
    approval_request_id: str | None = None
    approve: bool | None = None
    reason: str | None = None
    """Why it is not approved: for the model."""
    tools: Any = None
    """Of mcp_list_tools: it says that the client knows them."""


class ToolFilter(msgspec.Struct, kw_only=True):
    """Tools by their names, or those that only read, as their server says; both: those that are
    both. An empty one is none."""

    tool_names: Entries[str] | None = None
    read_only: bool | None = None


class ToolApproval(msgspec.Struct, kw_only=True):
    """Which calls the client is asked about: all but those of `never`."""

    always: ToolFilter | None = None
    """These are, whatever `never` says."""
    never: ToolFilter | None = None


class InputFormat(msgspec.Struct, kw_only=True):
    """Of the input of a custom tool: text, or grammar with its `syntax`, lark or regex."""

    type: str
    syntax: str | None = None
    definition: str | None = None


class ResponseTool(msgspec.Struct, kw_only=True):
    """A function that the model may ask to be called; `custom`: one whose input is text; or `mcp`:
    those of a tool server that was named at the start, by its `server_label`."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: Members[Any] | None = None
    strict: bool | None = None
    format: InputFormat | None = None
    server_label: str | None = None
    allowed_tools: Entries[str] | ToolFilter | None = None
    require_approval: str | ToolApproval | None = None
    server_description: str | None = None
    """Any value: the tools have descriptions of their own."""
    allowed_callers: Any = None
    """Any value: the model is the only caller."""
    defer_loading: bool | None = None
    """Any value: tools are always listed."""
    # Refused with a reason when set (PEERS).
    server_url: Any = None
    connector_id: Any = None
    tunnel_id: Any = None
    authorization: Any = None
    headers: Any = None


class ReasoningParam(msgspec.Struct, kw_only=True):
    effort: str | None = None
    summary: str | None = None
    """Any value: reasoning comes whole."""
    generate_summary: str | None = None
    """Older name of `summary`."""


class TextFormat(msgspec.Struct, kw_only=True):
    """text, json_object, or json_schema with `name` and `schema`."""

    type: str
    name: str | None = None
    schema: Members[Any] | None = None
    strict: bool | None = None
    description: str | None = None


class TextParam(msgspec.Struct, kw_only=True):
    format: TextFormat | None = None
    verbosity: str | None = None
    """For the request log."""


class ResponsesRequest(msgspec.Struct, kw_only=True):
    """POST /v1/responses."""

    input: str | Messages[InputItem]
    model: str = DEFAULT_MODEL
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = True
    background: bool | None = False
    stream: bool | None = False
    stream_options: Any = None
    """Any value: padding of events on OpenAI's side of the network."""
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int | None = None
    include: Entries[str] | None = None
    """message.output_text.logprobs; others are about tools that this server has not."""
    tools: Entries[ResponseTool] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: int | None = None
    """Of tool servers; functions of the client are not counted."""
    reasoning: ReasoningParam | None = None
    text: TextParam | None = None
    truncation: str | None = None
    service_tier: str | None = None
    # For the request log, and in the answer.
    metadata: Members[str] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    # SGLang's extensions
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    stop: str | Entries[str] | None = None
    chat_template_kwargs: Members[Any] | None = None
    priority: int | None = None
    extra_key: str | PerPrompt[str] | None = None
    cache_salt: str | PerPrompt[str] | None = None
    routed_dp_rank: int | None = None
    data_parallel_rank: int | None = None
    # Refused with a reason when set (RESPONSES_REFUSED).
    response_format: Any = None
    regex: Any = None
    ebnf: Any = None
    json_schema: Any = None
    structural_tag: Any = None
    messages: Any = None
    max_tokens: Any = None
    session_id: Any = None
    conversation: Any = None
    prompt: Any = None
    context_management: Any = None
    moderation: Any = None


ONLY_NAMED = (
    "only tool servers that were named at the start (--tool-server) are asked; name one by its "
    "server_label"
)
PEERS: dict[str, str] = dict.fromkeys(
    ("server_url", "connector_id", "tunnel_id", "authorization", "headers"), ONLY_NAMED
)
"""Fields of a tool that would choose whom this server speaks with, or as whom."""
RESPONSES_REFUSED: dict[str, str] = {
    **dict.fromkeys(
        ("response_format", *CONSTRAINTS), f"use text, with a format in it; {OTHER_CONSTRAINTS}"
    ),
    "messages": "use input, which takes messages, too",
    "max_tokens": "use max_output_tokens",
    "session_id": NO_SESSIONS,
    "conversation": "use previous_response_id, or send all items as input",
    "prompt": "this server stores no prompts; send instructions and input",
    "context_management": "this server edits no conversations; send what is to be read",
    "moderation": CHAT_REFUSED["moderation"],
}


class OutputPart(msgspec.Struct, kw_only=True, omit_defaults=True):
    """output_text, or reasoning_text, which has neither annotations nor log-probabilities."""

    type: str
    text: str
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None


class ListedTool(msgspec.Struct, kw_only=True):
    """A tool of a server."""

    name: str
    input_schema: dict[str, Any]
    description: str | None = None
    annotations: dict[str, Any] | None = None


class OutputItem(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A message, reasoning, function_call or custom_tool_call, each with its own fields;
    mcp_list_tools, mcp_call or mcp_approval_request."""

    id: str
    type: str
    status: str | None = None
    role: str | None = None
    content: list[OutputPart] | None = None
    summary: list[Any] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    input: str | None = None
    server_label: str | None = None
    tools: list[ListedTool] | None = None
    approval_request_id: str | None = None
    output: str | None = None
    error: str | None = None


class CachedInput(msgspec.Struct, kw_only=True):
    cached_tokens: int
    cache_write_tokens: int = 0


class ReasoningOutput(msgspec.Struct, kw_only=True):
    reasoning_tokens: int


class ResponseUsage(msgspec.Struct, kw_only=True):
    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: CachedInput
    output_tokens_details: ReasoningOutput


class ResponseError(msgspec.Struct, frozen=True, kw_only=True):
    code: str
    message: str


class IncompleteDetails(msgspec.Struct, kw_only=True):
    reason: str


class ResponseObject(msgspec.Struct, kw_only=True):
    """Answer of /v1/responses. What was asked stands in it as it came."""

    id: str
    created_at: int
    model: str
    status: str
    background: bool
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str] | None
    parallel_tool_calls: bool
    previous_response_id: str | None
    reasoning: dict[str, Any]
    service_tier: str | None
    store: bool
    temperature: float | None
    text: dict[str, Any]
    tool_choice: Any
    tools: list[Any]
    top_logprobs: int
    top_p: float | None
    truncation: str
    user: str | None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    object: str = "response"
    output: list[OutputItem] = []
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    usage: ResponseUsage | None = None
    completed_at: int | None = None


class ResponseEvent(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Data of each event of a stream; its `event:` line says `type` too."""

    type: str
    sequence_number: int
    response: ResponseObject | None = None
    output_index: int | None = None
    item: OutputItem | None = None
    item_id: str | None = None
    content_index: int | None = None
    part: OutputPart | None = None
    delta: str | None = None
    text: str | None = None
    name: str | None = None
    arguments: str | None = None
    input: str | None = None
    logprobs: list[Any] | None = None


class DeletedResponse(msgspec.Struct, kw_only=True):
    """Answer of DELETE /v1/responses/{response_id}."""

    id: str
    object: str = "response"
    deleted: bool = True


class InputTokens(msgspec.Struct, kw_only=True):
    """Answer of /v1/responses/input_tokens."""

    input_tokens: int
    object: str = "response.input_tokens"
