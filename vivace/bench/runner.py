"""One measurement: wait for the server, warm up, flush, send everything, collect."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import aiohttp

from vivace.bench.arrivals import arrival_times, by_arrival
from vivace.bench.backends import BenchBackend
from vivace.bench.errors import BenchError, no_server
from vivace.bench.http_backends import RequestSettings, make_api_format
from vivace.bench.progress import Counter, show_progress
from vivace.bench.transport import TIMEOUT_SECONDS, Client, Record
from vivace.bench.workload import BenchRequest
from vivace.errors import why_no_answer

Result = TypeVar("Result")

WARMUP_OUTPUT = 32
"""Output tokens of a warm-up request at most."""
READ_BUFFER = 1 << 20
SILENT_SECONDS = 1.0
"""of waiting until it is said"""
AT_LEAST_SECONDS = 1.0
"""for the last look at the server"""


@dataclass(frozen=True, kw_only=True)
class BenchLoad:
    """How requests are sent to a server."""

    backend: BenchBackend
    base_url: str
    settings: RequestSettings
    headers: Mapping[str, str] = field(default_factory=dict)
    rate: float = float("inf")
    concurrency: int | None = None
    trace: bool = False
    seed: int = 42
    warmup: int = 1
    ready_timeout: float = 60.0
    flush: bool = False
    flush_timeout: float = 60.0
    connection_per_request: bool = False
    progress: bool = False
    incremental: bool = False
    """The native stream sends only new text (--incremental-streaming-output of the server)."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Everything that was observed."""

    records: list[Record]
    duration: float
    """Seconds from the first send to the end of the last answer."""
    client_cpu: float
    """CPU seconds the client took in that time."""


async def measure_load(
    load: BenchLoad, queries: Sequence[BenchRequest], clock: Callable[[], float] = time.perf_counter
) -> Outcome:
    """Warm up, flush, run. The server is ready (see `wait_ready`)."""
    async with open_session(load) as session:
        api_format = make_api_format(load.backend.api_format, incremental=load.incremental)
        url = load.base_url + load.backend.path
        client = Client(session, url, api_format, load.settings, clock)
        await warm_up(client, queries, load.warmup)
        if load.flush:
            await flush_cache(session, load)
        return await run(client, queries, load, clock)


async def run(
    client: Client, queries: Sequence[BenchRequest], load: BenchLoad, clock: Callable[[], float]
) -> Outcome:
    """Send every query when it is due, at most `concurrency` at a time."""
    gate = asyncio.Semaphore(load.concurrency) if load.concurrency else contextlib.nullcontext()
    counter = Counter(sum(1 + len(query.followups) for query in queries))

    async def one(index: int, query: BenchRequest) -> list[Record]:
        async with gate:
            return await converse(client, index, query, counter)

    times = arrival_times(queries, load.rate, load.trace, load.seed)
    with show_progress(counter, load.progress), quiet_collector():
        started, cpu = clock(), time.process_time()
        tasks = [
            asyncio.create_task(one(index, query))
            async for index, query in by_arrival(queries, times, clock)
        ]
        found = await asyncio.gather(*tasks)
        duration = clock() - started
        cpu = time.process_time() - cpu
    records = sorted((r for turns in found for r in turns), key=lambda r: (r.query, r.turn))
    return Outcome(records=records, duration=duration, client_cpu=cpu)


async def converse(
    client: Client, index: int, query: BenchRequest, counter: Counter
) -> list[Record]:
    """The query, then its further turns; each repeats what was said before. Stops at an error."""
    record = await client.send(query, index)
    counter.add(record.output_len, record.success)
    records = [record]
    for turn, question in enumerate(query.followups, 1):
        if not record.success:
            break
        query = next_turn(query, record, question)
        record = await client.send(query, index, turn)
        if record.prompt_tokens is not None:
            record.input_len = record.prompt_tokens
        counter.add(record.output_len, record.success)
        records.append(record)
    return records


def next_turn(query: BenchRequest, record: Record, question: str) -> BenchRequest:
    """The conversation so far and the next question; its length is the server's count or a sum."""
    input_len = query.input_len + record.output_len
    if isinstance(query.prompt, str):
        return replace(
            query, prompt=f"{query.prompt}{record.text}\n\n{question}", input_len=input_len
        )
    if query.prompt and isinstance(query.prompt[0], int):
        raise BenchError("conversations of several turns need text, not token ids")
    messages: list[Any] = [
        *query.prompt,
        {"role": "assistant", "content": record.text},
        {"role": "user", "content": question},
    ]
    return replace(query, prompt=messages, input_len=input_len)


async def warm_up(client: Client, queries: Sequence[BenchRequest], count: int) -> None:
    """`count` requests at once, with short answers; their failure ends the benchmark."""
    if count < 1:
        return
    chosen = [queries[i % len(queries)] for i in range(count)]
    short = [replace(q, output_len=min(q.output_len, WARMUP_OUTPUT), followups=()) for q in chosen]
    records = await asyncio.gather(*(client.send(query) for query in short))
    failed = [record.error for record in records if not record.success]
    if failed:
        raise BenchError(f"the warm-up request failed: {failed[0]}")


async def flush_cache(session: aiohttp.ClientSession, load: BenchLoad) -> None:
    """Empty the server's prefix cache; waits up to `flush_timeout` for it to be idle."""
    if not load.backend.control:
        raise BenchError(f"--flush-cache: back end {load.backend.name} has no /flush_cache")
    deadline = time.monotonic() + load.flush_timeout
    while True:
        async with session.post(load.base_url + "/flush_cache") as answer:
            text = await answer.text()
            if answer.status == 200:
                return
        if time.monotonic() > deadline or answer.status not in (400, 409, 503):
            raise BenchError(f"/flush_cache answered HTTP {answer.status}: {text[:300]}")
        await asyncio.sleep(0.2)


async def wait_ready(load: BenchLoad) -> None:
    """Poll /health (or /v1/models where there is none) until it answers 200. Raises BenchError."""
    deadline = time.monotonic() + load.ready_timeout
    reason, shown = "no answer yet", False

    def tell() -> None:
        nonlocal shown
        if not shown:
            print(
                f"waiting for the server at {load.base_url}: {reason}; for at most "
                f"{load.ready_timeout:g} s (--ready-check-timeout-sec), Ctrl-C ends it",
                file=sys.stderr,
                flush=True,
            )
        shown = True

    silence = asyncio.get_running_loop().call_later(SILENT_SECONDS, tell)
    async with open_session(load) as session, contextlib.AsyncExitStack() as stack:
        stack.callback(silence.cancel)
        while True:
            try:
                async with asyncio.timeout(max(deadline - time.monotonic(), AT_LEAST_SECONDS)):
                    reason = await why_not_ready(session, load.base_url)
            except (TimeoutError, aiohttp.ClientError, OSError) as error:
                reason = why_no_answer(error)
            if not reason:
                return
            tell()
            if time.monotonic() > deadline:
                raise BenchError(no_server(load.base_url, reason))
            await asyncio.sleep(0.25)


async def why_not_ready(session: aiohttp.ClientSession, base_url: str) -> str:
    """Nothing when it is. Raises what the connection does."""
    reason = ""
    for path in ("/health", "/v1/models"):
        async with session.get(base_url + path) as answer:
            if answer.status == 200:
                return ""
            reason = f"{path} answered HTTP {answer.status}"
            if answer.status != 404:
                break
    return reason


def open_session(load: BenchLoad) -> aiohttp.ClientSession:
    connector = aiohttp.TCPConnector(limit=0, force_close=load.connection_per_request)
    return aiohttp.ClientSession(
        connector=connector,
        headers={"Accept-Encoding": "identity", **load.headers},
        timeout=aiohttp.ClientTimeout(total=TIMEOUT_SECONDS),
        read_bufsize=READ_BUFFER,
    )


@contextlib.contextmanager
def quiet_collector() -> Iterator[None]:
    """No garbage collection pauses of the client inside the measured time."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def with_loop(main: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine on uvloop where it is installed: less client CPU per event."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)
