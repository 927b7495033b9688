"""A response in turns: the model speaks, tool servers make the calls that it asks for, and it goes
on with what they have found, until it asks for none."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from aiohttp import web

from vivace.frontend.errors import BadRequest
from vivace.parsers.answer import new_call_id
from vivace.requests.schema import CustomCall, FunctionCall, Message, ToolCall
from vivace.requests.tools import ALLOWED, AllowedTools, ToolChoice
from vivace.server.access import CLIENT
from vivace.server.apis.chat_run import call_arguments, complete, own_names, run
from vivace.server.apis.event_log import COMMENT, EventLog, send
from vivace.server.apis.item_events import ServerCall, encode_events
from vivace.server.apis.response_items import Item
from vivace.server.apis.responses_events import ResponseEvents, response_error
from vivace.server.apis.responses_schema import OutputItem, ResponseObject
from vivace.server.apis.server_calls import ApprovedCall, call_messages, read_object
from vivace.server.apis.server_tools import ToolOffer
from vivace.server.body import Body
from vivace.server.context import Context
from vivace.server.openai import chat
from vivace.server.openai.schema import ChatRequest
from vivace.server.responses import HTTPError
from vivace.server.sse import OPEN_ANSWER, OpenAnswer, StreamForm, open_answer
from vivace.server.store_messages import UseApprovals
from vivace.tool_servers.transport import ToolServerError

log = logging.getLogger("vivace.server")

NO_OBJECT = "the arguments are no JSON object"


@dataclass
class SpokenMessages:
    """What a response has said so far, as messages of the chat path. `listed`: tool servers whose
    tools the client knows."""

    offer: ToolOffer = field(default_factory=ToolOffer)
    listed: frozenset[str] = frozenset()
    messages: list[Message] = field(default_factory=list[Message])
    _told: int = 0
    """items that they tell of"""

    def take(self, output: Sequence[OutputItem]) -> list[Message]:
        """Those of the items that came since."""
        found = turn_messages(output[self._told :], self.offer)
        self._told = len(output)
        self.messages += found
        return found


def turn_messages(items: Sequence[OutputItem], offer: ToolOffer) -> list[Message]:
    """What the assistant said and called in one turn, and what tool servers found."""
    said = Message(role="assistant")
    calls: list[ToolCall] = []
    results: list[Message] = []
    for item in items:
        text = "".join(part.text for part in item.content or ())
        if item.type == Item.CALL:
            arguments = bytes(call_arguments(item.arguments or "")).decode()
            function = FunctionCall(name=item.name or "", arguments=arguments)
            calls.append(ToolCall(function=function, id=item.call_id, type="function"))
        elif item.type == Item.CUSTOM_CALL:
            custom = CustomCall(name=item.name or "", input=item.input or "")
            calls.append(ToolCall(custom=custom, id=item.call_id, type="custom"))
        elif item.type == Item.SERVER_CALL and item.status != "incomplete":
            call, result = call_messages(item, item.call_id or new_call_id(), offer)
            calls.append(call)
            results.append(result)
        elif item.type == Item.REASONING:
            said.reasoning_content = (said.reasoning_content or "") + text
        elif item.type == Item.MESSAGE:
            said.content = (said.content if isinstance(said.content, str) else "") + text
    said.tool_calls = calls or None
    return [said, *results] if said != Message(role="assistant") else []


def later_choice(choice: str | ToolChoice | None) -> ToolChoice | None:
    """Behind the first turn nothing is forced; tools that were not allowed are not then either."""
    allowed = choice.allowed_tools if isinstance(choice, ToolChoice) else None
    if allowed is None:
        return None
    return ToolChoice(type=ALLOWED, allowed_tools=AllowedTools(tools=allowed.tools))


Keep = Callable[[ResponseObject], Awaitable[None]]


class ResponseTurns:
    """All turns of one response. `request` is that of the next one; `approved`: calls that are made
    before the first. What has become of it is kept before the client hears that it is over, so that
    whatever it asks next finds it."""

    def __init__(
        self,
        context: Context,
        http: web.Request,
        request: ChatRequest,
        events: ResponseEvents,
        conversation: SpokenMessages,
        approved: Sequence[ApprovedCall],
        rename: Callable[[str], str],
        keep: Keep,
    ) -> None:
        """`rename`: what the body calls a field of the chat path."""
        self._context = context
        self._http = http
        self._request = request
        self._events = events
        self._conversation = conversation
        self._approved = approved
        self._rename = rename
        self._keep = keep
        self._limit = request.max_completion_tokens

    async def complete(self, body: Body, arrival: float) -> None:
        """Make the whole response. Raises as the chat path does; but a prompt that is refused
        because of what tools have found ends it: else nobody would hear of calls that were made."""
        try:
            await self._complete_turns(body, arrival)
        except BadRequest as error:
            made = any(item.type == Item.SERVER_CALL for item in self._events.response.output)
            if not made or error.status != 400:
                raise
            self._events.fail(response_error(error))
        await self._keep(self._events.response)

    async def _complete_turns(self, body: Body, arrival: float) -> None:
        events = self._events
        if self._approved:
            await self._check_approved()
            self._begin_approved()
            await self._make_calls()
        while not events.over:
            with own_names(self._rename):
                result = await complete(self._context, self._http, body, self._request, arrival)
            events.complete(result)
            if not events.over:
                await self._make_calls()
            body, arrival = Body(), time.monotonic()

    async def stream(self, body: Body, arrival: float) -> web.StreamResponse:
        """The response as events. What goes wrong before the first one is raised as by the chat
        path; later it ends the stream."""
        try:
            await self._stream_turns(body, arrival)
            await self._keep(self._events.response)
            await self._say(self._events.end_event())
            return self._http[OPEN_ANSWER].response
        except (ConnectionError, asyncio.CancelledError):
            self._http.pop(OPEN_ANSWER, None)  # without its end it holds the request that holds it
            raise

    async def _stream_turns(self, body: Body, arrival: float) -> None:
        events = self._events
        form = StreamForm(
            headers={}, convert=events.convert, failure=events.fail, goes_on=lambda: True
        )
        try:
            if self._approved:
                await self._check_approved()
                await self._open(form)
                await self._say(self._begin_approved())
                await self._make_calls()
            while not events.over:
                with own_names(self._rename):
                    await run(self._context, self._http, body, self._request, arrival, form)
                if not events.over:
                    await self._make_calls()
                body, arrival = Body(), time.monotonic()
        except (BadRequest, HTTPError) as error:
            if self._http.get(OPEN_ANSWER) is None:
                raise
            await self._say(events.fail(response_error(error)))
        except Exception as error:
            if self._http.get(OPEN_ANSWER) is None or isinstance(error, ConnectionError):
                raise
            log.exception("a response failed between its turns")
            await self._say(events.fail())

    async def record(self, events: EventLog) -> None:
        """The events into a log, but for the last one: whoever reads it makes that. What goes wrong
        is one of them."""
        self._http[OPEN_ANSWER] = OpenAnswer(
            web.StreamResponse(), events, events.say, chunked=False
        )
        await self._say(encode_events(self._events.begin()))
        await self._stream_turns(Body(), time.monotonic())
        await events.flush()  # who reads them may go on with what is kept then
        await self._keep(self._events.response)

    async def _open(self, form: StreamForm) -> None:
        if OPEN_ANSWER not in self._http:
            self._http[OPEN_ANSWER] = await open_answer(self._http, form.headers)

    async def _check_approved(self) -> None:
        """BadRequest or HTTPError before any call is made; from then on nobody makes them again."""
        with own_names(self._rename):
            chat.check(self._context, self._request)
        requests = [call.request for call in self._approved]
        await self._context.responses.ask(UseApprovals(self._http[CLIENT], requests))

    def _begin_approved(self) -> bytes:
        data = encode_events(self._events.begin())
        return data + b"".join(
            encode_events(self._events.approved(call)) for call in self._approved
        )

    async def _make_calls(self) -> None:
        """Have all calls of a turn made at once, and begin the next one."""
        calls = [asyncio.create_task(self._make_call(call)) for call in self._events.calls]
        silence = asyncio.create_task(self._break_silence())
        try:
            async with self._context.pending.admit():  # no engine has anything of it now
                await asyncio.gather(*calls)
        finally:
            for task in (*calls, silence):
                task.cancel()
        await self._begin_turn()

    async def _begin_turn(self) -> None:
        """The request is that of the next turn from now on, or the response is over."""
        events, request = self._events, self._request
        no_more = events.refused_calls or request.tool_choice == "none"
        request.tool_choice = "none" if no_more else later_choice(request.tool_choice)
        await self._say(encode_events(events.next_turn()))
        request.messages = [*request.messages, *self._conversation.take(events.response.output)]
        if self._limit is not None and not events.over:
            request.max_completion_tokens = self._limit - events.output_tokens
            if request.max_completion_tokens < 1:
                await self._say(encode_events(events.end(cut=True)))

    async def _make_call(self, call: ServerCall) -> None:
        item, output, error = call.item, None, None
        label, name = item.server_label or "", item.name or ""
        try:
            arguments = read_object(item.arguments)
            if arguments is None:
                raise ToolServerError(NO_OBJECT)
            found = await self._context.tool_servers[label].call(name, arguments)
            output, error = (None, found.text) if found.failed else (found.text, None)
        except ToolServerError as reason:
            error = str(reason)
            log.warning("tool server %s: a call of %s failed: %s", label, name, error)
        self._context.http_metrics.note_tool_call(label, failed=error is not None)
        await self._say(self._events.settle(call, output, error))

    async def _break_silence(self) -> None:
        """Until it is cancelled, or nobody listens."""
        with contextlib.suppress(ConnectionError):
            while True:
                await asyncio.sleep(self._context.settings.stream_silence)
                await self._say(COMMENT)

    async def _say(self, data: bytes) -> None:
        """More of the stream, between those of the chat path; nothing where there is none."""
        answer = self._http.get(OPEN_ANSWER)
        if answer is not None:
            await send(self._context, answer, data)
