"""What a response says, item by item: events of a stream, and the whole object at their end."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from vivace.server.apis.chat_run import (
    ABORTED_ANSWER,
    ChatResult,
    ResultCall,
    ResultChoice,
    ResultMessage,
    ResultUsage,
    read_events,
)
from vivace.server.apis.responses_schema import (
    CachedInput,
    IncompleteDetails,
    OutputItem,
    OutputPart,
    ReasoningOutput,
    ResponseError,
    ResponseEvent,
    ResponseObject,
    ResponseUsage,
)

MESSAGE, REASONING, CALL = "message", "reasoning", "function_call"
DELTAS = {MESSAGE: "response.output_text", REASONING: "response.reasoning_text"}
"""What events of a kind of text are called."""


class ResponseEvents:
    """Turns what the chat path says into events, and keeps `response` what they have said.

    A response has items, one after the other: `_item` is the open one, `_said` the parts of its
    text, or of its arguments.
    """

    def __init__(
        self, response: ResponseObject, on_end: Callable[[ResponseObject], object]
    ) -> None:
        """`on_end` is called with the response once it is over."""
        self.response = response
        self._on_end = on_end
        self._number = 0
        self._begun = False
        self._over = False
        self._item: OutputItem | None = None
        self._said: list[str] = []
        self._logprobs: list[Any] = []
        self._call: int | None = None
        self._choice = ResultChoice()
        self._usage: ResultUsage | None = None

    def convert(self, data: bytes) -> bytes:
        """The events for complete ones of the chat path."""
        return b"".join(
            encode_event(event) for result in read_events(data) for event in self.take(result)
        )

    def fail(self) -> bytes:
        """The last events of a response that an error of ours ends."""
        return b"".join(encode_event(event) for event in self._fail("internal error"))

    def complete(self, result: ChatResult) -> ResponseObject:
        """The whole response from a whole answer."""
        for choice in result.choices:
            choice.delta = choice.message
        for one in (result, None):
            for _ in self.take(one):
                pass
        return self.response

    def take(self, result: ChatResult | None) -> Iterator[ResponseEvent]:
        """The events of what comes next; None: that was all."""
        if self._over:
            return
        if result is None:
            yield from self._end()
            return
        if not self._begun:
            self._begun = True
            yield self._event("response.created", response=self.response)
            yield self._event("response.in_progress", response=self.response)
        if result.error is not None:
            yield from self._fail(result.error.message)
            return
        self._usage = result.usage or self._usage
        for choice in result.choices:
            if choice.finish_reason is not None:
                self._choice = choice
            yield from self._news(choice, choice.delta or ResultMessage())

    def _news(self, choice: ResultChoice, delta: ResultMessage) -> Iterator[ResponseEvent]:
        if delta.reasoning_content:
            yield from self._add_text(REASONING, delta.reasoning_content, [])
        if delta.content:
            logprobs = choice.logprobs.content if choice.logprobs else None
            yield from self._add_text(MESSAGE, delta.content, logprobs or [])
        for call in delta.tool_calls or ():
            yield from self._add_call(call)

    def _add_text(self, kind: str, text: str, logprobs: list[Any]) -> Iterator[ResponseEvent]:
        if self._item is None or self._item.type != kind:
            yield from self._close()
            yield from self._open_text(kind)
        self._said.append(text)
        self._logprobs += logprobs
        shown = {"logprobs": logprobs} if kind == MESSAGE else {}
        yield self._event(f"{DELTAS[kind]}.delta", content_index=0, delta=text, **shown)

    def _open_text(self, kind: str) -> Iterator[ResponseEvent]:
        if kind == MESSAGE:
            item = new_item("msg", kind, role="assistant", content=[])
        else:
            item = new_item("rs", kind, summary=[], content=[])
        yield from self._open(item)
        yield self._event("response.content_part.added", content_index=0, part=text_part(kind))

    def _add_call(self, call: ResultCall) -> Iterator[ResponseEvent]:
        number = call.index or 0
        if self._item is None or self._item.type != CALL or number != self._call:
            yield from self._close()
            self._call = number
            identity = call.id or f"call_{secrets.token_hex(12)}"
            name = call.function.name or ""
            yield from self._open(new_item("fc", CALL, call_id=identity, name=name, arguments=""))
        if call.function.arguments:
            self._said.append(call.function.arguments)
            delta = call.function.arguments
            yield self._event("response.function_call_arguments.delta", delta=delta)

    def _open(self, item: OutputItem) -> Iterator[ResponseEvent]:
        self._item, self._said, self._logprobs = item, [], []
        yield self._event("response.output_item.added", item=item, item_id=None)

    def _close(self, status: str = "completed") -> Iterator[ResponseEvent]:
        item = self._item
        if item is None:
            return
        said = "".join(self._said)
        item.status = status
        if item.type == CALL:
            item.arguments = said
            yield self._event(
                "response.function_call_arguments.done", arguments=said, name=item.name
            )
        else:
            part = text_part(item.type, said, self._logprobs)
            shown = {"logprobs": self._logprobs} if item.type == MESSAGE else {}
            yield self._event(f"{DELTAS[item.type]}.done", content_index=0, text=said, **shown)
            yield self._event("response.content_part.done", content_index=0, part=part)
            item.content = [part]
        yield self._event("response.output_item.done", item=item, item_id=None)
        self.response.output = [*self.response.output, item]
        self._item = None

    def _end(self) -> Iterator[ResponseEvent]:
        reason = self._choice.finish_reason
        if reason == "abort":
            yield from self._fail(ABORTED_ANSWER)
            return
        cut = reason == "length"
        yield from self._close("incomplete" if cut else "completed")
        response = self.response
        response.status = "incomplete" if cut else "completed"
        if cut:
            response.incomplete_details = IncompleteDetails(reason="max_output_tokens")
        response.usage = response_usage(self._usage)
        response.completed_at = None if cut else int(time.time())
        yield from self._finish()

    def _fail(self, message: str) -> Iterator[ResponseEvent]:
        if self._over:
            return
        yield from self._close("incomplete")
        self.response.status = "failed"
        self.response.error = ResponseError(code="server_error", message=message)
        yield from self._finish()

    def _finish(self) -> Iterator[ResponseEvent]:
        self._over = True
        yield self._event(f"response.{self.response.status}", response=self.response)
        self._on_end(self.response)

    def _event(self, kind: str, **fields: Any) -> ResponseEvent:
        """The next event; of an item it says which."""
        number, self._number = self._number, self._number + 1
        if self._item is not None and "response" not in fields:
            fields.setdefault("item_id", self._item.id)
            fields["output_index"] = len(self.response.output)
        return ResponseEvent(type=kind, sequence_number=number, **fields)


def new_item(prefix: str, kind: str, **fields: Any) -> OutputItem:
    identity = f"{prefix}_{secrets.token_hex(12)}"
    return OutputItem(id=identity, type=kind, status="in_progress", **fields)


def text_part(kind: str, text: str = "", logprobs: list[Any] | None = None) -> OutputPart:
    if kind == REASONING:
        return OutputPart(type="reasoning_text", text=text)
    return OutputPart(type="output_text", text=text, annotations=[], logprobs=logprobs or [])


def response_usage(usage: ResultUsage | None) -> ResponseUsage:
    counts = usage or ResultUsage()
    return ResponseUsage(
        input_tokens=counts.prompt_tokens,
        output_tokens=counts.output,
        total_tokens=counts.prompt_tokens + counts.output,
        input_tokens_details=CachedInput(cached_tokens=counts.cached),
        output_tokens_details=ReasoningOutput(reasoning_tokens=counts.reasoning_tokens or 0),
    )


def encode_event(event: ResponseEvent) -> bytes:
    data = msgspec.json.encode(event, enc_hook=str)
    return b"event: %b\ndata: %b\n\n" % (event.type.encode(), data)
