"""From requests to answers, collected whole or streamed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence

import msgspec
from aiohttp import web

from vivace.frontend.errors import BadRequest
from vivace.frontend.frontend import Frontend
from vivace.frontend.pace import Work
from vivace.frontend.request_output import RequestOutput, Sink
from vivace.protocol.output import FINISH_ABORT, Finish
from vivace.protocol.request import Request
from vivace.requests import prompts
from vivace.requests.limits import LOGPROBS
from vivace.requests.prompts import PromptInput as PromptInput
from vivace.requests.prompts import cache_key as cache_key
from vivace.server.context import Context
from vivace.server.request_log import RequestLog
from vivace.server.responses import HTTPError, error_body
from vivace.server.sse import Encoder, EventStream, StreamLimits, event


async def expand(
    context: Context, asks: Iterable[PromptInput], *, stream: bool, arrival: float, client: int
) -> list[Request]:
    """n requests per prompt, within the server's limit; BadRequest. `client`: whose key it is."""
    limit = context.settings.max_batch
    work = prompts.expand(
        context.frontend, asks, limit=limit, stream=stream, arrival=arrival, client=client
    )
    requests = await context.pace.run(work)
    check_logprobs(requests)
    return requests


def check_logprobs(requests: Iterable[Request]) -> None:
    """BadRequest when the log-probabilities of an answer could take too much memory."""
    numbers = 0
    for request in requests:
        options = request.logprobs
        if options is not None:
            prompt = len(request.tokens) - options.start if options.start >= 0 else 0
            tokens = prompt + request.sampling.max_new_tokens
            numbers += tokens * (1 + options.top + len(options.token_ids))
    if numbers > LOGPROBS:
        raise BadRequest(
            "top_logprobs_num",
            f"the answer could have {numbers} log-probabilities, at most {LOGPROBS} are possible; "
            "ask for fewer, for fewer tokens (max_new_tokens, logprob_start_len), or for fewer "
            "answers at once",
        )


def start(frontend: Frontend, requests: Sequence[Request], sinks: Iterable[Sink]) -> Work[None]:
    """Send requests to the engine; `sinks` are where their pieces go."""
    for request, sink in zip(requests, sinks, strict=True):
        frontend.start(request, sink)
        yield


def refusal_of(finish: Finish | None) -> HTTPError | None:
    """The HTTP error a finish stands for; None for a normal end (a client's abort included)."""
    if finish is None or finish.type != FINISH_ABORT or finish.status is None:
        return None
    message = finish.message or "the request was aborted"
    return HTTPError(finish.status, message, retry_after=finish.retry_after)


def failure(finish: Finish | None) -> bytes | None:
    """The event of a request that failed after its stream had begun; None for a normal end."""
    refusal = refusal_of(finish)
    if refusal is None:
        return None
    body = error_body(refusal.status, refusal.message, code=refusal.code)
    return event(msgspec.json.encode(body))


class Collector:
    """Collects the pieces of several requests; done when all ended or one failed."""

    def __init__(self, count: int) -> None:
        self.pieces: list[list[RequestOutput]] = [[] for _ in range(count)]
        self._open = count
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def sink(self, index: int) -> CollectorSink:
        return CollectorSink(self, index)

    def take(self, index: int, piece: RequestOutput) -> None:
        """Book one piece."""
        self.pieces[index].append(piece)
        if piece.finish is None or self.done.done():
            return
        self._open -= 1
        refusal = refusal_of(piece.finish)
        if refusal is not None:
            self.done.set_exception(refusal)
        elif not self._open:
            self.done.set_result(None)


class CollectorSink:
    """The frontend's Sink of one request of a Gathering."""

    def __init__(self, gathering: Collector, index: int) -> None:
        self._gathering = gathering
        self._index = index

    def push(self, piece: RequestOutput) -> None:
        self._gathering.take(self._index, piece)


def join(pieces: list[RequestOutput]) -> RequestOutput:
    """All pieces of a request as one."""
    if len(pieces) == 1:
        return pieces[0]
    return msgspec.structs.replace(
        pieces[-1],
        text="".join(piece.text for piece in pieces),
        tokens=[token for piece in pieces for token in piece.tokens],
        logprobs=_chain([piece.logprobs for piece in pieces]),
        prompt_logprobs=pieces[0].prompt_logprobs,
    )


def _chain(lists: list[list | None]) -> list | None:
    present = [items for items in lists if items is not None]
    return [item for items in present for item in items] if present else None


async def complete(
    context: Context, requests: list[Request], *, quiet: bool = False
) -> list[RequestOutput]:
    """Run requests to their ends; Refusal when one fails, and the others are cancelled then."""
    gathering = Collector(len(requests))
    try:
        sinks = map(gathering.sink, range(len(requests)))
        await context.pace.run(start(context.frontend, requests, sinks))
        await gathering.done
    except BaseException:
        context.frontend.cancel([request.key for request in requests])
        raise
    return await context.pace.run(joined(context, requests, gathering.pieces, quiet))


def joined(
    context: Context, requests: list[Request], parts: list[list[RequestOutput]], quiet: bool
) -> Work[list[RequestOutput]]:
    """Every request's answer as one piece, logged unless `quiet`."""
    now = time.monotonic()
    answers: list[RequestOutput] = []
    for request, pieces in zip(requests, parts, strict=True):
        answers.append(join(pieces))
        if not quiet:
            context.request_log.finished(request, answers[-1], now - request.arrival)
        yield
    return answers


async def stream(
    context: Context,
    http: web.Request,
    requests: list[Request],
    encoders: Sequence[Encoder],
    *,
    epilogue: Callable[[], bytes] = bytes,
    quiet: bool = False,
) -> web.StreamResponse:
    """Answer with events, `encoders[i]` for `requests[i]`; a client that leaves cancels them all.

    Until the first piece the answer can still become an error with its own status.
    """
    settings = context.settings
    limits = StreamLimits(
        settings.stream_high_water, settings.stream_hold_limit, settings.stream_stall
    )
    events = EventStream(limits, epilogue, context.pace)
    try:
        outlets = [
            events.outlet(encode if quiet else logged(context, request, encode))
            for request, encode in zip(requests, encoders, strict=True)
        ]
        await context.pace.run(start(context.frontend, requests, outlets))
        refusal = refusal_of((await events.first()).finish)
        if refusal is not None:
            raise refusal
        response = await events.run(http, {})
    except BaseException:
        context.frontend.cancel([request.key for request in requests])
        raise
    if events.failed:
        context.frontend.cancel([request.key for request in requests])
    return response


def logged(context: Context, request: Request, encode: Encoder) -> Encoder:
    """The encoder, with a line in the request log at the end; itself when nobody logs."""
    return Logged(context.request_log, request, encode) if context.request_log.enabled else encode


class Logged:
    """An encoder that logs the end of its sequence."""

    def __init__(self, request_log: RequestLog, request: Request, encode: Encoder) -> None:
        self.encode_text = encode.encode_text
        self._log = request_log
        self._request = request
        self._encode = encode

    def __call__(self, piece: RequestOutput) -> bytes:
        self._look_at(piece)
        return self._encode(piece)

    def parts(self, piece: RequestOutput) -> Work[list[bytes]] | None:
        work = self._encode.parts(piece)
        if work is not None:
            self._look_at(piece)
        return work

    def _look_at(self, piece: RequestOutput) -> None:
        if piece.finish is not None:
            self._log.finished(self._request, piece, time.monotonic() - self._request.arrival)
