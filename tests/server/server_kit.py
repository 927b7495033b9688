"""A real server on a real socket, in a thread of its own, over a scripted engine."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import threading
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec
from aiohttp import web, web_app
from tokenizers import Tokenizer as Core
from tokenizers import decoders, models, pre_tokenizers, processors

from vivace.checkpoint.classifier import IDENTITY, Classifier
from vivace.engine.oracle import pack_logprobs
from vivace.engine.result_processor import Aborts
from vivace.frontend.chat_template import ChatTemplate, TemplateSet
from vivace.frontend.engine_status import EngineView
from vivace.frontend.frontend import Frontend
from vivace.frontend.served_model import ServedModel
from vivace.frontend.tokenizer import Tokenizer
from vivace.frontend.tokenizer_core import byte_alphabet
from vivace.protocol.messages import (
    ABORTED,
    Cancel,
    Capacity,
    Command,
    Delta,
    Deltas,
    EngineState,
    Finish,
    FlushCache,
    PromptLogprobs,
    Ready,
    Reply,
    Request,
    TokenLogprob,
)
from vivace.protocol.metrics import Histogram, Metrics
from vivace.protocol.tasks import (
    EMBEDDING,
    GENERATE,
    HIDDEN,
    HIDDEN_STATES,
    STEPS,
    Embed,
    Payload,
)
from vivace.server.app import make_app, start_site, stop_site
from vivace.server.context import CONTEXT as CONTEXT_KEY
from vivace.server.settings import ServerSettings
from vivace.tool_servers.servers import ToolServers

EOS = 256
BOS = 257
VOCABULARY = 258
CONTEXT = 512
MODEL = "toy"
CLASSIFIER = Classifier(labels=tuple("abcd"), independent=False, activation=IDENTITY)
"""one label for each number of a scripted vector"""
PROSE = 'The quick brown fox jumps over the lazy dog. Ünïcödé ✓ 日本語 "quoted"\n\ttab. '
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def make_tokenizer(
    template: str = TEMPLATE, *, begin: bool = False, special: Sequence[str] = ()
) -> Tokenizer:
    """Every byte is a token; 256 ends, 257 begins (every text, with `begin`); then come further
    special tokens."""
    alphabet = byte_alphabet()
    core = Core(models.BPE(vocab=alphabet, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens(["<eos>", "<bos>", *special])
    if begin:
        core.post_processor = processors.TemplateProcessing(
            single="<bos> $A", special_tokens=[("<bos>", BOS)]
        )
    return Tokenizer(core, eos_ids=[EOS], bos_id=BOS, chat=load_template(template))


@functools.cache
def load_template(template: str) -> ChatTemplate:
    """Loaded and tried out once: each server starts a process for it with its first conversation,
    if it has any."""
    return ChatTemplate(TemplateSet(sources={"default": template}))


Script = Callable[[Request], list[int]]


def prose(request: Request) -> list[int]:
    """The same words for every request, shifted by its seed."""
    data = PROSE.encode()
    start = request.sampling.seed % 7
    return [data[(start + i) % len(data)] for i in range(CONTEXT)]


@dataclass
class ScriptedEngine:
    """Answers each request with its script, a token per turn, `pause` seconds apart."""

    script: Script = prose
    pause: float = 0.0
    chunk: int = 1
    refuse: Finish | None = None
    silent: bool = False
    frontend: Frontend | None = None
    requests: list[Request] = field(default_factory=list)
    cancelled: list[int] = field(default_factory=list)
    commands: list[Any] = field(default_factory=list)
    finished: list[int] = field(default_factory=list)
    state: EngineState | None = None
    running: dict[int, asyncio.Task[None]] = field(default_factory=dict)
    rids: dict[int, str] = field(default_factory=dict)
    aborts: Aborts = field(default_factory=Aborts)

    def send(self, message: Any) -> None:
        if isinstance(message, Request) and self.aborts.concern(message):
            self._feed(Delta(key=message.key, index=0, tokens=[], finish=ABORTED))
        elif isinstance(message, Request):
            self.requests.append(message)
            self.rids[message.key] = message.rid
            task = asyncio.get_running_loop().create_task(self._run(message))
            self.running[message.key] = task
        elif isinstance(message, Cancel):
            self._cancel(message)
        elif isinstance(message, Command):
            self.commands.append(message.body)
            asyncio.get_running_loop().call_soon(self._answer, message)

    def _cancel(self, message: Cancel) -> None:
        self.aborts.add(message)
        if (prefix := message.rid_prefix) is not None:
            for key in [key for key in self.running if self.rids[key].startswith(prefix)]:
                self._stop(key)
                self._feed(
                    Delta(key=key, index=0, tokens=[], finish=Finish(type="abort")), late=True
                )
        for key in message.keys:
            self.cancelled.append(key)
            self._stop(key)

    def _stop(self, key: int) -> None:
        task = self.running.pop(key, None)
        if task is not None:
            task.cancel()

    def _feed(self, delta: Delta, *, late: bool = False) -> None:
        assert self.frontend is not None
        if late:  # an abort comes with the index the frontend has got to
            state = self.frontend._states.get(delta.key)
            if state is None:
                return
            delta = Delta(key=delta.key, index=len(state.ledger), tokens=[], finish=delta.finish)
        self.frontend.feed(Deltas(epoch=1, deltas=[delta]))

    async def _run(self, request: Request) -> None:
        if self.silent:
            return
        if self.refuse is not None:
            await asyncio.sleep(self.pause)
            self._feed(Delta(key=request.key, index=0, tokens=[], finish=self.refuse))
            return
        if isinstance(request.task, Embed):
            await asyncio.sleep(self.pause)
            self._feed(embedding_delta(request, request.task))
            self.running.pop(request.key, None)
            self.finished.append(request.key)
            return
        most = request.sampling.max_new_tokens
        tokens = self.script(request)[:most]
        stops = set(request.sampling.stop_token_ids)
        if not request.sampling.ignore_eos:
            stops.add(EOS)
        end = next((i for i, token in enumerate(tokens) if token in stops), None)
        if end is not None:
            tokens = tokens[: end + 1]
            finish = Finish(type="stop", matched=tokens[-1])
        else:
            finish = Finish(type="length", length=len(tokens))
        for part in make_prompt_parts(request):
            delta = Delta(key=request.key, index=0, tokens=[], prompt_logprobs=part)
            self._feed(delta)
        for payload in make_states(request, tokens):
            self._feed(Delta(key=request.key, index=0, tokens=[], payload=payload))
        for index in range(0, max(1, len(tokens)), self.chunk):
            await asyncio.sleep(self.pause)
            part = tokens[index : index + self.chunk]
            last = index + self.chunk >= len(tokens)
            self._feed(self._delta(request, index, part, finish if last else None))
        self.running.pop(request.key, None)
        self.finished.append(request.key)

    def _delta(
        self, request: Request, index: int, tokens: list[int], finish: Finish | None
    ) -> Delta:
        wanted = request.logprobs
        logprobs = None
        if wanted is not None:
            logprobs = [entry(token, wanted.top, wanted.token_ids) for token in tokens]
        return Delta(
            key=request.key,
            index=index,
            tokens=tokens,
            finish=finish,
            cached_tokens=3,
            logprobs=logprobs,
        )

    def _answer(self, command: Command) -> None:
        assert self.frontend is not None
        busy = bool(self.running)
        if isinstance(command.body, FlushCache):
            message = "requests are running" if busy else ""
            self.frontend.feed(Reply(ticket=command.ticket, ok=not busy, message=message))
            return
        self.frontend.feed(Reply(ticket=command.ticket, ok=True, state=self.state or some_state()))


def make_prompt_parts(request: Request) -> list[PromptLogprobs]:
    """The log-probabilities of the prompt that were asked for, of three tokens at a time."""
    wanted = request.logprobs
    if wanted is None or wanted.start < 0:
        return []
    rows = [entry(token, wanted.top, wanted.token_ids) for token in request.tokens]
    first, prompt = max(1, wanted.start), len(rows)
    return [pack_logprobs(at, rows[at : at + 3]) for at in range(first, prompt, 3)]


HIDDEN_SIZE = 4


def make_vector(tokens: list[int]) -> list[float]:
    """A made-up vector of a text: how many tokens it has, and of what."""
    return [float(len(tokens)), float(sum(tokens)), 0.5, -1.25]


def embedding_delta(request: Request, task: Embed) -> Delta:
    numbers = make_vector(request.tokens)[: task.dimensions or HIDDEN_SIZE]
    shape = (len(numbers),) if task.pooling != STEPS else (2, 2)
    payload = Payload(EMBEDDING, "float32", shape, array("f", numbers).tobytes())
    finish = Finish(type="length", length=0)
    return Delta(
        key=request.key, index=0, tokens=[], finish=finish, payload=payload, cached_tokens=3
    )


def make_states(request: Request, tokens: list[int]) -> list[Payload]:
    """A made-up hidden state of each token but the last, the prompt's before the others': its
    position, and three zeros; in parts of three."""
    if request.task != HIDDEN:
        return []
    count = len(request.tokens) + max(0, len(tokens) - 1)
    parts: list[Payload] = []
    for start in range(0, count, 3):
        end = min(count, start + 3)
        rows = array("f", [x for at in range(start, end) for x in (at, 0, 0, 0)])
        shape = (end - start, HIDDEN_SIZE)
        parts.append(Payload(HIDDEN_STATES, "float32", shape, rows.tobytes(), start))
    return parts


def entry(token: int, top: int, chosen: tuple[int, ...]) -> TokenLogprob:
    """A made-up log-probability: minus the id over 1000."""
    return TokenLogprob(
        token,
        -token / 1000,
        [(-rank / 10, (token + rank) % 256) for rank in range(top)] if top else None,
        [(-i / 1000, i) for i in chosen] if chosen else None,
    )


def some_state() -> EngineState:
    return EngineState(
        running=1,
        waiting=2,
        total_tokens=1000,
        used_tokens=250,
        cached_tokens=100,
        last_gen_throughput=42.5,
        steps=7,
        audit=[],
        metrics=Metrics(
            gauges={"num_running_reqs": 1.0, "token_usage": 0.25},
            counters={"prompt_tokens_total": 12.0},
            histograms={"queue_time_seconds": Histogram([0.1, 1.0, float("inf")], [1, 2, 3], 4.5)},
        ),
        memory={"weight": 1.5},
        executor="scripted",
        pid=99,
    )


@dataclass
class Running:
    """A server that runs; everything of the loop's is touched through `call`."""

    url: str
    port: int
    engine: ScriptedEngine
    frontend: Frontend
    app: web.Application
    loop: asyncio.AbstractEventLoop
    runner: web.AppRunner

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        async def run() -> Any:
            return function(*args)

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(10)

    def run(self, coroutine: Any, timeout: float = 30) -> Any:
        """Run a client coroutine in the test's own loop."""

        async def bounded() -> Any:
            async with asyncio.timeout(timeout):
                return await coroutine

        return asyncio.run(bounded())

    def until(self, condition: Callable[[], bool], timeout: float = 10) -> None:
        """Wait until something is true on the server's loop."""

        async def wait() -> None:
            async with asyncio.timeout(timeout):
                while not condition():
                    await asyncio.sleep(0.01)

        asyncio.run_coroutine_threadsafe(wait(), self.loop).result(timeout + 1)


@contextlib.contextmanager
def running_server(
    settings: ServerSettings | None = None,
    engine: ScriptedEngine | None = None,
    *,
    ready: bool = True,
    tokenizer: Tokenizer | bool = True,
    every_task: bool = False,
    tool_servers: ToolServers | None = None,
    **served: Any,
) -> Iterator[Running]:
    """Start a server on a free port; stop it at the end. With `every_task` no route is refused,
    whichever task it is of."""
    settings = settings or ServerSettings()
    engine = engine or ScriptedEngine()
    model = ServedModel(
        **{
            "name": MODEL,
            "path": "/models/toy",
            "tokenizer_path": "/models/toy",
            "context": CONTEXT,
            "vocabulary": VOCABULARY,
            "model_type": "llama",
            "architectures": ("LlamaForCausalLM",),
            "eos_ids": (EOS,),
            "hidden_size": HIDDEN_SIZE,
            "returns_hidden_states": True,
            "task": Embed() if every_task else GENERATE,
            "classifier": CLASSIFIER if every_task else None,
            **served,
        }
    )
    if isinstance(tokenizer, bool):
        tokenizer = make_tokenizer() if tokenizer else None  # type: ignore[assignment]
    frontend = Frontend(model, tokenizer, [EngineView(engine.send)])  # type: ignore[arg-type]
    engine.frontend = frontend
    app = make_app(frontend, settings, tool_servers=tool_servers)
    if every_task:
        object.__setattr__(app[CONTEXT_KEY], "require_task", lambda task: None)
    sock = socket.create_server(("127.0.0.1", 0))
    port = sock.getsockname()[1]
    loop = asyncio.new_event_loop()
    started = threading.Event()
    stop = asyncio.Event()
    runners: list[web.AppRunner] = []

    async def main() -> None:
        if ready:
            frontend.feed(Ready(epoch=1, capacity=capacity(model.context)))
        runner = await start_site(app, sock)
        runners.append(runner)
        started.set()
        await stop.wait()
        await stop_site(runner)
        for task in list(engine.running.values()):
            task.cancel()
        frontend.close()

    thread = threading.Thread(target=lambda: loop.run_until_complete(main()), daemon=True)
    thread.start()
    assert started.wait(20)
    try:
        yield Running(f"http://127.0.0.1:{port}", port, engine, frontend, app, loop, *runners)
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(20)
        assert not thread.is_alive()
        loop.close()
        # aiohttp remembers applications here, and with them the process that renders templates
        web_app._cached_build_middleware.cache_clear()


def capacity(context: int) -> Capacity:
    return Capacity(pages=100, page_size=10, rows=8, context=context, vocabulary=VOCABULARY)


@dataclass
class Answer:
    status: int
    headers: Any
    text: str
    json: Any


async def fetch(url: str, method: str, path: str, **options: Any) -> Answer:
    """One HTTP exchange."""
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, url + path, **options) as response,
    ):
        text = await response.text()
        parsed = None
        if response.content_type == "application/json":
            parsed = await response.json()
        return Answer(response.status, response.headers, text, parsed)


def ask(
    server: Running, path: str, body: Any = None, method: str = "POST", **options: Any
) -> Answer:
    """One HTTP exchange from synchronous test code; `body` bytes are sent as they are."""
    if isinstance(body, bytes):
        options["data"] = body
        options["headers"] = {"Content-Type": "application/json", **options.get("headers", {})}
    elif body is not None:
        options["json"] = body
    return server.run(fetch(server.url, method, path, **options))


def events(text: str) -> list[str]:
    """The data of every event of an SSE body."""
    found = []
    for block in text.split("\n\n"):
        if block:
            assert block.startswith("data: "), block
            found.append(block[len("data: ") :])
    return found


def documents(text: str) -> list[Any]:
    """What the lines of a stream hold as JSON, in whichever API's form: events, or lines of it."""
    lines = (line.removeprefix("data: ") for line in text.split("\n"))
    return [msgspec.json.decode(line) for line in lines if line.startswith("{")]


def refusal(told: Any) -> tuple[str, str]:
    """(the field, the whole message) of an error's body, in whichever API's form."""
    error = told.get("error", told)
    message = error if isinstance(error, str) else error["message"]
    return told.get("param") or message.partition(": ")[0], message


class Wire:
    """A transport that keeps what is written; `unsent` bytes are still in its buffer."""

    def __init__(self) -> None:
        self.data = b""
        self.unsent = 0
        self.closing = False

    def write(self, data: bytes) -> None:
        self.data += data

    def is_closing(self) -> bool:
        return self.closing

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def abort(self) -> None:
        self.closing = True


def unchunk(data: bytes) -> bytes:
    """The body of a chunked answer (without the last, empty chunk, which aiohttp writes)."""
    body = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        length = int(size, 16)
        assert length > 0, "an empty chunk would end the answer"
        body += data[:length]
        assert data[length : length + 2] == b"\r\n"
        data = data[length + 2 :]
    return body
