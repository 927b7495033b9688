"""Server-sent events written straight into the transport, in the turn that received the tokens.

A `StreamSink` (the frontend's Sink) encodes each output to bytes and writes it; no task wakes up
per event. While a connection has more than `high_water` unsent bytes, outputs are merged instead of
written, so a slow reader costs the memory of one output, not of an event per token. One that takes
nothing for `stall` seconds, or lets more than `hold_limit` characters pile up, is given up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Protocol

import msgspec
from aiohttp import HttpVersion11, web

from vivace.frontend.fairness import TimeSlicer, Work
from vivace.frontend.request_output import HeldOutput, RequestOutput, hold
from vivace.server.event_bytes import CRLF, DONE, chunk, event
from vivace.server.responses import error_body

log = logging.getLogger("vivace.server")

HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}
POLL = 0.05


@dataclass(frozen=True, kw_only=True)
class StreamForm:
    """How another API says what OpenAI's events say.

    `convert` is given complete events, [DONE] behind the last one, and returns what the client gets
    (b"" while there is nothing to say); it never raises. `failure`: the end of a stream that an
    error of ours ends. `ping`: what is said when there was nothing to say for a while, so that
    nobody on the way takes the connection for dead. `goes_on`: another one follows in the answer.
    `first_usage`: the first event has counts of tokens, as the last one has.
    """

    headers: dict[str, str]
    convert: Callable[[bytes], bytes]
    failure: Callable[[], bytes]
    ping: bytes = b""
    goes_on: Callable[[], bool] = lambda: False
    first_usage: bool = False


STREAM_FORM = web.RequestKey("stream_form", StreamForm)
"""Of the answer to a request, where it is not OpenAI's"""


@dataclass(frozen=True)
class OpenAnswer:
    """An answer that has begun, and where its events go: a further stream is part of it. `say`:
    between streams."""

    response: web.StreamResponse
    transport: asyncio.Transport | None
    say: Callable[[bytes], Awaitable[None]]
    chunked: bool


OPEN_ANSWER = web.RequestKey("open_answer", OpenAnswer)


class Encoder(Protocol):
    """What one sequence says, as complete events (b"" for nothing to say)."""

    def __call__(self, output: RequestOutput, /) -> bytes: ...

    def parts(self, output: RequestOutput, /) -> Work[list[bytes]] | None:
        """The same as work, when it may be more than a turn of the loop has time for: bytes to be
        written one after the other. None: call it."""
        ...

    def encode_text(self, text: str, tokens: list[int], count: int, /) -> bytes | None:
        """News of mere text (see `TextSink.offer`); None when it takes an output to say it."""
        ...


@dataclass(frozen=True)
class StreamLimits:
    """Bytes unsent, characters held, seconds without progress, seconds until a ping."""

    high_water: int
    hold_limit: int
    stall: float
    silence: float = 15.0


def failure() -> bytes:
    """The last events of a stream that an error of ours ends."""
    return event(msgspec.json.encode(error_body(500, "internal error"))) + DONE


async def open_answer(request: web.Request, headers: dict[str, str]) -> OpenAnswer:
    """Send the head of an answer that consists of events."""
    response = web.StreamResponse(headers={**HEADERS, **headers})
    chunked = request.version >= HttpVersion11
    if chunked:
        response.enable_chunked_encoding()
    else:
        response.force_close()
    await response.prepare(request)
    return OpenAnswer(response, request.transport, response.write, chunked)


class StreamSink:
    """Where the outputs of one sequence enter the stream."""

    __slots__ = ("_encode", "_encode_text", "_encoding", "_stream", "held")

    def __init__(self, stream: EventStream, encode: Encoder) -> None:
        self._stream = stream
        self._encode = encode
        self._encoding = False
        """a long output is on its way: what comes behind it is held"""
        self._encode_text = encode.encode_text
        self.held: HeldOutput | None = None

    def offer(self, text: str, tokens: list[int], count: int) -> bool:
        """Write mere text when nothing is in its way; never blocks, never raises."""
        stream = self._stream
        if not stream.flowing or self._encoding:
            return False
        try:
            data = self._encode_text(text, tokens, count)
            if data:
                stream.write(data)
            return data is not None
        except Exception as error:
            stream.fail(error)
            return True

    def push(self, output: RequestOutput) -> None:
        """Write or hold one output; never blocks, never raises."""
        stream = self._stream
        try:
            if stream.flowing and not self._encoding:
                self._show(output)
            else:
                self.held = hold(self.held, output)
                stream.note_held(output, self.held.characters)
        except Exception as error:
            stream.fail(error)

    def _show(self, output: RequestOutput) -> None:
        """Write it, or begin to encode it."""
        work = self._encode.parts(output)
        if work is None:
            self._write([self._encode(output)], output)
            return
        try:
            next(work)
        except StopIteration as end:
            self._write(end.value, output)
        else:
            self._encoding = True
            self._stream.go_on(work, lambda parts: self._on_encoded(parts, output))

    def _on_encoded(self, parts: list[bytes], output: RequestOutput) -> None:
        self._encoding = False
        self._write(parts, output)
        if self._stream.flowing:
            self.release()

    def _write(self, parts: list[bytes], output: RequestOutput) -> None:
        if output.finish is not None:
            self._stream.end(parts)
        else:
            self._stream.write(*parts)

    def release(self) -> None:
        """Write what was held."""
        held, self.held = self.held, None
        if held is not None:
            self.push(held.whole())


class EventStream:
    """The answer to one HTTP request as events; several sinks (n > 1, a batch) share it."""

    def __init__(
        self,
        limits: StreamLimits,
        epilogue: Callable[[], bytes] = bytes,
        slicer: TimeSlicer | None = None,
    ) -> None:
        """`epilogue` gives the events between the last output and [DONE]; long outputs are encoded
        in slices of `slicer`."""
        self.flowing = False
        self.failed = False
        self._limits = limits
        self._high_water = limits.high_water
        self._epilogue = epilogue
        self._slicer = slicer or TimeSlicer()
        self._encoders: set[asyncio.Task[None]] = set()
        self._sinks: list[StreamSink] = []
        self._open = 0
        self._transport: asyncio.Transport | None = None
        self._form: StreamForm | None = None
        self._chunked = True
        self._first: asyncio.Future[RequestOutput] = asyncio.get_running_loop().create_future()
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._poll: asyncio.TimerHandle | None = None
        self._ping: asyncio.TimerHandle | None = None
        self._spoke = 0.0
        """when something was written last, where there are pings"""
        self._unsent = 0
        self._progress = 0.0

    def add_sink(self, encode: Encoder) -> StreamSink:
        """A new sequence in this stream; all are made before the first output comes."""
        sink = StreamSink(self, encode)
        self._sinks.append(sink)
        self._open += 1
        return sink

    async def first(self) -> RequestOutput:
        """The first output of any sink: until then the answer can still become an error."""
        return await self._first

    async def first_within(self, seconds: float) -> RequestOutput | None:
        """None when it has not come in time."""
        done, _ = await asyncio.wait([self._first], timeout=seconds)
        return self._first.result() if done else None

    async def run(self, request: web.Request, headers: dict[str, str]) -> web.StreamResponse:
        """Send the headers, let the outputs flow, return when the last event is written."""
        form = self._form = request.get(STREAM_FORM)
        try:
            if OPEN_ANSWER not in request:
                own = form.headers if form else {}
                request[OPEN_ANSWER] = await open_answer(request, {**own, **headers})
            answer = request[OPEN_ANSWER]
            self._transport, self._chunked = answer.transport, answer.chunked
            self._spoke = asyncio.get_running_loop().time() if self._first.done() else -inf
            self._resume()
            if form is not None and form.ping:
                self._break_silence(form.ping)
            await self._flow()
            if form is None or not form.goes_on():
                async with asyncio.timeout(self._limits.stall * 10):
                    await answer.response.write_eof()
        except TimeoutError:
            self.fail(ConnectionResetError("the client does not read the end of its answer"))
        except (ConnectionError, asyncio.CancelledError):
            request.pop(OPEN_ANSWER, None)  # without its end it holds the request that holds it
            raise
        finally:
            self.close()
        return request[OPEN_ANSWER].response

    def close(self) -> None:
        """Nothing more is written, and nobody holds what was."""
        self.flowing = False
        for timer in (self._poll, self._ping):
            if timer is not None:
                timer.cancel()
        for task in self._encoders:
            task.cancel()
        self._sinks.clear()  # they hold this

    async def _flow(self) -> None:
        """Until the last event is written. A failure was told to the client as an event by then;
        only a lost connection is raised."""
        try:
            await self._over
        except ConnectionError:
            raise
        except Exception:
            self.failed = True

    def go_on(self, work: Work[list[bytes]], done: Callable[[list[bytes]], None]) -> None:
        """Encode in slices what was begun."""
        task = asyncio.create_task(self._encode(work, done))
        self._encoders.add(task)
        task.add_done_callback(self._encoders.discard)

    async def _encode(self, work: Work[list[bytes]], done: Callable[[list[bytes]], None]) -> None:
        try:
            done(await self._slicer.run(work))
        except Exception as error:
            self.fail(error)

    def write(self, *parts: bytes) -> None:
        """Put complete events on the wire; pauses the stream when they pile up.

        Nothing must not be written: an empty chunk would end the answer.
        """
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self._form is not None:
            parts = (self._form.convert(b"".join(parts)),)
            self._spoke = asyncio.get_running_loop().time() if parts[0] else self._spoke
        if len(parts) == 1:
            if not parts[0]:
                return
            transport.write(chunk(parts[0]) if self._chunked else parts[0])
        else:
            self._write_parts(transport, parts)
        if transport.get_write_buffer_size() > self._high_water:
            self._pause(transport)

    def _write_parts(self, transport: asyncio.Transport, parts: Sequence[bytes]) -> None:
        """As one chunk, without joining them."""
        if self._chunked:
            transport.write(b"%x\r\n" % sum(map(len, parts)))
        for part in parts:
            transport.write(part)
        if self._chunked:
            transport.write(CRLF)

    def end(self, parts: list[bytes]) -> None:
        """The last events of one sequence; the last sequence brings the epilogue with it."""
        self._open -= 1
        if self._open:
            self.write(*parts)
            return
        self.write(*parts[:-1], parts[-1] + self._epilogue() + DONE)
        if not self._over.done():
            self._over.set_result(None)

    def note_held(self, output: RequestOutput, characters: int) -> None:
        """A sink holds one more: the first wakes the handler, too much gives the client up."""
        if not self._first.done():
            self._first.set_result(output)
        if characters > self._limits.hold_limit:
            self.fail(ConnectionResetError("the client reads too slowly"))

    def _break_silence(self, ping: bytes) -> None:
        """Say that there is nothing to say, whenever that was so for long enough."""
        transport, loop = self._transport, asyncio.get_running_loop()
        if transport is None or transport.is_closing() or self._over.done():
            return
        since = loop.time() - self._spoke
        if since >= self._limits.silence and self.flowing:
            transport.write(chunk(ping) if self._chunked else ping)
            self._spoke, since = loop.time(), 0.0
        wait = max(self._limits.silence - since, POLL)
        self._ping = loop.call_later(wait, self._break_silence, ping)

    def fail(self, error: Exception) -> None:
        """End the stream with an error; the handler then cancels what still runs."""
        self.flowing = False
        transport = self._transport
        if isinstance(error, ConnectionResetError):
            if transport is not None:
                transport.abort()
        else:
            log.error("a stream failed", exc_info=error)
            if transport is not None and not transport.is_closing():
                data = self._form.failure() if self._form else failure()
                transport.write(chunk(data) if self._chunked else data)
        for future in (self._first, self._over):
            if not future.done():
                future.set_exception(error)
                future.exception()  # seen here: nobody may be waiting any more

    def _pause(self, transport: asyncio.Transport) -> None:
        self.flowing = False
        loop = asyncio.get_running_loop()
        self._unsent = transport.get_write_buffer_size()
        self._progress = loop.time()
        self._poll = loop.call_later(POLL, self._look)

    def _look(self) -> None:
        """While paused: resume once half of the buffer is sent, give up when nothing moves."""
        transport = self._transport
        if transport is None or transport.is_closing() or self._over.done():
            return
        loop = asyncio.get_running_loop()
        unsent = transport.get_write_buffer_size()
        if unsent <= self._high_water // 2:
            self._resume()
            return
        if unsent < self._unsent:
            self._unsent, self._progress = unsent, loop.time()
        elif loop.time() - self._progress > self._limits.stall:
            self.fail(ConnectionResetError("the client has stopped reading"))
            return
        self._poll = loop.call_later(POLL, self._look)

    def _resume(self) -> None:
        self.flowing = True
        try:
            for sink in self._sinks:
                if not self.flowing:
                    break
                sink.release()
        except Exception as error:
            self.fail(error)
