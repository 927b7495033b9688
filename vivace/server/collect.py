"""From requests to answers, collected whole or streamed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence

import msgspec
from aiohttp import web

from vivace.frontend.errors import BadRequest
from vivace.frontend.fairness import Work
from vivace.frontend.request_output import RequestOutput, Sink, join_outputs
from vivace.protocol.messages import FINISH_ABORT, Finish, Request
from vivace.protocol.tasks import HIDDEN
from vivace.requests.limits import HIDDEN_STATES, LOGPROBS
from vivace.requests.prompts import PromptInput, expand
from vivace.server.access import CLIENT
from vivace.server.body import Body
from vivace.server.context import Context
from vivace.server.event_bytes import event
from vivace.server.request_log import RequestLog
from vivace.server.responses import HTTPError, error_body
from vivace.server.sse import STREAM_FORM, Encoder, EventStream, StreamLimits


async def prepare_requests(
    context: Context,
    http: web.Request,
    body: Body,
    params: object,
    inputs: Iterable[PromptInput],
    *,
    stream: bool,
    arrival: float,
    text: str | None = None,
    quiet: bool = False,
) -> list[Request]:
    """n requests per prompt, within the server's limit; BadRequest. The body is needed no longer.

    `params` and `text` (the prompt): for the request log, which has a line for each unless `quiet`.
    """
    work = expand(
        context.frontend,
        inputs,
        limit=context.settings.max_batch,
        stream=stream,
        arrival=arrival,
        client=http[CLIENT],
    )
    requests = await context.slicer.run(work)
    check_logprobs(requests)
    check_hidden_states(requests, context.served.hidden_size)
    body.release()
    if context.request_log.switches.enabled and not quiet:
        context.request_log.log_received(http.path, requests, params, text)
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


def check_hidden_states(requests: Iterable[Request], hidden_size: int) -> None:
    """BadRequest when the hidden states of an answer could take too much memory."""
    wanted = [request for request in requests if request.task == HIDDEN]
    numbers = hidden_size * sum(
        len(request.tokens) + request.sampling.max_new_tokens for request in wanted
    )
    if numbers > HIDDEN_STATES:
        raise BadRequest(
            "return_hidden_states",
            f"the answer could have {numbers} numbers, at most {HIDDEN_STATES} are possible; ask "
            "for fewer tokens, or for fewer answers at once",
        )


NONE_SHOWN: frozenset[int] = frozenset()


def start(
    context: Context,
    requests: Sequence[Request],
    sinks: Iterable[Sink],
    shown: frozenset[int] = NONE_SHOWN,
) -> Work[None]:
    """Send requests to the engine; `sinks` are where their outputs go. `shown`: special tokens
    that are in their text in any case."""
    for request, sink in zip(requests, sinks, strict=True):
        context.frontend.start(request, sink, shown)
        context.pending.sent()
        yield


def finish_error(finish: Finish | None) -> HTTPError | None:
    """The HTTP error a finish stands for; None for a normal end (a client's abort included)."""
    if finish is None or finish.type != FINISH_ABORT or finish.status is None:
        return None
    message = finish.message or "the request was aborted"
    return HTTPError(finish.status, message, param=finish.param, retry_after=finish.retry_after)


def error_event(finish: Finish | None) -> bytes | None:
    """The event of a request that failed after its stream had begun; None for a normal end."""
    http_error = finish_error(finish)
    if http_error is None:
        return None
    status, message = http_error.status, http_error.message
    body = error_body(status, message, param=http_error.param, code=http_error.code)
    return event(msgspec.json.encode(body))


class Collector:
    """Collects the outputs of several requests; done when all ended or one failed."""

    def __init__(self, count: int) -> None:
        self.outputs: list[list[RequestOutput]] = [[] for _ in range(count)]
        self._open = count
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def sink(self, index: int) -> CollectorSink:
        return CollectorSink(self, index)

    def take(self, index: int, output: RequestOutput) -> None:
        """Book one output."""
        self.outputs[index].append(output)
        if output.finish is None or self.done.done():
            return
        self._open -= 1
        http_error = finish_error(output.finish)
        if http_error is not None:
            self.done.set_exception(http_error)
        elif not self._open:
            self.done.set_result(None)


class CollectorSink:
    """The frontend's Sink of one request of a Collector."""

    def __init__(self, collector: Collector, index: int) -> None:
        self._collector = collector
        self._index = index

    def push(self, output: RequestOutput) -> None:
        self._collector.take(self._index, output)


async def complete(
    context: Context,
    requests: list[Request],
    *,
    quiet: bool = False,
    shown: frozenset[int] = NONE_SHOWN,
) -> list[RequestOutput]:
    """Run requests to their ends; HTTPError when one fails, and the others are cancelled then.
    `shown`: as in `start`."""
    collector = Collector(len(requests))
    try:
        sinks = map(collector.sink, range(len(requests)))
        await context.slicer.run(start(context, requests, sinks, shown))
        await collector.done
    except BaseException:
        context.frontend.cancel([request.key for request in requests])
        raise
    return await context.slicer.run(gather_outputs(context, requests, collector.outputs, quiet))


def gather_outputs(
    context: Context, requests: list[Request], parts: list[list[RequestOutput]], quiet: bool
) -> Work[list[RequestOutput]]:
    """Every request's answer as one output, logged unless `quiet`."""
    now = time.monotonic()
    answers: list[RequestOutput] = []
    for request, outputs in zip(requests, parts, strict=True):
        answers.append(join_outputs(outputs))
        if not quiet:
            context.request_log.log_finished(request, answers[-1], now - request.arrival)
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
    shown: frozenset[int] = NONE_SHOWN,
) -> web.StreamResponse:
    """Answer with events, `encoders[i]` for `requests[i]`; a client that leaves cancels them all.
    `shown`: as in `start`.

    Until the first output the answer can still become an error with its own status, unless it is of
    an API that has pings: then it begins when there was silence for long enough.
    """
    settings = context.settings
    limits = StreamLimits(
        high_water=settings.stream_high_water,
        hold_limit=settings.stream_hold_limit,
        stall=settings.stream_stall,
        silence=settings.stream_silence,
    )
    events = EventStream(limits, epilogue, context.slicer)
    try:
        sinks = [
            events.add_sink(encode if quiet else with_log(context, request, encode))
            for request, encode in zip(requests, encoders, strict=True)
        ]
        await context.slicer.run(start(context, requests, sinks, shown))
        form = http.get(STREAM_FORM)
        pings = form is not None and form.ping
        first = await (events.first_within(limits.silence) if pings else events.first())
        http_error = finish_error(first.finish) if first is not None else None
        if http_error is not None:
            raise http_error
        response = await events.run(http, {})
    except BaseException:
        events.close()
        context.frontend.cancel([request.key for request in requests])
        raise
    if events.failed:
        context.frontend.cancel([request.key for request in requests])
    return response


def with_log(context: Context, request: Request, encode: Encoder) -> Encoder:
    """The encoder, with a line in the request log at the end; itself when nobody logs."""
    return (
        LoggedEncoder(context.request_log, request, encode)
        if context.request_log.switches.enabled
        else encode
    )


class LoggedEncoder:
    """An encoder that logs the end of its sequence."""

    def __init__(self, request_log: RequestLog, request: Request, encode: Encoder) -> None:
        self.encode_text = encode.encode_text
        self._log = request_log
        self._request = request
        self._encode = encode

    def __call__(self, output: RequestOutput) -> bytes:
        self._log_end(output)
        return self._encode(output)

    def parts(self, output: RequestOutput) -> Work[list[bytes]] | None:
        work = self._encode.parts(output)
        if work is not None:
            self._log_end(output)
        return work

    def _log_end(self, output: RequestOutput) -> None:
        if output.finish is not None:
            self._log.log_finished(self._request, output, time.monotonic() - self._request.arrival)
