"""A completions server over OpenVINO GenAI's continuous batching, for `vivace bench peers`.

OpenVINO's own server is no Python package, so its engine gets this front: token ids in, a
server-sent event for every token out. It runs in the peer's virtual environment, not in ours:

    python openvino_server.py MODEL_FOLDER PORT THREADS PRECISION
"""

from __future__ import annotations

import asyncio
import json
import queue
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import openvino  # pyright: ignore[reportMissingImports]
import openvino_genai as genai  # pyright: ignore[reportMissingImports]
from aiohttp import web

CACHE_GIB = 2
SEQUENCES = 64
STEP_TOKENS = 1024
LARGEST_BODY = 1 << 24


@dataclass(frozen=True)
class QueuedRequest:
    ids: list[int]
    settings: Any
    tell: Callable[[list[int] | None], None]
    """new tokens; None = finished"""


@dataclass
class OpenVinoEngine:
    """The pipeline and its thread; requests come in through a queue."""

    pipeline: Any
    waiting: queue.Queue[QueuedRequest] = field(default_factory=queue.Queue)
    running: dict[int, tuple[Any, QueuedRequest]] = field(default_factory=dict)
    count: int = 0

    def run(self) -> None:
        while True:
            self._admit()
            self.pipeline.step()
            for key, (handle, request) in list(self.running.items()):
                while handle.can_read():
                    for output in handle.read().values():
                        request.tell(list(output.generated_ids))
                if handle.get_status() != genai.GenerationStatus.RUNNING:
                    request.tell(None)
                    del self.running[key]

    def _admit(self) -> None:
        """Everything that waits; sleeps only when nothing runs."""
        while not self.running or not self.waiting.empty():
            request = self.waiting.get()
            ids = openvino.Tensor(np.array([request.ids], np.int64))
            self.running[self.count] = (
                self.pipeline.add_request(self.count, ids, request.settings),
                request,
            )
            self.count += 1


def open_pipeline(folder: str, threads: int, precision: str) -> Any:
    schedule = genai.SchedulerConfig()
    schedule.cache_size = CACHE_GIB
    schedule.max_num_seqs = SEQUENCES
    schedule.enable_prefix_caching = True
    schedule.max_num_batched_tokens = STEP_TOKENS
    schedule.dynamic_split_fuse = True
    properties: dict[str, Any] = {"INFERENCE_NUM_THREADS": threads}
    if precision != "auto":
        properties["INFERENCE_PRECISION_HINT"] = precision
    return genai.ContinuousBatchingPipeline(folder, schedule, "CPU", properties)


def generation_config(body: dict[str, Any]) -> Any:
    settings = genai.GenerationConfig()
    settings.max_new_tokens = body.get("max_tokens", 16)
    settings.ignore_eos = bool(body.get("ignore_eos"))
    settings.do_sample = False
    return settings


def event(body: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n"


def completions(engine: OpenVinoEngine) -> Callable[[web.Request], Any]:
    tokenizer = engine.pipeline.get_tokenizer()

    async def answer(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        ids, loop = body["prompt"], asyncio.get_running_loop()
        news: asyncio.Queue[list[int] | None] = asyncio.Queue()
        engine.waiting.put(
            QueuedRequest(
                ids, generation_config(body), lambda new: notify(loop, news.put_nowait, new)
            )
        )
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        count = 0
        while (new := await news.get()) is not None:
            count += len(new)
            choice = {"index": 0, "text": tokenizer.decode(new), "finish_reason": None}
            await response.write(event({"object": "text_completion", "choices": [choice]}))
        usage = {
            "prompt_tokens": len(ids),
            "completion_tokens": count,
            "total_tokens": len(ids) + count,
        }
        await response.write(event({"choices": [], "usage": usage}) + b"data: [DONE]\n\n")
        return response

    return answer


def notify(loop: asyncio.AbstractEventLoop, tell: Callable[..., None], new: Any) -> None:
    loop.call_soon_threadsafe(tell, new)


async def healthy(_: web.Request) -> web.Response:
    return web.Response(text="ok")


async def serve(folder: str, port: int, threads: int, precision: str) -> None:
    engine = OpenVinoEngine(open_pipeline(folder, threads, precision))
    threading.Thread(target=engine.run, daemon=True).start()
    app = web.Application(client_max_size=LARGEST_BODY)
    app.router.add_post("/v1/completions", completions(engine))
    app.router.add_get("/health", healthy)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]))
