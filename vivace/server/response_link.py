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
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec
from aiohttp import web

from vivace.protocol.listening_socket import path
from vivace.server.response_store import (
    A,
    KeptResponse,
    Responses,
    ResponseStore,
    StoreQuestion,
)
from vivace.server.responses import HTTPError
from vivace.server.store_messages import (
    LONG,
    REPEATED,
    Begin,
    Forget,
    Found,
    Put,
    Question,
    StoreError,
    StoreReply,
    StoreRequest,
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
                request = _REQUEST.decode(await read_frame(reader))
                number, question = request.number, request.ask
                if isinstance(question, Forget):
                    if (waiting := asked.get(number)) is not None:
                        waiting.cancel()
                    continue
                asked[number] = asyncio.create_task(self._answer(writer, number, question, begun))
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
        number: int,
        question: Question,
        begun: dict[tuple[int, str], KeptResponse],
    ) -> None:
        """`begun`: what is made behind this connection, and ends with it."""
        found: Found
        try:
            found = await question.answer(self._store)
        except HTTPError as error:
            found = StoreError(
                error.status, error.message, error.param, error.code, error.retry_after
            )
        if isinstance(question, Put):
            begun.pop((question.client, question.identity), None)
        elif isinstance(question, Begin) and found is None:
            place = question.client, question.identity
            begun[place] = self._store.running(*place)
        with suppress(OSError):
            write_frame(writer, StoreReply(number, found))
            await writer.drain()


def forget(asked: dict[int, asyncio.Task[None]], number: int, _: asyncio.Task[None]) -> None:
    asked.pop(number, None)


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

    async def ask(self, question: Question) -> Found:
        if self.over:
            raise ConnectionResetError
        self._number += 1
        number, answer = self._number, asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            write_frame(self._writer, StoreRequest(number, question))
            await self._writer.drain()
            return await answer
        except ConnectionError:
            self._broken = True
            raise
        except asyncio.CancelledError:
            if isinstance(question, LONG) and not self.over:
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

    async def ask(self, question: StoreQuestion[A]) -> A:
        """As `Responses` says."""
        found: Any
        match question:
            case Put():
                found = await self._put(question)
            case Begin():
                found = await self._begin(question)
            case WaitStop():
                found = await self._wait_stop(question)
            case _:
                found = await self._ask(question)
        return found

    async def _put(self, put: Put) -> Found:
        """One that was made in the background is said for as long as it takes to replace who keeps
        them: it would be running for ever there."""
        begun = self._making.pop((put.client, put.identity), None) is not None
        for _ in range(PUT_AGAIN if begun else 0):
            with suppress(StoreAway):
                return await self._ask(put)
        return await self._ask(put, PUT_SECONDS)

    async def _begin(self, begin: Begin) -> None:
        try:
            await self._ask(begin)
        except StoreAway:
            if self._connection is not None:  # if it is heard later, that is lost with this
                await self._connection.close()
            raise
        assert self._connection is not None
        self._making[begin.client, begin.identity] = (begin, self._connection)

    async def _wait_stop(self, wait: WaitStop) -> None:
        """A process that has replaced the one that kept them is told what is made here."""
        place = wait.client, wait.identity
        while place in self._making:
            try:
                connection = await self._connected()
                if place not in self._making:
                    return  # it has ended meanwhile
                begin, told = self._making[place]
                if connection is not told:
                    self._making[place] = (begin, connection)
                    await connection.ask(begin)
                await connection.ask(wait)
                return
            except OSError:
                await asyncio.sleep(AGAIN_SECONDS)

    async def open(self, _app: web.Application) -> None:
        """Nothing is connected yet."""

    async def close(self, _app: web.Application) -> None:
        if self._connection is not None:
            await self._connection.close()

    async def _ask(self, question: Any, seconds: float = ANSWER_SECONDS) -> Found:
        """Raises HTTPError."""
        try:
            async with asyncio.timeout(None if isinstance(question, LONG) else seconds):
                found = await self._hear(question)
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
        return found

    async def _hear(self, question: Question) -> Found:
        """Asked again where the connection ends on the way, and that changes nothing."""
        try:
            return await (await self._connected()).ask(question)
        except ConnectionError:
            if not isinstance(question, REPEATED):
                raise
            return await (await self._connected()).ask(question)

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
