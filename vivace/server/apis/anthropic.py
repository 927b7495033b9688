"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's Messages API."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from typing import Any

import msgspec
from aiohttp import web

from vivace.frontend.errors import CONTEXT_EXCEEDED
from vivace.frontend.tokenizer_pool import text_named
from vivace.requests.tools import offered_tools
from vivace.server.apis.anthropic_request import (
    read_request,
    read_turns,
    shows_thoughts,
    thinking_budget,
    with_shared_fields,
)
from vivace.server.apis.anthropic_schema import (
    AnswerBlock,
    CountTokensRequest,
    MessageAnswer,
    MessageEvent,
    MessagesRequest,
    MessageUsage,
    TokenCount,
)
from vivace.server.apis.chat_run import (
    ABORTED_ANSWER,
    ChatResult,
    ResultCall,
    ResultChoice,
    ResultMessage,
    ResultUsage,
    call_arguments,
    complete,
    own_names,
    read_events,
    run,
)
from vivace.server.body import Body, BodyReader
from vivace.server.context import Context
from vivace.server.event_bytes import named_event
from vivace.server.openai import chat
from vivace.server.responses import json_response, message_text
from vivace.server.sse import StreamForm

MESSAGES = BodyReader(MessagesRequest)
COUNT = BodyReader(CountTokensRequest)

STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
NO_INPUT = msgspec.Raw(b"{}")
TOO_LONG = "prompt is too long"
"""Anthropic's words, by which clients know that they have to shorten a conversation"""
NO_THREADS = {"error_code": "thread_unsupported_request"}
"""by which its tool runner knows that it has to send whole conversations"""


async def messages(context: Context, http: web.Request, body: Body) -> web.StreamResponse:
    """Answer a conversation."""
    arrival = time.monotonic()
    params = await MESSAGES.read(context, body)
    found = await context.slicer.run(read_turns(params))
    with own_names(found.rename):
        request = read_request(params, found, f"msg_{secrets.token_hex(12)}")
        if context.syntax.form.thinking is not None:
            request.max_thinking_tokens = thinking_budget(params)
        thoughts = shows_thoughts(params)
        if request.stream:
            events = MessageEvents(thoughts)
            form = StreamForm(
                headers={},
                convert=events.convert,
                failure=failure,
                ping=ping(),
                first_usage=True,
            )
            return await run(context, http, body, request, arrival, form)
        result = await complete(context, http, body, request, arrival)
    return json_response(whole_answer(result, thoughts))


async def count_tokens(context: Context, _http: web.Request, body: Body) -> web.Response:
    """How many tokens a conversation has as a prompt."""
    params = await COUNT.read(context, body)
    found = await context.slicer.run(read_turns(params))
    with own_names(found.rename):
        request = with_shared_fields(params, found)
        chat.check(context, request)
        offered = offered_tools(request)
        text = await chat.chat_text(context, request.messages, request, offered)
        with text_named("messages"):
            tokens = await context.frontend.encode(text, add_special_tokens=False)
    return json_response(TokenCount(input_tokens=len(tokens)))


# -- answers ---------------------------------------------------------------------------------------


def whole_answer(result: ChatResult, thoughts: bool) -> MessageAnswer:
    choice = result.choices[0]
    reason, sequence = stop_reason(choice)
    return MessageAnswer(
        id=result.id,
        model=result.model,
        content=list(blocks(choice.message or ResultMessage(), thoughts)),
        stop_reason=reason,
        stop_sequence=sequence,
        usage=message_usage(result.usage),
    )


def blocks(message: ResultMessage, thoughts: bool) -> Iterator[AnswerBlock]:
    if message.reasoning_content and thoughts:
        yield AnswerBlock(type="thinking", thinking=message.reasoning_content, signature="")
    if message.content:
        yield AnswerBlock(type="text", text=message.content)
    for call in message.tool_calls or ():
        yield call_block(call)


def call_block(call: ResultCall) -> AnswerBlock:
    name, found = call.function.name or "", call_arguments(call.function.arguments or "")
    return AnswerBlock(type="tool_use", id=call.id or new_call_id(), name=name, input=found)


def new_call_id() -> str:
    return f"toolu_{secrets.token_hex(12)}"


def stop_reason(choice: ResultChoice) -> tuple[str | None, str | None]:
    """(Anthropic's reason, the sequence that ended the answer if one did)"""
    if choice.finish_reason == "stop" and isinstance(choice.matched_stop, str):
        return "stop_sequence", choice.matched_stop
    return STOP_REASONS.get(choice.finish_reason or "", "end_turn"), None


def message_usage(usage: ResultUsage | None) -> MessageUsage:
    counts = usage or ResultUsage()
    return MessageUsage(
        input_tokens=counts.prompt_tokens - counts.cached,
        output_tokens=counts.output,
        cache_read_input_tokens=counts.cached,
    )


def anthropic_error(
    status: int, message: str, *, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """The body of an error answer. `param` is named by the message already."""
    kind = KINDS.get(status, "api_error" if status >= 500 else "invalid_request_error")
    text = f"{TOO_LONG}: {message}" if code == CONTEXT_EXCEEDED else message
    error: dict[str, Any] = {"type": kind, "message": message_text(text)}
    if param == "thread":
        error["details"] = NO_THREADS
    return {"type": "error", "error": error}


# -- streams ---------------------------------------------------------------------------------------


def event(kind: str, data: Any) -> bytes:
    return named_event(kind, msgspec.json.encode(data))


def error_event(status: int, message: str) -> bytes:
    return event("error", anthropic_error(status, message))


def ping() -> bytes:
    """Says that the stream is alive."""
    return event("ping", MessageEvent(type="ping"))


def failure() -> bytes:
    """The end of a stream that an error of ours ends."""
    return error_event(500, "internal error")


class MessageEvents:
    """Turns the events of one chat stream into Anthropic's.

    A message has blocks, one after the other: `_kind` is that of the open one, None before the
    first; `_index` its number. `_call` is the number of the tool call that it stands for.
    """

    def __init__(self, thoughts: bool = True) -> None:
        self._thoughts = thoughts
        self._begun = False
        self._failed = False
        self._index = -1
        self._kind: str | None = None
        self._call: int | None = None
        self._choice = ResultChoice()
        self._usage: ResultUsage | None = None

    def convert(self, data: bytes) -> bytes:
        """Anthropic's events for complete ones of the chat path."""
        return b"".join(part for result in read_events(data) for part in self._parts(result))

    def _parts(self, result: ChatResult | None) -> Iterator[bytes]:
        if self._failed:
            return
        if result is None:
            yield from self._end()
            return
        if result.error is not None:
            self._failed = True
            yield error_event(result.code or 500, result.error.message)
            return
        self._usage = result.usage or self._usage
        if not self._begun:
            yield from self._begin(result)
        for choice in result.choices:
            if choice.finish_reason is not None:
                self._choice = choice
            yield from self._news(choice.delta or ResultMessage())

    def _begin(self, result: ChatResult) -> Iterator[bytes]:
        self._begun = True
        usage = message_usage(self._usage)
        usage.output_tokens = 0
        message = MessageAnswer(
            id=result.id,
            model=result.model,
            content=[],
            stop_reason=None,
            stop_sequence=None,
            usage=usage,
        )
        yield event("message_start", MessageEvent(type="message_start", message=message))
        yield ping()

    def _news(self, delta: ResultMessage) -> Iterator[bytes]:
        if delta.reasoning_content and self._thoughts:
            yield from self._open(AnswerBlock(type="thinking", thinking="", signature=""))
            yield self._delta("thinking_delta", "thinking", delta.reasoning_content)
        if delta.content:
            yield from self._open(AnswerBlock(type="text", text=""))
            yield self._delta("text_delta", "text", delta.content)
        for call in delta.tool_calls or ():
            number = call.index or 0
            if self._kind != "tool_use" or number != self._call:
                self._call = number
                name, identity = call.function.name or "", call.id or new_call_id()
                block = AnswerBlock(type="tool_use", id=identity, name=name, input=NO_INPUT)
                yield from self._open(block, again=True)
            if call.function.arguments:
                yield self._delta("input_json_delta", "partial_json", call.function.arguments)

    def _open(self, block: AnswerBlock, *, again: bool = False) -> Iterator[bytes]:
        """Begin a block, unless one of its type is open and `again` does not ask for a new one."""
        if self._kind == block.type and not again:
            return
        yield from self._close()
        self._kind = block.type
        self._index += 1
        begin = MessageEvent(type="content_block_start", index=self._index, content_block=block)
        yield event("content_block_start", begin)

    def _delta(self, kind: str, field: str, text: str) -> bytes:
        delta = {"type": kind, field: text}
        news = MessageEvent(type="content_block_delta", index=self._index, delta=delta)
        return event("content_block_delta", news)

    def _close(self) -> Iterator[bytes]:
        if self._kind is not None:
            self._kind = None
            end = MessageEvent(type="content_block_stop", index=self._index)
            yield event("content_block_stop", end)

    def _end(self) -> Iterator[bytes]:
        if self._choice.finish_reason == "abort":
            yield error_event(500, ABORTED_ANSWER)
            return
        yield from self._close()
        reason, sequence = stop_reason(self._choice)
        delta = {"stop_reason": reason, "stop_sequence": sequence}
        end = MessageEvent(type="message_delta", delta=delta, usage=message_usage(self._usage))
        yield event("message_delta", end)
        yield event("message_stop", MessageEvent(type="message_stop"))
