"""Sends one request and notes when what came back. This is the part that runs against the clock.

The client shares the host with the server it measures, so it does little per event: bytes are
taken as they come, split at line ends, and decoded into the few fields that count.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import aiohttp
import msgspec

from vivace.bench.http_backends import ApiFormat, RequestSettings, ResponseReader
from vivace.bench.workload import BenchRequest

TIMEOUT_SECONDS = 6 * 60 * 60
END_MARK = b"[DONE]"
ERROR_TEXT = 500
"""Bytes of an error answer that are kept."""


@dataclass(slots=True, kw_only=True)
class Record:
    """What happened to one request. Times in seconds; `start` is of the client's clock."""

    query: int
    turn: int = 0
    input_len: int
    requested: int
    """Output tokens asked for."""
    start: float = 0.0
    success: bool = False
    error: str = ""
    ttft: float = 0.0
    latency: float = 0.0
    """From sending to the end of the answer."""
    itl: list[float] = field(default_factory=list)
    """Seconds before each token after the first (or each chunk, for OpenAI back ends)."""
    output_len: int = 0
    counted_by_server: bool = False
    """`output_len` is the server's count (else the requested length)."""
    text: str = ""
    pieces: list[str] = field(default_factory=list)
    prompt_tokens: int | None = None
    """The server's count of the prompt."""
    cached_tokens: int | None = None
    cached_tiers: dict[str, int] = field(default_factory=dict)
    """`cached_tokens` by tier (device, host, storage), where the server says it."""


class EventSplitter:
    """Bytes of a stream in, payloads of complete `data:` lines out."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        if self._rest:
            data = self._rest + data
        lines = data.split(b"\n")
        self._rest = lines.pop()
        return [line[5:].strip() for line in lines if line.startswith(b"data:")]

    def close(self) -> list[bytes]:
        """The last line, when the server did not end it."""
        rest, self._rest = self._rest, b""
        return [rest[5:].strip()] if rest.startswith(b"data:") else []


class Client:
    """Sends requests of one API to one address."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        api_format: ApiFormat,
        settings: RequestSettings,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._session = session
        self._url = url
        self._api_format = api_format
        self._settings = settings
        self._clock = clock

    async def send(self, query: BenchRequest, index: int = 0, turn: int = 0) -> Record:
        """Never raises for what a server can do wrong: the record says it."""
        record = Record(
            query=index, turn=turn, input_len=query.input_len, requested=query.output_len
        )
        body = msgspec.json.encode(self._api_format.body(query, self._settings))
        headers = {"Content-Type": "application/json"}
        if query.routing_key is not None:
            headers["X-SMG-Routing-Key"] = query.routing_key
        reader = self._api_format.reader()
        record.start = self._clock()
        try:
            await self._exchange(body, headers, reader, record)
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            record.error = f"{type(error).__name__}: {error}"
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            record.error = f"the answer is not what this back end sends: {error}"
        finish(record, reader)
        return record

    async def _exchange(
        self, body: bytes, headers: Mapping[str, str], reader: ResponseReader, record: Record
    ) -> None:
        async with self._session.post(self._url, data=body, headers=headers) as answer:
            if answer.status != 200:
                text = (await answer.content.read(ERROR_TEXT)).decode("utf-8", "replace")
                record.error = f"HTTP {answer.status}: {text}"
            elif self._settings.stream:
                await self._read_stream(answer, reader, record)
            else:
                reader.feed(await answer.read())
                record.latency = record.ttft = self._clock() - record.start
                reader.finished = True

    async def _read_stream(
        self, answer: aiohttp.ClientResponse, reader: ResponseReader, record: Record
    ) -> None:
        splitter = EventSplitter()
        stopwatch = Stopwatch(record, self._api_format.counts_tokens)
        async for data in answer.content.iter_any():
            now = self._clock()
            for payload in splitter.feed(data):
                stopwatch.event(payload, reader, now)
        for payload in splitter.close():
            stopwatch.event(payload, reader, self._clock())


class Stopwatch:
    """Turns events into TTFT and ITL.

    TTFT ends with the first event that brings text. After that the gap between two events that
    bring text is one ITL, or is divided equally among the new tokens where the protocol counts
    them (an event without a new token then belongs to the next gap).
    """

    __slots__ = ("_counts", "_last", "_record", "_seen")

    def __init__(self, record: Record, counts_tokens: bool) -> None:
        self._record = record
        self._counts = counts_tokens
        self._last = 0.0
        self._seen = 0

    def event(self, payload: bytes, reader: ResponseReader, now: float) -> None:
        record = self._record
        record.latency = now - record.start
        if payload == END_MARK:
            reader.finished = True
            return
        if not reader.feed(payload):
            return
        tokens = reader.tokens or 0
        if not self._last:
            record.ttft = now - record.start
        elif self._counts:
            new = tokens - self._seen
            if new <= 0:
                return
            record.itl.extend([(now - self._last) / new] * new)
        else:
            record.itl.append(now - self._last)
        self._last = now
        self._seen = tokens


def finish(record: Record, reader: ResponseReader) -> None:
    """Judge the answer and copy the counts."""
    record.error = record.error or reader.error
    if not record.error and not reader.finished:
        record.error = "the stream ended before the answer was complete"
    record.success = not record.error
    record.text = reader.text()
    record.pieces = reader.pieces()
    record.counted_by_server = reader.tokens is not None
    record.output_len = record.requested if reader.tokens is None else reader.tokens
    record.prompt_tokens = reader.prompt_tokens
    record.cached_tokens = reader.cached_tokens
    record.cached_tiers = reader.cached_tiers
    if record.success and record.ttft == 0.0:
        record.ttft = record.latency
