"""POST /v1/rerank: documents by how well they answer a query."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec
from aiohttp import web

from vivace.frontend.errors import BadRequest
from vivace.frontend.fields import refuse_unsupported
from vivace.frontend.sglang_output import SGLangOutput
from vivace.frontend.validation import check_prompt
from vivace.requests.limits import PerPrompt
from vivace.requests.scores import NO_TEMPLATE, Judgment, check_texts, yes_and_no
from vivace.server.body import Body, BodyReader
from vivace.server.collect import complete, prepare_requests
from vivace.server.context import Context
from vivace.server.generate import check_count
from vivace.server.openai.params import check_model
from vivace.server.openai.schema import DEFAULT_MODEL
from vivace.server.responses import encode_list, json_response
from vivace.server.scores import encode, labeled_inputs, own_names, read_scores


class RerankRequest(msgspec.Struct, kw_only=True):
    """POST /v1/rerank."""

    query: str
    documents: PerPrompt[str]
    instruct: str | None = None
    """The task, for models that are asked in words."""
    top_n: int | None = None
    """Only so many of them, the best ones."""
    return_documents: bool = True
    model: str = DEFAULT_MODEL
    rid: str | PerPrompt[str] | None = None
    user: str | None = None
    """For the request log."""
    # Refused with a reason when set (RERANK_REFUSED).
    max_chunks_per_doc: Any = None
    rank_fields: Any = None
    truncation: Any = None


RERANK_REFUSED: dict[str, str] = {
    "max_chunks_per_doc": "documents are not cut; one that is too long is refused",
    "rank_fields": "documents are texts",
    "truncation": "documents are not cut; one that is too long is refused",
}


class RerankResult(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One document, the best first. `index`: its place among those that were sent."""

    score: float
    index: int
    document: str | None = None
    meta_info: dict[str, Any] | None = None


READER = BodyReader(RerankRequest)


async def rerank(context: Context, http: web.Request, body: Body) -> web.StreamResponse:
    """A list with the documents' scores, as SGLang answers."""
    arrival = time.monotonic()
    params = await READER.read(context, body)
    check(context, params)
    tokenizer = context.tokenizer("query")
    if tokenizer.chat is None:
        raise BadRequest("", NO_TEMPLATE)
    judgment = Judgment(tokenizer.chat, params.query, params.instruct)
    rendered = await tokenizer.chat.render_async(judgment.messages, variables=judgment.variables)
    await check_frame(context, params, judgment.texts(rendered, [""]))
    texts = judgment.texts(rendered, params.documents)
    prompts = await encode(context, texts, "documents", special=False)
    labels = [yes_and_no(tokenizer)] * len(prompts)
    with own_names():
        inputs = labeled_inputs(params, prompts, labels, "documents")
        requests = await prepare_requests(
            context, http, body, params, inputs, stream=False, arrival=arrival
        )
    outputs = await complete(context, requests)
    scores = [yes for yes, _ in read_scores(outputs, apply_softmax=True)]
    metas: list[dict[str, Any]] = []
    for request, output in zip(requests, outputs, strict=True):
        answer = SGLangOutput(request, weight_version=context.served.weight_version)
        answer.add(output)
        metas.append(answer.body(lists=False)["meta_info"])
    results = best_first(params, scores, metas)
    return json_response(await context.slicer.run(encode_list(results)))


def check(context: Context, params: RerankRequest) -> None:
    """Refuse what this endpoint cannot do."""
    check_model(context, params.model)
    refuse_unsupported(params, RERANK_REFUSED)
    check_texts(params.query, params.documents)
    check_count(context, params.documents, "documents")
    if params.top_n is not None and params.top_n < 1:
        raise BadRequest("top_n", "must be at least 1")


async def check_frame(context: Context, params: RerankRequest, frame: list[str]) -> None:
    """What is too long without any document is the fault of what stands around it."""
    field = "instruct" if len(params.instruct or "") > len(params.query) else "query"
    for tokens in await encode(context, frame, field, special=False):
        check_prompt(tokens, context.served, field=field)


def best_first(
    params: RerankRequest, scores: Sequence[float], metas: Sequence[dict[str, Any]]
) -> list[RerankResult]:
    """The results that are wanted; equal ones in the order of the documents."""
    order = sorted(range(len(scores)), key=lambda index: -scores[index])
    return [
        RerankResult(
            score=scores[index],
            index=index,
            document=params.documents[index] if params.return_documents else None,
            meta_info=metas[index],
        )
        for index in order[: params.top_n]
    ]
