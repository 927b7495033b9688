"""POST /encode, SGLang's own API for embeddings; and what /v1/embeddings does like it."""

from __future__ import annotations

import time
from collections.abc import Iterable

import msgspec
from aiohttp import web

from vivace.frontend.errors import BadRequest
from vivace.frontend.fairness import Work
from vivace.frontend.fields import refuse_unsupported
from vivace.frontend.request_output import RequestOutput
from vivace.frontend.sglang_output import SGLangOutput
from vivace.protocol.messages import Request
from vivace.protocol.tasks import Payload
from vivace.requests.embeddings import ENCODE_REFUSED, EncodeRequest, embedding_inputs
from vivace.requests.prompts import PromptInput
from vivace.server.body import Body, BodyReader
from vivace.server.collect import complete, prepare_requests
from vivace.server.context import Context
from vivace.server.generate import json_list, read_prompts
from vivace.server.responses import json_parts
from vivace.server.schema import GenerateMeta

READER = BodyReader(EncodeRequest)


class EncodeAnswer(msgspec.Struct, kw_only=True):
    """Answer of /encode: one object, or a list for a batch."""

    embedding: list[float | list[float]]
    """A vector, or a list for each step of a text."""
    meta_info: GenerateMeta


async def encode(context: Context, http: web.Request, body: Body) -> web.StreamResponse:
    """One vector, or a list of them when the prompts came as a list."""
    arrival = time.monotonic()
    params = await READER.read(context, body)
    refuse_unsupported(params, ENCODE_REFUSED)
    prompts, batch, field = await read_prompts(context, params)
    inputs = embedding_inputs(params, context.served, prompts, batch, field)
    text = params.text if isinstance(params.text, str) else None
    requests, outputs = await embed(context, http, body, params, inputs, arrival, text)
    parts = await context.slicer.run(encode_answers(context, params, requests, outputs))
    return await json_parts(http, json_list(parts) if batch else parts[0])


async def embed(
    context: Context,
    http: web.Request,
    body: Body,
    params: object,
    inputs: Iterable[PromptInput],
    arrival: float,
    text: str | None = None,
) -> tuple[list[Request], list[RequestOutput]]:
    """The requests, and the output of each, which has its vector."""
    requests = await prepare_requests(
        context, http, body, params, inputs, stream=False, arrival=arrival, text=text
    )
    outputs = await complete(context, requests)
    for output in outputs:
        read_vector(output)
    return requests, outputs


def read_vector(output: RequestOutput) -> Payload:
    """BadRequest when the request was aborted before its vector was there."""
    if output.embedding is None:
        raise BadRequest("", "the request was aborted")
    return output.embedding


def encode_answers(
    context: Context,
    params: EncodeRequest,
    requests: list[Request],
    outputs: list[RequestOutput],
) -> Work[list[list[bytes]]]:
    """Each answer as JSON."""
    parts: list[list[bytes]] = []
    for request, output in zip(requests, outputs, strict=True):
        answer = SGLangOutput(request, weight_version=context.served.weight_version)
        answer.add(output)
        body = answer.embedding()
        if params.return_prompt_token_ids:
            body["meta_info"]["prompt_token_ids"] = request.tokens
        parts.append([msgspec.json.encode(body)])
        yield
    return parts
