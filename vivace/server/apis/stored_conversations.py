"""What is stored of a response, so that another one can go on with its conversation."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import msgspec
from aiohttp import web

from vivace.frontend.errors import BadRequest
from vivace.frontend.fairness import Work
from vivace.requests.schema import Message
from vivace.server.access import CLIENT
from vivace.server.apis.response_turns import SpokenMessages
from vivace.server.apis.responses_schema import ResponseObject, ResponsesRequest
from vivace.server.context import Context
from vivace.server.response_store import StoredResponse
from vivace.server.responses import HTTPError
from vivace.server.store_messages import Get, Put

log = logging.getLogger("vivace.server")

encode = msgspec.json.encode
_MESSAGE = msgspec.json.Decoder(Message)


@dataclass(frozen=True)
class SentConversation:
    """What was said before the response: all of it as `messages`, each as JSON, and what this
    request has added as items, a JSON list."""

    messages: tuple[bytes, ...] = ()
    inputs: bytes = b""


async def find_earlier(
    context: Context, http: web.Request, params: ResponsesRequest
) -> StoredResponse:
    """What the request goes on with; one that is empty where that is nothing. BadRequest when the
    client has no response of the id, or one that has not ended."""
    identity = params.previous_response_id
    if not identity:
        return StoredResponse(b"")
    try:
        entry = await context.responses.ask(Get(http[CLIENT], identity))
    except HTTPError as error:
        if error.status != 404:
            raise
        raise BadRequest("previous_response_id", error.message, 400) from None
    if not entry.messages or entry.running:
        raise BadRequest("previous_response_id", "the response has no answer to go on with")
    return entry


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
    sent: SentConversation,
    talk: SpokenMessages,
    response: ResponseObject,
) -> None:
    """Keep a response that is over; one that failed is no conversation to go on with. The response
    says so where it cannot be kept: it is whole all the same."""
    talk.take(response.output)
    answered = response.status in ("completed", "incomplete")
    messages = (*sent.messages, *map(encode, talk.messages)) if answered else ()
    entry = StoredResponse(
        encode(response, enc_hook=str),
        messages,
        items=tuple(item.id for item in response.output),
        listed=talk.listed,
        background=bool(response.background),
        inputs=sent.inputs,
    )
    try:
        response.store = await context.responses.ask(Put(client, response.id, entry))
    except HTTPError as error:
        log.warning("response %s is not stored: %s", response.id, error.message)
        response.store = False


async def keep_nothing(_response: ResponseObject) -> None:
    """Of a response that is not to be stored."""
