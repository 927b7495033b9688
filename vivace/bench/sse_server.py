"""CPU time of one streamed chunk: engine message in, bytes on a real socket out.

Synthetic deltas go through the real Frontend (ledger, detokenizer) and the real HTTP server into
sockets that another process reads. `us_per_chunk` is this process's CPU time over the events that
arrived there: decoding of the engine's message, wake-ups and system calls included, the client
excluded. `floor_us_per_chunk` is the same for a bare loop that only writes the same number of ready
bytes to the same number of sockets at the same pace: what the kernel and the loop cost on this
machine, whatever the server does.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

import msgspec
import uvloop
from tokenizers import Tokenizer as Core
from tokenizers import decoders, models, pre_tokenizers

from vivace.frontend.chat_template import ChatTemplate, TemplateSet
from vivace.frontend.engine_status import EngineView
from vivace.frontend.frontend import Frontend
from vivace.frontend.served_model import ServedModel
from vivace.frontend.tokenizer import Tokenizer
from vivace.frontend.tokenizer_core import byte_alphabet
from vivace.protocol.messages import Capacity, Delta, Deltas, Finish, Ready, Request
from vivace.server.app import make_app, start_site
from vivace.server.settings import ServerSettings

CONTEXT = 1 << 20
WORDS = b"the quick brown fox jumps over the lazy dog "
BODIES = {
    "chat": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "hi"}], "stream": True, "ignore_eos": True},
    ),
    "completions": (
        "/v1/completions",
        {"prompt": "hi", "stream": True, "max_tokens": 100000, "ignore_eos": True},
    ),
    "native": (
        "/generate",
        {"text": "hi", "stream": True, "sampling_params": {"max_new_tokens": 100000}},
    ),
}


@dataclass(frozen=True, kw_only=True)
class StreamLoad:
    """`step` is the time between two steps in seconds; every step brings each stream one token."""

    api: str = "chat"
    streams: int = 32
    steps: int = 400
    step: float = 0.005


def measure(
    api: str = "chat", streams: int = 32, steps: int = 400, step: float = 0.005
) -> dict[str, Any]:
    """Run the load and return the figures; `us_per_chunk` is the one to look at."""
    load = StreamLoad(api=api, streams=streams, steps=steps, step=step)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        found = runner.run(run(load))
        floor = runner.run(bare(load, round(found["bytes_per_chunk"])))
    own = found["us_per_chunk"] - floor
    return {**found, "floor_us_per_chunk": floor, "own_us_per_chunk": round(own, 2)}


async def run(load: StreamLoad) -> dict[str, Any]:
    """Serve, let the client connect, feed the steps, count what came out."""
    requests: list[Request] = []
    served = ServedModel(name="bench", context=CONTEXT, vocabulary=256)
    frontend = Frontend(
        served, byte_tokenizer(), [EngineView(lambda message: take(requests, message))]
    )
    frontend.feed(Ready(epoch=1, capacity=capacity()))
    settings = ServerSettings(access_log_level="error", stream_output=True)
    sock = socket.create_server(("127.0.0.1", 0))
    runner = await start_site(make_app(frontend, settings), sock)
    client = await start_client(load, sock.getsockname()[1])
    try:
        async with asyncio.timeout(60):
            while len(requests) < load.streams:
                await asyncio.sleep(0.01)
        cpu, wall = await feed(frontend, requests, load)
        output, _ = await asyncio.wait_for(client.communicate(), 60)
    finally:
        with contextlib.suppress(ProcessLookupError):
            client.kill()
        await runner.cleanup()
        frontend.close()
    return report(load, cpu, wall, json.loads(output))


def take(requests: list[Request], message: Any) -> None:
    """The engine's side of the channel: remember requests, ignore the rest."""
    if isinstance(message, Request):
        requests.append(message)


async def feed(
    frontend: Frontend, requests: list[Request], load: StreamLoad
) -> tuple[float, float]:
    """CPU and wall seconds of all steps, decoding of the engine's messages included."""
    messages = [msgspec.msgpack.encode(deltas(requests, load, i)) for i in range(load.steps)]
    decode = msgspec.msgpack.Decoder(Deltas).decode
    await asyncio.sleep(0.2)
    cpu, wall = time.process_time(), time.monotonic()
    for number, message in enumerate(messages, 1):
        frontend.feed(decode(message))
        await asyncio.sleep(max(0.0, wall + number * load.step - time.monotonic()))
    return time.process_time() - cpu, time.monotonic() - wall


async def bare(load: StreamLoad, size: int) -> float:
    """Microseconds per chunk when there is nothing to do but write `size` bytes."""
    writers: list[asyncio.StreamWriter] = []

    async def on_connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writers.append(writer)

    server = await asyncio.start_server(on_connect, "127.0.0.1", 0)
    client = await start_client(load, server.sockets[0].getsockname()[1])
    try:
        async with asyncio.timeout(60):
            while len(writers) < load.streams:
                await asyncio.sleep(0.01)
        data = b"data: ".ljust(size, b"x")
        cpu, wall = time.process_time(), time.monotonic()
        for number in range(1, load.steps + 1):
            for writer in writers:
                writer.write(data)
            await asyncio.sleep(max(0.0, wall + number * load.step - time.monotonic()))
        cpu = time.process_time() - cpu
    finally:
        for writer in writers:
            writer.close()
        await asyncio.wait_for(client.communicate(), 60)
        server.close()
    return round(1e6 * cpu / (load.streams * load.steps), 2)


def deltas(requests: list[Request], load: StreamLoad, step: int) -> Deltas:
    """One token for every stream; the last step ends them."""
    last = step == load.steps - 1
    finish = Finish(type="length", length=load.steps) if last else None
    token = WORDS[step % len(WORDS)]
    return Deltas(
        epoch=1,
        deltas=[
            Delta(key=request.key, index=step, tokens=[token], finish=finish)
            for request in requests
        ],
    )


def report(load: StreamLoad, cpu: float, wall: float, seen: dict[str, int]) -> dict[str, Any]:
    """The figures; `chunks` and `bytes` are what the client has read."""
    return {
        **asdict(load),
        "chunks": seen["chunks"],
        "bytes_per_chunk": round(seen["bytes"] / seen["chunks"], 1),
        "cpu_seconds": round(cpu, 4),
        "wall_seconds": round(wall, 4),
        "us_per_chunk": round(1e6 * cpu / seen["chunks"], 2),
    }


def byte_tokenizer() -> Tokenizer:
    """A byte-level vocabulary of 256 ids with a two-line chat template."""
    core = Core(models.BPE(vocab=byte_alphabet(), merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    source = "{% for message in messages %}{{ message.content }}{% endfor %}"
    return Tokenizer(core, chat=ChatTemplate(TemplateSet(sources={"default": source})))


def capacity() -> Capacity:
    return Capacity(pages=1 << 16, page_size=16, rows=1024, context=CONTEXT, vocabulary=256)


async def start_client(load: StreamLoad, port: int) -> asyncio.subprocess.Process:
    """The reading side, as a process of its own."""
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "vivace.bench.sse_client",
        str(port),
        str(load.streams),
        BODIES[load.api][0],
        json.dumps(BODIES[load.api][1]),
        stdout=asyncio.subprocess.PIPE,
    )


def main() -> None:
    """Print the figures of every API, one JSON object a line."""
    for api in BODIES:
        sys.stdout.write(json.dumps(measure(api)) + "\n")


if __name__ == "__main__":
    main()
