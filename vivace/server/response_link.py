"""The responses of all frontends are kept by one of them; the others ask it over a unix socket.

A message is its length and msgpack. Who asks gives each question a number, and may have many open
at once. When the connection ends, what the one who asked was making in the background is lost, and
what was asked is answered with 503: nobody waits for an answer that does not come.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

import msgspec
from aiohttp import web

from vivace.protocol.listening_socket import path
from vivace.server.response_store import (
    FoundItems,
    KeptResponse,
    NewEvents,
    Responses,
    ResponseStore,
    StoredResponse,
)
from vivace.server.responses import HTTPError
from vivace.server.store_messages import (
    LONG,
    REPEATED,
    Append,
    Ask,
    Begin,
    Find,
    Follow,
    Forget,
    Found,
    Get,
    Put,
    Remove,
    StopResponse,
    StoreError,
    StoreReply,
    StoreRequest,
    UseApprovals,
    WaitStop,
)

log = logging.getLogger("vivace.server")

LENGTH = struct.Struct("<Q")
LARGEST = 1 << 30
"""Bytes of a message: twice what is kept would be an error of ours."""
PUT_SECONDS = 5.0
"""A client waits for the end of its answer meanwhile, which then says that it is not stored."""
ANSWER_SECONDS = 15.0
"""longer than it takes to end what does not end (`STOP_SECONDS`), or to start a frontend"""
AGAIN_SECONDS = 0.2
PUT_AGAIN = 3


_REQUEST = msgspec.msgpack.Decoder(StoreRequest)
_REPLY = msgspec.msgpack.Decoder(StoreReply)
encode = msgspec.msgpack.encode
T = TypeVar("T", StoredResponse, FoundItems, NewEvents, bool, None)


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    """EOFError or OSError when there is none any more."""
    (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
    if length > LARGEST:
        raise ConnectionResetError(f"a message of {length} bytes")
    return await reader.readexactly(length)


def write_frame(writer: asyncio.StreamWriter, message: StoreRequest | StoreReply) -> None:
    data = encode(message)
    writer.write(LENGTH.pack(len(data)))
    writer.write(data)


# -- the one that keeps them -----------------------------------------------------------------------


class ResponseServer:
    """Answers the other frontends from a store, while the application runs. `descriptor`: of a unix
    socket that listens; it stays the caller's."""

    def __init__(self, store: ResponseStore, descriptor: int) -> None:
        self._store = store
        self.descriptor = descriptor
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def open(self, _app: web.Application) -> None:
        sock = socket.socket(fileno=os.dup(self.descriptor))
        self._server = await asyncio.start_unix_server(self._serve, sock=sock)

    async def close(self, _app: web.Application) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._connections:
            task.cancel()
        if self._connections:
            await asyncio.wait(self._connections)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        asked: dict[int, asyncio.Task[None]] = {}
        begun: dict[tuple[int, str], KeptResponse] = {}
        try:
            while True:
                question = _REQUEST.decode(await read_frame(reader))
                number = question.number
                if isinstance(question.ask, Forget):
                    if (waiting := asked.get(number)) is not None:
                        waiting.cancel()
                    continue
                asked[number] = asyncio.create_task(self._answer(writer, question, begun))
                asked[number].add_done_callback(partial(forget, asked, number))
        except (EOFError, OSError, asyncio.CancelledError):
            pass  # the other one has ended, or this one does
        except msgspec.DecodeError as error:
            log.error("a frontend asked for a response in what is no message: %s", error)
        finally:
            for one in asked.values():
                one.cancel()
            for place, kept in begun.items():
                self._store.lose(*place, kept)
            writer.close()
            self._connections.discard(task)

    async def _answer(
        self,
        writer: asyncio.StreamWriter,
        question: StoreRequest,
        begun: dict[tuple[int, str], KeptResponse],
    ) -> None:
        """`begun`: what is made behind this connection, and ends with it."""
        ask, found = question.ask, None
        try:
            found = await find(self._store, ask)
        except HTTPError as error:
            found = StoreError(
                error.status, error.message, error.param, error.code, error.retry_after
            )
        if isinstance(ask, Put):
            begun.pop((ask.client, ask.identity), None)
        elif isinstance(ask, Begin) and found is None:
            place = ask.client, ask.identity
            begun[place] = self._store.running(*place)
        with suppress(OSError):
            write_frame(writer, StoreReply(question.number, found))
            await writer.drain()


def forget(asked: dict[int, asyncio.Task[None]], number: int, _: asyncio.Task[None]) -> None:
    asked.pop(number, None)


async def find(store: Responses, ask: Ask) -> Found:
    """Raises HTTPError."""
    match ask:
        case Put():
            return await store.put(ask.client, ask.identity, ask.entry)
        case Get():
            return await store.get(ask.client, ask.identity)
        case Find():
            return await store.find(ask.client, ask.items)
        case UseApprovals():
            return await store.use_approvals(ask.client, ask.requests)
        case Remove():
            return await store.remove(ask.client, ask.identity)
        case Begin():
            return await store.begin(
                ask.client, ask.identity, ask.entry, ask.lost, streamed=ask.streamed
            )
        case Append():
            return await store.append(ask.client, ask.identity, ask.first, ask.events)
        case Follow():
            return await store.follow(ask.client, ask.identity, ask.number)
        case WaitStop():
            return await store.wait_stop(ask.client, ask.identity)
        case StopResponse():
            return await store.stop(ask.client, ask.identity)
        case Forget():
            return None


# -- the others ------------------------------------------------------------------------------------


class StoreAway(HTTPError):
    """Who keeps responses does not answer, so nobody knows what it has done."""


class ResponseConnection:
    """Over once it has ended; whoever waits for an answer hears of it by ConnectionError."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._waiting: dict[int, asyncio.Future[Found]] = {}
        self._number = 0
        self._broken = False
        self._reading = asyncio.create_task(self._read(reader))

    @property
    def over(self) -> bool:
        return self._broken or self._reading.done()

    async def ask(self, ask: Ask) -> Found:
        if self.over:
            raise ConnectionResetError
        self._number += 1
        number, answer = self._number, asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            write_frame(self._writer, StoreRequest(number, ask))
            await self._writer.drain()
            return await answer
        except ConnectionError:
            self._broken = True
            raise
        except asyncio.CancelledError:
            if isinstance(ask, LONG) and not self.over:
                write_frame(self._writer, StoreRequest(number, Forget()))
            raise
        finally:
            del self._waiting[number]

    async def close(self) -> None:
        self._reading.cancel()
        await asyncio.wait([self._reading])

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                answer = _REPLY.decode(await read_frame(reader))
                waiting = self._waiting.get(answer.number)
                if waiting is not None and not waiting.done():
                    waiting.set_result(answer.found)
        except (EOFError, OSError):
            pass
        except msgspec.DecodeError as error:
            log.error("who keeps responses answers in what is no message: %s", error)
        finally:
            self._writer.close()
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(ConnectionResetError())
                    waiting.exception()  # seen here: it may still be sent


class ResponseClient:
    """`Responses` that another process keeps, which is found at `path`. Connected when something is
    asked, and again when that process was replaced: what it kept is gone then."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._connection: ResponseConnection | None = None
        self._connecting = asyncio.Lock()
        self._making: dict[tuple[int, str], tuple[Begin, ResponseConnection]] = {}
        """and to whom that was said"""

    async def put(self, client: int, identity: str, entry: StoredResponse) -> bool:
        """One that was made in the background is said for as long as it takes to replace who keeps
        them: it would be running for ever there."""
        begun = self._making.pop((client, identity), None) is not None
        put = Put(client, identity, entry)
        for _ in range(PUT_AGAIN if begun else 0):
            with suppress(StoreAway):
                return await self._ask(put, bool)
        return await self._ask(put, bool, PUT_SECONDS)

    async def get(self, client: int, identity: str) -> StoredResponse:
        return await self._ask(Get(client, identity), StoredResponse)

    async def find(self, client: int, items: Sequence[str]) -> FoundItems:
        return await self._ask(Find(client, items), FoundItems)

    async def use_approvals(self, client: int, requests: Sequence[str]) -> None:
        await self._ask(UseApprovals(client, requests), type(None))

    async def remove(self, client: int, identity: str) -> None:
        await self._ask(Remove(client, identity), type(None))

    async def begin(
        self,
        client: int,
        identity: str,
        entry: StoredResponse,
        lost: bytes = b"",
        *,
        streamed: bool = False,
    ) -> None:
        begin = Begin(client, identity, entry, lost, streamed)
        try:
            await self._ask(begin, type(None))
        except StoreAway:
            if self._connection is not None:  # if it is heard later, that is lost with this
                await self._connection.close()
            raise
        assert self._connection is not None
        self._making[client, identity] = (begin, self._connection)

    async def append(self, client: int, identity: str, first: int, events: Sequence[bytes]) -> None:
        await self._ask(Append(client, identity, first, events), type(None))

    async def follow(self, client: int, identity: str, number: int) -> NewEvents:
        return await self._ask(Follow(client, identity, number), NewEvents, None)

    async def wait_stop(self, client: int, identity: str) -> None:
        """A process that has replaced the one that kept them is told what is made here."""
        place = client, identity
        while place in self._making:
            try:
                connection = await self._connected()
                if place not in self._making:
                    return  # it has ended meanwhile
                begin, told = self._making[place]
                if connection is not told:
                    self._making[place] = (begin, connection)
                    await connection.ask(begin)
                await connection.ask(WaitStop(client, identity))
                return
            except OSError:
                await asyncio.sleep(AGAIN_SECONDS)

    async def stop(self, client: int, identity: str) -> StoredResponse:
        return await self._ask(StopResponse(client, identity), StoredResponse)

    async def open(self, _app: web.Application) -> None:
        """Nothing is connected yet."""

    async def close(self, _app: web.Application) -> None:
        if self._connection is not None:
            await self._connection.close()

    async def _ask(self, ask: Ask, kind: type[T], seconds: float | None = ANSWER_SECONDS) -> T:
        try:
            async with asyncio.timeout(seconds):
                found = await self._hear(ask)
        except OSError as error:  # a timeout is one
            reason = str(error) or "it does not answer"
            message = f"the process that keeps responses is not there ({reason}); try again"
            raise StoreAway(503, message, retry_after=1.0) from None
        if isinstance(found, StoreError):
            raise HTTPError(
                found.status,
                found.message,
                param=found.param,
                code=found.code,
                retry_after=found.retry_after,
            )
        assert isinstance(found, kind)
        return found

    async def _hear(self, ask: Ask) -> Found:
        """Asked again where the connection ends on the way, and that changes nothing."""
        try:
            return await (await self._connected()).ask(ask)
        except ConnectionError:
            if not isinstance(ask, REPEATED):
                raise
            return await (await self._connected()).ask(ask)

    async def _connected(self) -> ResponseConnection:
        async with self._connecting:
            if self._connection is None or self._connection.over:
                streams = await asyncio.open_unix_connection(self._path)
                self._connection = ResponseConnection(*streams)
            return self._connection


def join_responses(
    store: ResponseStore, descriptor: int, place: int
) -> tuple[Responses, ResponseServer | ResponseClient | None]:
    """The responses of a frontend, and what is open as long as its application: the first place
    keeps `store` for all, and listens on the `descriptor`; others connect by it. -1: no others."""
    if descriptor < 0:
        return store, None
    if place == 0:
        return store, ResponseServer(store, descriptor)
    client = ResponseClient(path(descriptor))
    return client, client
