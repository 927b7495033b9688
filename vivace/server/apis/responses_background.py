"""Responses that are made whoever listens."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from typing import Any

import msgspec
from aiohttp import web

from vivace.frontend.errors import BadRequest
from vivace.server.access import CLIENT
from vivace.server.apis.event_log import EventLog, follow_events
from vivace.server.apis.response_turns import ResponseTurns, SpokenMessages
from vivace.server.apis.responses_events import INTERNAL, response_error, server_error
from vivace.server.apis.responses_schema import ResponseObject
from vivace.server.apis.stored_conversations import SentConversation, put
from vivace.server.body import Body
from vivace.server.context import Context
from vivace.server.http import accept
from vivace.server.response_store import StoredResponse
from vivace.server.responses import HTTPError
from vivace.server.store_messages import Begin, WaitStop

log = logging.getLogger("vivace.server")

LOST = server_error("the process that made the response has ended")
encode = msgspec.json.encode


async def begin_background(
    context: Context,
    http: web.Request,
    turns: ResponseTurns,
    response: ResponseObject,
    sent: SentConversation,
    *,
    streamed: bool,
) -> web.StreamResponse:
    """The response as it stands now, or `streamed` its events; a task makes it, whoever listens."""
    body = encode(response, enc_hook=str)
    lost = msgspec.structs.replace(response, status="failed", error=LOST)
    entry = StoredResponse(body, sent.messages, background=True, running=True, inputs=sent.inputs)
    store, client, identity = context.responses, http[CLIENT], response.id
    events = EventLog(store, client, identity) if streamed else None

    async def begin() -> None:
        await store.ask(Begin(client, identity, entry, encode(lost, enc_hook=str), streamed))
        keep_running(context, make(context, http, turns, response, sent, events))

    # What has a place there is made, also where the client leaves before it hears of that.
    await asyncio.shield(keep_running(context, begin()))
    if streamed:
        return await follow_events(context, http, identity, 0)
    return web.Response(body=body, content_type="application/json")


def keep_running(context: Context, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """A task that ends with the application at the latest."""

    def forget(ended: asyncio.Task[None]) -> None:
        context.background.discard(ended)
        if not ended.cancelled():
            ended.exception()  # seen here: who waited for it may have left

    task = asyncio.create_task(work)
    context.background.add(task)
    task.add_done_callback(forget)
    return task


async def make(
    context: Context,
    http: web.Request,
    turns: ResponseTurns,
    response: ResponseObject,
    sent: SentConversation,
    events: EventLog | None,
) -> None:
    """Make a response until somebody wants it to end, and keep it; what goes wrong stands in it."""
    client = http[CLIENT]
    accept(context.frontend)
    making = turns.complete(Body(), time.monotonic()) if events is None else turns.record(events)
    work = asyncio.create_task(making)
    stopping = asyncio.create_task(context.responses.ask(WaitStop(client, response.id)))
    try:
        await asyncio.wait([work, stopping], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (work, stopping):
            task.cancel()
        await asyncio.wait([work, stopping])
    if events is not None:
        await events.flush()
    if note_end(response, work):
        for item in response.output:
            if item.status == "in_progress":  # a call that nobody makes any more
                item.status = "incomplete"
        await put(context, client, sent, SpokenMessages(), response)


def note_end(response: ResponseObject, work: asyncio.Task[None]) -> bool:
    """Say in a response why it ended before its time; False: it did not."""
    error = asyncio.CancelledError() if work.cancelled() else work.exception()
    match error:
        case None:
            return False
        case asyncio.CancelledError():
            response.status = "cancelled"
        case HTTPError() | BadRequest():
            response.status, response.error = "failed", response_error(error)
        case _:
            log.error("response %s failed", response.id, exc_info=error)
            response.status, response.error = "failed", INTERNAL
    return True
