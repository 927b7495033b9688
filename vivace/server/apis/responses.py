"""POST /v1/responses, and the responses that are stored: OpenAI's Responses API."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from aiohttp import web

from vivace.frontend.errors import BadRequest
from vivace.frontend.fields import refuse_unsupported
from vivace.requests.tools import offered_tools
from vivace.server.access import CLIENT
from vivace.server.apis.chat_messages import ChatMessages
from vivace.server.apis.chat_run import own_names
from vivace.server.apis.event_log import first_number, follow_events
from vivace.server.apis.input_items import encode_input
from vivace.server.apis.item_references import named_items, resolve_references
from vivace.server.apis.response_turns import ResponseTurns, SpokenMessages
from vivace.server.apis.responses_background import begin_background
from vivace.server.apis.responses_events import ResponseEvents
from vivace.server.apis.responses_request import AUTO, begin_response, read_input, read_request
from vivace.server.apis.responses_schema import (
    RESPONSES_REFUSED,
    DeletedResponse,
    InputTokens,
    ResponsesRequest,
)
from vivace.server.apis.server_calls import ApprovedCall, ServerItems, read_server_items
from vivace.server.apis.server_tools import ToolOffer, read_offer
from vivace.server.apis.stored_conversations import (
    SentConversation,
    decoded,
    encoded,
    find_earlier,
    keep_nothing,
    put,
)
from vivace.server.apis.truncation import prompt_tokens, truncate
from vivace.server.body import Body, BodyReader
from vivace.server.context import Context
from vivace.server.openai import chat
from vivace.server.openai.schema import ChatRequest
from vivace.server.response_store import FoundItems
from vivace.server.responses import json_response
from vivace.server.store_messages import Find, Get, Remove, StopResponse

READER = BodyReader(ResponsesRequest)
MOST_CALLS = 64
"""Of tool servers in one response, when `max_tool_calls` does not say fewer"""


@dataclass(frozen=True)
class AskedResponse:
    """What a body asks for. `approved`: calls that are made first, of `most` altogether; `listed`:
    servers whose tools the conversation has."""

    request: ChatRequest
    found: ChatMessages
    offer: ToolOffer
    approved: list[ApprovedCall]
    listed: frozenset[str]
    most: int


async def create(context: Context, http: web.Request, body: Body) -> web.StreamResponse:
    """Answer, go on with an earlier response, or begin one in the background."""
    arrival = time.monotonic()
    params = await READER.read(context, body)
    rid, store = f"resp_{secrets.token_hex(16)}", params.store is not False
    asked = await read_body(context, http, params, rid)
    request, found, offer = asked.request, asked.found, asked.offer
    if params.background:  # nobody hears of it later
        with own_names(found.rename):
            chat.check(context, request)
    response = begin_response(params, rid, context.served.name, store=store)
    sent = SentConversation()
    if store:
        said = tuple(await context.slicer.run(encoded(found.messages, params)))
        sent = SentConversation(said, await context.slicer.run(encode_input(params)))
    talk = SpokenMessages(offer, asked.listed.union(one.label for one in offer.lists))
    keep = partial(put, context, http[CLIENT], sent, talk) if store else keep_nothing
    events = ResponseEvents(response, offer, asked.most)
    turns = ResponseTurns(context, http, request, events, talk, asked.approved, found.rename, keep)
    if params.background:
        streamed = bool(params.stream)
        return await begin_background(context, http, turns, response, sent, streamed=streamed)
    if request.stream:
        return await turns.stream(body, arrival)
    await turns.complete(body, arrival)
    return json_response(response)


async def count_input(context: Context, http: web.Request, body: Body) -> web.Response:
    """How many tokens a body has as a prompt."""
    asked = await read_body(context, http, await READER.read(context, body), "")
    request, found = asked.request, asked.found
    with own_names(found.rename):
        chat.check(context, request)
        tokens = await prompt_tokens(context, request, found.messages, offered_tools(request))
    return json_response(InputTokens(input_tokens=tokens))


async def read_body(
    context: Context, http: web.Request, params: ResponsesRequest, rid: str
) -> AskedResponse:
    """The conversation, with what it goes on with, and what else is asked for. BadRequest."""
    check(params)
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
        if params.truncation == AUTO:
            await truncate(context, request, found)
    return AskedResponse(request, found, offer, sent.approved, listed, most)


async def read_items(context: Context, http: web.Request, params: ResponsesRequest) -> ServerItems:
    """What the input says of tool servers; its items are there themselves from then on."""
    if isinstance(params.input, str):
        return ServerItems([])
    stored = FoundItems({}, {})
    if names := named_items(params.input):
        stored = await context.responses.ask(Find(http[CLIENT], names))
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
    if params.store is False:
        raise BadRequest("background", "needs store to be true: it is asked for by its id")


# -- stored responses ------------------------------------------------------------------------------


async def show(context: Context, http: web.Request, _body: Body) -> web.StreamResponse:
    """A response as it stands, or its events from one on; or 404."""
    identity, streamed = http.match_info["response_id"], http.query.get("stream", "false")
    if streamed not in ("true", "false"):
        raise BadRequest("stream", "must be true or false")
    if streamed == "true":
        return await follow_events(context, http, identity, first_number(http.query))
    entry = await context.responses.ask(Get(http[CLIENT], identity))
    return web.Response(body=entry.body, content_type="application/json")


async def delete(context: Context, http: web.Request, _body: Body) -> web.Response:
    """Forget a response; one in the background is not made any further."""
    identity = http.match_info["response_id"]
    await context.responses.ask(Remove(http[CLIENT], identity))
    return json_response(DeletedResponse(id=identity))


async def cancel(context: Context, http: web.Request, _body: Body) -> web.Response:
    """End a response in the background; one that is over stays as it is."""
    client, identity = http[CLIENT], http.match_info["response_id"]
    entry = await context.responses.ask(Get(client, identity))
    if not entry.background:
        raise BadRequest("response_id", "only responses in the background can be cancelled")
    entry = await context.responses.ask(StopResponse(client, identity))
    return web.Response(body=entry.body, content_type="application/json")
