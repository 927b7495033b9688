"""POST /generate, SGLang's own API."""

from __future__ import annotations

import time

from aiohttp import web

from vivace.frontend.request_output import RequestOutput
from vivace.frontend.sglang_output import SGLangOutput
from vivace.protocol.request import Request
from vivace.server.auth import CLIENT
from vivace.server.body import Body
from vivace.server.collect import complete, expand
from vivace.server.context import Context
from vivace.server.native_asks import read_asks
from vivace.server.native_events import GenerateEvents
from vivace.server.native_logprobs import NativeLogprobs
from vivace.server.pace import Work
from vivace.server.parts import json_parts
from vivace.server.reader import Reader
from vivace.server.schema import GenerateRequest
from vivace.server.streaming import stream

READER = Reader(GenerateRequest)


async def generate(context: Context, http: web.Request, body: Body) -> web.StreamResponse:
    """One answer, or a list of them when the prompts came as a list or n > 1."""
    arrival = time.monotonic()
    asked = await READER.read(context, body)
    asks, batch = await read_asks(context, asked)
    requests = await expand(
        context, asks, stream=asked.stream, arrival=arrival, client=http[CLIENT]
    )
    body.release()
    several = batch or len(requests) > 1
    quiet = asked.no_logs
    if not quiet:
        text = asked.text if isinstance(asked.text, str) else None
        context.request_log.received(http.path, requests, asked, text)
    answers = [
        answer_of(context, asked, request, index if several else None)
        for index, request in enumerate(requests)
    ]
    if asked.stream:
        encoders = [
            GenerateEvents(
                request,
                answer,
                disjoint=context.settings.stream_output,
                prompt_ids=asked.return_prompt_token_ids,
            )
            for request, answer in zip(requests, answers, strict=True)
        ]
        return await stream(context, http, requests, encoders, quiet=quiet)
    pieces = await complete(context, requests, quiet=quiet)
    shown = await context.pace.run(finished(asked, requests, answers, pieces))
    return await json_parts(http, list_of(shown) if several else shown[0])


def answer_of(
    context: Context, asked: GenerateRequest, request: Request, index: int | None
) -> SGLangOutput:
    """Where the pieces of a request become SGLang's result."""
    with_text = asked.return_text_in_logprobs
    return SGLangOutput(
        request,
        weight_version=context.served.weight_version,
        index=index,
        token_text=context.tokenizer("return_text_in_logprobs").token_text if with_text else None,
        disjoint=asked.stream and context.settings.stream_output,
    )


def list_of(results: list[list[bytes]]) -> list[bytes]:
    """A JSON list of what is JSON in parts."""
    parts = [b"["]
    for number, result in enumerate(results):
        parts += [b",", *result] if number else result
    return [*parts, b"]"]


def finished(
    asked: GenerateRequest,
    requests: list[Request],
    answers: list[SGLangOutput],
    pieces: list[RequestOutput],
) -> Work[list[list[bytes]]]:
    """Each result as JSON in parts, with what only some requests ask for."""
    shown: list[list[bytes]] = []
    for request, answer, piece in zip(requests, answers, pieces, strict=True):
        answer.add(piece)
        logprobs = NativeLogprobs(answer)
        yield from logprobs.add(piece)
        body = answer.body(logprobs=False)
        if asked.return_prompt_token_ids:
            body["meta_info"]["prompt_token_ids"] = request.tokens
        shown.append(logprobs.shown_in(body))
        yield
    return shown
