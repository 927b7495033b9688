"""Events of responses in the background: on their way into the store, and out of it to clients."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

import msgspec
from aiohttp import web

from vivace.frontend.errors import BadRequest
from vivace.server.access import CLIENT
from vivace.server.context import Context
from vivace.server.event_bytes import named_event
from vivace.server.response_store import NewEvents, Responses
from vivace.server.responses import HTTPError
from vivace.server.sse import OpenAnswer, open_answer
from vivace.server.store_messages import Append, Follow

log = logging.getLogger("vivace.server")

COMMENT = b": nothing new\n\n"
"""In a stream: nobody reads it, but who is on the way sees that the connection is alive."""
END = b"\n\n"
UNREAD = "the client does not read"
MOST_DIGITS = 16
"""of an event's number: longer ones Python may refuse to read, and messages to hold"""


class EventLog(asyncio.Transport):
    """Where the events of a response go that nobody has to read: into the store, as fast as that
    takes them. Where it is not there they are left out, which their numbers tell."""

    def __init__(self, store: Responses, client: int, identity: str) -> None:
        super().__init__()
        self._store = store
        self._place = client, identity
        self._events: list[bytes] = []
        self._size = 0
        self._sent = 0
        self._sending: asyncio.Task[None] | None = None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Complete events, or a comment, which is none."""
        found = [event + END for event in bytes(data).split(END) if event and event[:1] != b":"]
        self._events += found
        self._size += sum(map(len, found))
        if self._sending is None and self._events:
            self._sending = asyncio.create_task(self._send())

    async def say(self, data: bytes) -> None:
        self.write(data)

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return self._size

    def abort(self) -> None:
        """Nobody is connected."""

    async def flush(self) -> None:
        """Until the store has all."""
        if self._sending is not None:
            await asyncio.wait([self._sending])

    async def _send(self) -> None:
        try:
            while self._events:
                events, self._events, self._size = self._events, [], 0
                first, self._sent = self._sent, self._sent + len(events)
                try:
                    await self._store.ask(Append(*self._place, first, events))
                except HTTPError as error:
                    log.warning("events of %s are left out: %s", self._place[1], error.message)
        finally:
            self._sending = None


# -- reading them ----------------------------------------------------------------------------------


class EndedResponse(msgspec.Struct):
    """What is read of a response that is over."""

    status: str


class EndEvent(msgspec.Struct, kw_only=True):
    type: str
    sequence_number: int
    response: msgspec.Raw


def end_event(news: NewEvents) -> bytes:
    """The last event: it says how the response stands."""
    body = news.body or b""
    kind = f"response.{msgspec.json.decode(body, type=EndedResponse).status}"
    event = EndEvent(type=kind, sequence_number=news.following, response=msgspec.Raw(body))
    return named_event(kind, msgspec.json.encode(event))


def first_number(query: Mapping[str, str]) -> int:
    """Of the events that are asked for. BadRequest."""
    text = query.get("starting_after", "-1")
    known = text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS
    if text != "-1" and not known:
        raise BadRequest("starting_after", "must be the number of an event")
    return int(text) + 1


async def follow_events(
    context: Context, http: web.Request, identity: str, number: int
) -> web.StreamResponse:
    """The events of a stored response from this number on, until it is over."""
    store, client = context.responses, http[CLIENT]
    news = await store.ask(Follow(client, identity, number))
    answer = await open_answer(http, {})
    while True:
        await send(context, answer, b"".join(news.events))
        number += len(news.events)
        if news.body is not None:
            if number <= news.following:
                await send(context, answer, end_event(news))
            return answer.response
        waiting = asyncio.create_task(store.ask(Follow(client, identity, number)))
        try:
            while not (await asyncio.wait([waiting], timeout=context.settings.stream_silence))[0]:
                await send(context, answer, COMMENT)
            news = waiting.result()
        except HTTPError as error:  # the client may ask again from where it is
            raise cut_off(answer, error.message) from None
        finally:
            waiting.cancel()


async def send(context: Context, answer: OpenAnswer, data: bytes) -> None:
    """Raises ConnectionError, also where the client does not read."""
    if not data:
        return
    try:
        async with asyncio.timeout(context.settings.stream_stall):
            await answer.say(data)
    except TimeoutError:
        raise cut_off(answer, UNREAD) from None


def cut_off(answer: OpenAnswer, reason: str) -> ConnectionResetError:
    if answer.transport is not None:
        answer.transport.abort()
    return ConnectionResetError(reason)
