"""From requests to whole answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence

import msgspec

from vivace.frontend.errors import BadRequest
from vivace.frontend.frontend import Frontend
from vivace.frontend.request_output import RequestOutput, Sink
from vivace.protocol.output import FINISH_ABORT, Finish
from vivace.protocol.request import Request
from vivace.server import prompts as asks_module
from vivace.server.context import Context
from vivace.server.errors import HTTPError, error_body
from vivace.server.limits import LOGPROBS
from vivace.server.pace import Work
from vivace.server.prompts import PromptInput as PromptInput
from vivace.server.prompts import cache_key as cache_key
from vivace.server.sse import event


async def expand(
    context: Context, asks: Iterable[PromptInput], *, stream: bool, arrival: float, client: int
) -> list[Request]:
    """n requests per prompt, within the server's limit; BadRequest. `client`: whose key it is."""
    limit = context.settings.max_batch
    work = asks_module.expand(
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
