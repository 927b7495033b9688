"""What a response says, item by item: events of a stream, and the whole object at their end."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from vivace.frontend.errors import BadRequest
from vivace.parsers.answer import new_call_id
from vivace.server.apis.chat_run import (
    ABORTED_ANSWER,
    ChatResult,
    ResultCall,
    ResultChoice,
    ResultMessage,
    ResultUsage,
    read_events,
)
from vivace.server.apis.item_events import ItemEvents, ServerCall, encode_event, encode_events
from vivace.server.apis.response_items import Item, call_item, new_item
from vivace.server.apis.responses_schema import (
    CachedInput,
    IncompleteDetails,
    OutputItem,
    ReasoningOutput,
    ResponseError,
    ResponseEvent,
    ResponseObject,
    ResponseUsage,
)
from vivace.server.apis.server_calls import ApprovedCall
from vivace.server.apis.server_tools import ToolOffer
from vivace.server.responses import HTTPError


def server_error(message: str) -> ResponseError:
    return ResponseError(code="server_error", message=message)


def response_error(error: BadRequest | HTTPError) -> ResponseError:
    """What a response says of why it failed."""
    message = error.message if isinstance(error, HTTPError) else str(error)
    code = "invalid_prompt" if error.status < 500 else "server_error"
    return ResponseError(code=code, message=message)


INTERNAL = server_error("internal error; the server's log has the details")


class ResponseEvents:
    """Turns what the chat path says into events, and keeps `response` what they have said.

    A response has several turns where tool servers are asked: after each there are calls to make
    (`calls`), and their outcomes go to `settle`.
    """

    def __init__(
        self,
        response: ResponseObject,
        offer: ToolOffer | None = None,
        most_calls: int = 0,
    ) -> None:
        """Of calls to tool servers those beyond `most_calls` are ignored."""
        self.response = response
        self.over = False
        self.refused_calls = False
        """the turn had calls that were ignored"""
        self._asks_client = False
        """for the output of a function, or whether a call may be made"""
        self._offer = offer or ToolOffer()
        self._calls_left = most_calls
        self._items = ItemEvents(response)
        self.settle = self._items.settle
        self._begun = False
        self._call: int | None = None
        """the number of the one that is open, or was ignored"""
        self._choice = ResultChoice()
        self._usage: list[ResultUsage] = []
        """of the turns that are over"""

    @property
    def calls(self) -> list[ServerCall]:
        """To be made before the next turn."""
        return self._items.calls

    def convert(self, data: bytes) -> bytes:
        """The events for complete ones of the chat path."""
        return b"".join(
            encode_event(event) for result in read_events(data) for event in self.take(result)
        )

    def fail(self, error: ResponseError = INTERNAL) -> bytes:
        """The events of a response that an error ends, but for the last one."""
        return encode_events(self._fail(error))

    def complete(self, result: ChatResult) -> None:
        """A whole turn from a whole answer, in which calls have no numbers."""
        for choice in result.choices:
            choice.delta = choice.message or ResultMessage()
            for number, call in enumerate(choice.delta.tool_calls or ()):
                call.index = number
        for one in (result, None):
            for _ in self.take(one):
                pass

    def begin(self) -> Iterator[ResponseEvent]:
        """What comes before the model says anything."""
        if self._begun:
            return
        self._begun = True
        yield self._items.event("response.created", response=self.response)
        yield self._items.event("response.in_progress", response=self.response)
        for one in self._offer.lists:
            item = new_item(Item.SERVER_TOOLS, server_label=one.label, tools=[])
            item.status = None
            yield from self._items.open(item)
            yield self._items.event("response.mcp_list_tools.in_progress")
            yield self._items.event("response.mcp_list_tools.completed")
            item.tools = one.tools
            yield from self._items.end(item)

    def take(self, result: ChatResult | None) -> Iterator[ResponseEvent]:
        """The events of what comes next; None: that was all of this turn."""
        if self.over:
            return
        if result is None:
            yield from self._end_turn()
            return
        yield from self.begin()
        if result.error is not None:
            yield from self._fail(server_error(result.error.message))
            return
        if result.usage is not None:
            self._usage[-1:] = [result.usage]
        for choice in result.choices:
            if choice.finish_reason is not None:
                self._choice = choice
            yield from self._news(choice, choice.delta or ResultMessage())

    def _news(self, choice: ResultChoice, delta: ResultMessage) -> Iterator[ResponseEvent]:
        if delta.reasoning_content or delta.content:
            self._call = None
        if delta.reasoning_content:
            yield from self._items.add_text(Item.REASONING, delta.reasoning_content, [])
        if delta.content:
            logprobs = choice.logprobs.content if choice.logprobs else None
            yield from self._items.add_text(Item.MESSAGE, delta.content, logprobs or [])
        for call in delta.tool_calls or ():
            yield from self._add_call(call)

    # -- calls ------------------------------------------------------------------------------------

    def _add_call(self, call: ResultCall) -> Iterator[ResponseEvent]:
        number = call.index or 0
        if self._call != number:
            yield from self._items.close()
            self._call = number
            yield from self._open_call(call)
        text = call.function.arguments if call.custom is None else call.custom.input
        yield from self._items.add_arguments(text or "")

    def _open_call(self, call: ResultCall) -> Iterator[ResponseEvent]:
        name = call.function.name or ""
        tool = self._offer.served.get(name)
        identity = call.id or new_call_id()
        if call.custom is not None:
            self._asks_client = True
            name = call.custom.name or ""
            yield from self._items.open(
                new_item(Item.CUSTOM_CALL, call_id=identity, name=name, input="")
            )
        elif tool is None:
            self._asks_client = True
            yield from self._items.open(call_item(Item.CALL, call_id=identity, name=name))
        elif self._calls_left <= 0:
            self.refused_calls = True
        elif tool.asks:
            self._asks_client = True
            self._calls_left -= 1
            item = call_item(
                Item.APPROVAL_REQUEST, call_id=call.id, name=tool.name, server_label=tool.label
            )
            item.status = None
            self._items.hold(item)
        else:
            self._calls_left -= 1
            item = call_item(
                Item.SERVER_CALL, call_id=call.id, name=tool.name, server_label=tool.label
            )
            yield from self._open_server_call(item)

    def _open_server_call(self, item: OutputItem) -> Iterator[ResponseEvent]:
        yield from self._items.open(item)
        yield self._items.event("response.mcp_call.in_progress")

    def approved(self, call: ApprovedCall) -> Iterator[ResponseEvent]:
        """A call that the client has approved is to be made before the first turn."""
        self._calls_left -= 1
        item = call_item(
            Item.SERVER_CALL,
            call_id=call.call_id,
            name=call.name,
            server_label=call.label,
            approval_request_id=call.request,
        )
        yield from self._open_server_call(item)
        yield from self._items.add_arguments(call.arguments)
        yield from self._items.close()

    # -- the ends of turns -------------------------------------------------------------------------

    def _end_turn(self) -> Iterator[ResponseEvent]:
        reason = self._choice.finish_reason
        if reason == "abort":
            yield from self._fail(server_error(ABORTED_ANSWER))
            return
        cut = reason == "length"
        half = reason == "stop" and self._call is not None  # a text of `stop` was in the call
        yield from self._items.close("incomplete" if cut or half else "completed")
        if cut:
            yield from self.end(cut=True)
        elif not self.calls and (self._asks_client or not self.refused_calls):
            yield from self.end()

    def next_turn(self) -> Iterator[ResponseEvent]:
        """The calls were made: the end, where the client is asked for something, too; otherwise the
        model goes on."""
        self._items.calls = []
        self._call, self.refused_calls, self._choice = None, False, ResultChoice()
        if self._asks_client:
            yield from self.end()
        else:
            self._usage.append(ResultUsage())

    @property
    def output_tokens(self) -> int:
        """Of all turns."""
        return sum(usage.output for usage in self._usage)

    def end(self, *, cut: bool = False) -> Iterator[ResponseEvent]:
        """`cut`: by a limit on tokens."""
        response = self.response
        response.status = "incomplete" if cut else "completed"
        if cut:
            yield from self._items.leave_calls()
            response.incomplete_details = IncompleteDetails(reason="max_output_tokens")
        response.usage = response_usage(self._usage)
        now = max(response.created_at, int(time.time()))  # somebody may have put it back
        response.completed_at = None if cut else now
        self.over = True

    def _fail(self, error: ResponseError) -> Iterator[ResponseEvent]:
        if self.over:
            return
        yield from self._items.close("incomplete")
        yield from self._items.leave_calls()
        self.response.status = "failed"
        self.response.error = error
        spent = response_usage(self._usage)
        self.response.usage = spent if spent.total_tokens else None  # of the turns before
        self.over = True

    def end_event(self) -> bytes:
        """The last event of a response that is over: it says how the response stands then."""
        kind = f"response.{self.response.status}"
        return encode_event(self._items.event(kind, response=self.response))


def response_usage(turns: Sequence[ResultUsage]) -> ResponseUsage:
    """Of all turns together, each of which has read the whole conversation."""
    read, written = (
        sum(turn.prompt_tokens for turn in turns),
        sum(turn.output for turn in turns),
    )
    thoughts = sum(turn.reasoning_tokens or 0 for turn in turns)
    return ResponseUsage(
        input_tokens=read,
        output_tokens=written,
        total_tokens=read + written,
        input_tokens_details=CachedInput(cached_tokens=sum(turn.cached for turn in turns)),
        output_tokens_details=ReasoningOutput(reasoning_tokens=thoughts),
    )
