"""Bodies and answers of Anthropic's Messages API. Unknown fields are accepted, known ones typed."""

from __future__ import annotations

from typing import Any

import msgspec

from vivace.protocol.constraints import CONSTRAINTS
from vivace.requests.limits import Entries, Members, Messages, Parts
from vivace.requests.schema import OTHER_CONSTRAINTS
from vivace.server.openai.schema import DEFAULT_MODEL


class ResultBlock(msgspec.Struct, kw_only=True):
    """A part of what a tool returned; only `type: text` is served."""

    type: str
    text: str | None = None


class DocumentSource(msgspec.Struct, kw_only=True):
    """`text`, with `data`; or `content`, with text or parts."""

    type: str
    data: str | None = None
    content: str | Parts[ResultBlock] | None = None
    media_type: str | None = None
    """Any value: texts are plain."""


class ContentBlock(msgspec.Struct, kw_only=True):
    """A part of a turn: text, tool_use, tool_result, thinking or redacted_thinking, or a document
    that is text."""

    type: str
    text: str | None = None
    id: str | None = None
    name: str | None = None
    input: Members[Any] | None = None
    tool_use_id: str | None = None
    content: str | Parts[ResultBlock] | Members[Any] | None = None
    """An object only in results of Anthropic's own tools, which are refused."""
    is_error: bool | None = None
    thinking: str | None = None
    signature: str | None = None
    """Nobody checks it: whoever sends thoughts back has them from here."""
    data: str | None = None
    """Of redacted_thinking, which only Anthropic can read; such a block is left out."""
    source: str | DocumentSource | None = None
    """Of a document."""
    title: str | None = None
    context: str | None = None
    """What a document is, for the model."""
    citations: Any = None
    """Of a document refused when they are enabled; of past texts any value."""
    cache_control: Any = None
    """Any value: prefixes are cached without being asked."""


class Turn(msgspec.Struct, kw_only=True):
    """One turn of a conversation: of the user or the assistant."""

    role: str
    content: str | Parts[ContentBlock]


class SystemBlock(msgspec.Struct, kw_only=True):
    type: str
    text: str | None = None
    cache_control: Any = None


class ToolParam(msgspec.Struct, kw_only=True):
    """A function that the model may ask to be called."""

    name: str | None = None
    """Required, but for tools of types that are refused."""
    input_schema: Members[Any] | None = None
    description: str | None = None
    type: str | None = None
    strict: bool | None = None
    cache_control: Any = None


class ToolChoiceParam(msgspec.Struct, kw_only=True):
    """auto, any, none, or tool with a `name`."""

    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingParam(msgspec.Struct, kw_only=True):
    """enabled, adaptive or disabled; `display: omitted` leaves thoughts out of the answer."""

    type: str
    budget_tokens: int | None = None
    display: str | None = None


class OutputFormat(msgspec.Struct, kw_only=True):
    type: str
    schema: Members[Any] | None = None


class OutputConfig(msgspec.Struct, kw_only=True):
    effort: str | None = None
    format: OutputFormat | None = None


class KeptThoughts(msgspec.Struct, kw_only=True):
    """`all`, or `thinking_turns`: those of the last `value` turns."""

    type: str
    value: int | None = None


class ContextEdit(msgspec.Struct, kw_only=True):
    """`clear_thinking_20251015`: thoughts of past turns are left out, but for those of the last
    one, or as `keep` says."""

    type: str
    keep: str | KeptThoughts | None = None


class ContextManagement(msgspec.Struct, kw_only=True):
    edits: Entries[ContextEdit] | None = None


class CountTokensRequest(msgspec.Struct, kw_only=True):
    """POST /v1/messages/count_tokens, and what /v1/messages has of the same."""

    messages: Messages[Turn]
    model: str = DEFAULT_MODEL
    system: str | Parts[SystemBlock] | None = None
    tools: Entries[ToolParam] | None = None
    tool_choice: ToolChoiceParam | None = None
    thinking: ThinkingParam | None = None
    output_config: OutputConfig | None = None
    context_management: ContextManagement | None = None
    cache_control: Any = None
    # Refused with a reason when set (ANTHROPIC_REFUSED).
    output_format: Any = None
    response_format: Any = None
    regex: Any = None
    ebnf: Any = None
    json_schema: Any = None
    structural_tag: Any = None
    mcp_servers: Any = None
    container: Any = None
    prefill: Any = None
    thread: Any = None
    compaction: Any = None


class MessagesRequest(CountTokensRequest, kw_only=True):
    """POST /v1/messages."""

    max_tokens: int
    stop_sequences: Entries[str] | None = None
    stream: bool | None = False
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    metadata: Members[str | None] | None = None
    """For the request log."""
    service_tier: str | None = None
    """Any value: there is one tier, "standard"."""


ANTHROPIC_REFUSED: dict[str, str] = {
    **dict.fromkeys(
        ("output_format", "response_format", *CONSTRAINTS),
        f"send a schema as output_config.format; {OTHER_CONSTRAINTS}",
    ),
    "mcp_servers": "this server calls no tools; call them, and send tool_result",
    "container": "this server runs no code; remove the field",
    "prefill": "end messages with a turn of the assistant instead; the answer goes on with it",
    "thread": "this server keeps no conversations here; send the whole one, without this field",
    "compaction": "this server sums up no conversations; send a message that asks for a summary",
}


class MessageUsage(msgspec.Struct, kw_only=True):
    """`input_tokens` without those that the prefix cache had, which are told with
    --enable-cache-report."""

    input_tokens: int
    output_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0
    service_tier: str = "standard"


class AnswerBlock(msgspec.Struct, kw_only=True, omit_defaults=True):
    """text, thinking or tool_use, each with its own fields."""

    type: str
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    id: str | None = None
    name: str | None = None
    input: msgspec.Raw | None = None
    """An object"""


class MessageAnswer(msgspec.Struct, kw_only=True):
    """Answer of /v1/messages."""

    id: str
    model: str
    content: list[AnswerBlock]
    stop_reason: str | None
    stop_sequence: str | None
    usage: MessageUsage
    type: str = "message"
    role: str = "assistant"


class MessageEvent(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Data of each event of a stream; its `event:` line says `type` too."""

    type: str
    message: MessageAnswer | None = None
    index: int | None = None
    content_block: AnswerBlock | None = None
    delta: dict[str, Any] | None = None
    usage: MessageUsage | None = None


class TokenCount(msgspec.Struct, kw_only=True):
    """Answer of /v1/messages/count_tokens."""

    input_tokens: int
