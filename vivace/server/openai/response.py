"""From requests to an OpenAI answer, streamed or whole: what both endpoints have in common."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import msgspec
from aiohttp import web

from vivace.frontend.request_output import RequestOutput
from vivace.frontend.tokenizer import Tokenizer
from vivace.protocol.request import Request
from vivace.server.collect import complete
from vivace.server.context import Context
from vivace.server.errors import json_response
from vivace.server.openai.chunks import Shape
from vivace.server.openai.schema import (
    ChatAnswer,
    ChatChoice,
    Choice,
    CompletionAnswer,
    CompletionChoice,
    SamplingFields,
)
from vivace.server.openai.usage import Tally, sglext
from vivace.server.pace import Work
from vivace.server.sse import Encode
from vivace.server.streaming import stream


@dataclass(frozen=True, kw_only=True)
class Form:
    """What one endpoint's answers look like.

    `chunks` makes the encoder of the index-th choice of a stream, `choice` the index-th choice of a
    whole answer and `details` its log-probabilities, `answer` is what holds the choices. `kind` is
    the `object` of a stream's events.
    """

    kind: str
    logprobs: bool
    chunks: Callable[[Shape, int], Encode]
    choice: Callable[[int, RequestOutput], ChatChoice | CompletionChoice]
    details: Callable[[RequestOutput], Work[msgspec.Raw]]
    answer: type[ChatAnswer] | type[CompletionAnswer]
    service_tier: str | None = None


async def answer(
    context: Context,
    http: web.Request,
    asked: SamplingFields,
    requests: list[Request],
    form: Form,
    *,
    rid: str,
    samples: int,
    tokenizer: Tokenizer,
) -> web.StreamResponse:
    """Run the requests and answer; `samples` of them share a prompt."""
    tally = Tally(samples, context.settings.cache_report)
    created = int(time.time())
    model = context.served.name
    if asked.stream:
        options = asked.stream_options
        shape = Shape(
            rid=rid,
            kind=form.kind,
            created=created,
            model=model,
            tokenizer=tokenizer,
            tally=tally,
            include_usage=bool(options and options.include_usage),
            continuous_usage=bool(options and options.continuous_usage_stats),
            token_ids=asked.return_token_ids,
            logprobs=form.logprobs,
            cached_details=asked.return_cached_tokens_details,
            service_tier=form.service_tier,
        )
        encoders = [form.chunks(shape, index) for index in range(len(requests))]
        return await stream(context, http, requests, encoders, epilogue=shape.epilogue)
    pieces = await complete(context, requests)
    for index, piece in enumerate(pieces):
        tally.note(index, piece)
    choices = await context.pace.run(finished(form, pieces))
    whole = form.answer(
        id=rid,
        created=created,
        model=model,
        choices=cast(Any, choices),
        usage=tally.usage(),
        metadata={"weight_version": context.served.weight_version},
    )
    if asked.return_cached_tokens_details:
        whole.sglext = sglext(tally)
    if form.service_tier is not None:
        whole.service_tier = form.service_tier
    return json_response(whole)


def finished(form: Form, pieces: list[RequestOutput]) -> Work[msgspec.Raw]:
    """The choices of a whole answer as JSON."""
    shown: list[bytes] = []
    for index, piece in enumerate(pieces):
        choice = form.choice(index, piece)
        if form.logprobs:
            choice.logprobs = cast(Any, (yield from form.details(piece)))
        shown.append(msgspec.json.encode(choice, enc_hook=str))
        yield
    return msgspec.Raw(b"[%b]" % b",".join(shown))


def add_ids(choice: Choice, asked: SamplingFields, piece: RequestOutput, request: Request) -> None:
    """The token ids that the request asks for."""
    if asked.return_token_ids:
        choice.token_ids = piece.tokens
    if asked.return_token_ids or asked.return_prompt_token_ids:
        choice.prompt_token_ids = request.tokens
