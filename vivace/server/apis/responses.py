"""POST /v1/responses, and the responses that are stored: OpenAI's Responses API."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Sequence
from functools import partial

import msgspec
from aiohttp import web

from vivace.frontend.errors import BadRequest
from vivace.frontend.fairness import Work
from vivace.frontend.fields import refuse_unsupported
from vivace.requests.schema import Message
from vivace.server.access import CLIENT
from vivace.server.apis.chat_run import own_names
from vivace.server.apis.item_references import named_items, resolve_references
from vivace.server.apis.response_turns import ResponseTurns, SpokenMessages
from vivace.server.apis.responses_events import ResponseEvents
from vivace.server.apis.responses_request import begin_response, read_input, read_request
from vivace.server.apis.responses_schema import (
    RESPONSES_REFUSED,
    DeletedResponse,
    ResponseError,
    ResponseObject,
    ResponsesRequest,
)
from vivace.server.apis.server_calls import ApprovedCall, ServerItems, read_server_items
from vivace.server.apis.server_tools import ToolOffer, read_offer
from vivace.server.body import Body, BodyReader
from vivace.server.context import Context
from vivace.server.http import accept
from vivace.server.openai import chat
from vivace.server.response_store import FoundItems, StoredResponse
from vivace.server.responses import HTTPError, json_response

log = logging.getLogger("vivace.server")

READER = BodyReader(ResponsesRequest)
MOST_CALLS = 64
"""Of tool servers in one response, when `max_tool_calls` does not say fewer"""
LOST = ResponseError(code="server_error", message="the process that made the response has ended")
encode = msgspec.json.encode
_MESSAGE = msgspec.json.Decoder(Message)


async def create(context: Context, http: web.Request, body: Body) -> web.StreamResponse:
    """Answer, go on with an earlier response, or begin one in the background."""
    arrival = time.monotonic()
    params = await READER.read(context, body)
    check(params)
    rid, store = f"resp_{secrets.token_hex(16)}", params.store is not False
    earlier = await find_earlier(context, http, params)
    sent = await read_items(context, http, params)
    listed = sent.listed | earlier.listed
    offer = await read_offer(context.tool_servers, params.tools or (), listed)
    most = most_calls(params)
    check_approved(offer, sent.approved, most)
    before = await context.slicer.run(decoded(earlier.messages))
    found = await context.slicer.run(read_input(params, before, offer))
    with own_names(found.rename):
        request = read_request(params, found, rid, offer)
        if params.background:  # nobody hears of it later
            chat.check(context, request)
    response = begin_response(params, rid, context.served.name, store=store)
    said = tuple(await context.slicer.run(encoded(found.messages, params))) if store else ()
    talk = SpokenMessages(offer, listed.union(one.label for one in offer.lists))
    keep = partial(put, context, http[CLIENT], said, talk) if store else keep_nothing
    events = ResponseEvents(response, offer, most)
    turns = ResponseTurns(context, http, request, events, talk, sent.approved, found.rename, keep)
    if params.background:
        return await begin_background(context, http, turns, response, said)
    if request.stream:
        return await turns.stream(body, arrival)
    await turns.complete(body, arrival)
    return json_response(response)


async def read_items(context: Context, http: web.Request, params: ResponsesRequest) -> ServerItems:
    """What the input says of tool servers; its items are there themselves from then on."""
    if isinstance(params.input, str):
        return ServerItems([])
    stored = FoundItems({}, {})
    if names := named_items(params.input):
        stored = await context.responses.find(http[CLIENT], names)
    items = await context.slicer.run(resolve_references(stored, params.input))
    sent = await context.slicer.run(read_server_items(stored, items))
    params.input = sent.items
    return sent


def most_calls(params: ResponsesRequest) -> int:
    """Of tool servers, in one response."""
    asked = params.max_tool_calls
    if asked is not None and asked < 0:
        raise BadRequest("max_tool_calls", "must be 0 or more")
    return MOST_CALLS if asked is None else min(asked, MOST_CALLS)


def check_approved(offer: ToolOffer, calls: Sequence[ApprovedCall], most: int) -> None:
    """BadRequest unless `tools` still offer what the client has approved, `most` calls of it."""
    if len(calls) > most:
        reason = f"approves {len(calls)} calls; one response makes at most {most} (max_tool_calls)"
        raise BadRequest("input", reason)
    for call in calls:
        if offer.known_name(call.label, call.name) is None:
            name, label = call.name[:100], call.label[:64]
            reason = f"need {name!r} of the tool server {label!r}, as it is approved"
            raise BadRequest("tools", reason)


def check(params: ResponsesRequest) -> None:
    """Refuse what this server cannot do, and fields that contradict each other."""
    refuse_unsupported(params, RESPONSES_REFUSED)
    if not params.background:
        return
    if params.stream:
        raise BadRequest("background", "streams are not made in the background; remove stream")
    if params.store is False:
        raise BadRequest("background", "needs store to be true: it is asked for by its id")


async def find_earlier(
    context: Context, http: web.Request, params: ResponsesRequest
) -> StoredResponse:
    """What the request goes on with; one that is empty where that is nothing. BadRequest when the
    client has no response of the id, or one that has not ended."""
    identity = params.previous_response_id
    if not identity:
        return StoredResponse(b"")
    try:
        entry = await context.responses.get(http[CLIENT], identity)
    except HTTPError as error:
        if error.status != 404:
            raise
        raise BadRequest("previous_response_id", error.message, 400) from None
    if not entry.messages or entry.running:
        raise BadRequest("previous_response_id", "the response has no answer to go on with")
    return entry


async def keep_nothing(_response: ResponseObject) -> None:
    """Of a response that is not to be stored."""


# -- what is kept ----------------------------------------------------------------------------------


def encoded(messages: list[Message], params: ResponsesRequest) -> Work[list[bytes]]:
    """Each message as JSON; instructions are those of one response."""
    found: list[bytes] = []
    for message in messages[1 if params.instructions is not None else 0 :]:
        found.append(encode(message))
        yield
    return found


def decoded(messages: tuple[bytes, ...]) -> Work[list[Message]]:
    found: list[Message] = []
    for message in messages:
        found.append(_MESSAGE.decode(message))
        yield
    return found


async def put(
    context: Context,
    client: int,
    said: tuple[bytes, ...],
    talk: SpokenMessages,
    response: ResponseObject,
) -> None:
    """Keep a response that is over; one that failed is no conversation to go on with. The response
    says so where it cannot be kept: it is whole all the same."""
    talk.take(response.output)
    answered = response.status in ("completed", "incomplete")
    messages = (*said, *map(encode, talk.messages)) if answered else ()
    entry = StoredResponse(
        encode(response, enc_hook=str),
        messages,
        items=tuple(item.id for item in response.output),
        listed=talk.listed,
        background=bool(response.background),
    )
    try:
        response.store = await context.responses.put(client, response.id, entry)
    except HTTPError as error:
        log.warning("response %s is not stored: %s", response.id, error.message)
        response.store = False


# -- in the background -----------------------------------------------------------------------------


async def begin_background(
    context: Context,
    http: web.Request,
    turns: ResponseTurns,
    response: ResponseObject,
    said: tuple[bytes, ...],
) -> web.Response:
    """The response as it stands now; it is made by a task, whoever listens."""
    body = encode(response, enc_hook=str)
    lost = msgspec.structs.replace(response, status="failed", error=LOST)
    entry = StoredResponse(body, said, background=True, running=True)
    client = http[CLIENT]
    await context.responses.begin(client, response.id, entry, encode(lost, enc_hook=str))
    making = asyncio.create_task(make(context, http, turns, response))
    context.background.add(making)
    making.add_done_callback(context.background.discard)
    return web.Response(body=body, content_type="application/json")


async def make(
    context: Context, http: web.Request, turns: ResponseTurns, response: ResponseObject
) -> None:
    """Make a response until somebody wants it to end, and keep it; what goes wrong stands in it."""
    client = http[CLIENT]
    accept(context.frontend)
    work = asyncio.create_task(turns.complete(Body(), time.monotonic()))
    stopping = asyncio.create_task(context.responses.wait_stop(client, response.id))
    try:
        await asyncio.wait([work, stopping], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (work, stopping):
            task.cancel()
        await asyncio.wait([work, stopping])
    if note_end(response, work):
        for item in response.output:
            if item.status == "in_progress":  # a call that nobody makes any more
                item.status = "incomplete"
        await put(context, client, (), SpokenMessages(), response)


def note_end(response: ResponseObject, work: asyncio.Task[None]) -> bool:
    """Say in a response why it ended before its time; False: it did not."""
    error = asyncio.CancelledError() if work.cancelled() else work.exception()
    match error:
        case None:
            return False
        case asyncio.CancelledError():
            response.status = "cancelled"
        case HTTPError() | BadRequest():
            message = error.message if isinstance(error, HTTPError) else str(error)
            code = "invalid_prompt" if error.status < 500 else "server_error"
            end_failed(response, code, message)
        case _:
            log.error("response %s failed", response.id, exc_info=error)
            end_failed(response, "server_error", "internal error; the server's log has the details")
    return True


def end_failed(response: ResponseObject, code: str, message: str) -> None:
    response.status = "failed"
    response.error = ResponseError(code=code, message=message)


# -- stored responses ------------------------------------------------------------------------------


async def show(context: Context, http: web.Request, _body: Body) -> web.Response:
    """A response as it stands, or 404."""
    if http.query.get("stream", "false") != "false":
        raise BadRequest("stream", "is not supported yet for a stored response; ask without it")
    entry = await context.responses.get(http[CLIENT], http.match_info["response_id"])
    return web.Response(body=entry.body, content_type="application/json")


async def delete(context: Context, http: web.Request, _body: Body) -> web.Response:
    """Forget a response; one in the background is not made any further."""
    identity = http.match_info["response_id"]
    await context.responses.remove(http[CLIENT], identity)
    return json_response(DeletedResponse(id=identity))


async def cancel(context: Context, http: web.Request, _body: Body) -> web.Response:
    """End a response in the background; one that is over stays as it is."""
    client, identity = http[CLIENT], http.match_info["response_id"]
    entry = await context.responses.get(client, identity)
    if not entry.background:
        raise BadRequest("response_id", "only responses in the background can be cancelled")
    entry = await context.responses.stop(client, identity)
    return web.Response(body=entry.body, content_type="application/json")
