"""POST /v1/rerank: documents by how well they answer a query."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec
from aiohttp import web

from vivace.frontend.errors import BadRequest
from vivace.frontend.fields import refuse_unsupported
from vivace.frontend.request_output import RequestOutput
from vivace.frontend.served_model import ServedModel
from vivace.frontend.sglang_output import SGLangOutput
from vivace.frontend.tokenizer_pool import bounded, text_named
from vivace.frontend.validation import check_prompt
from vivace.protocol.tasks import Generate
from vivace.requests.classes import pair_inputs, pair_score, scores_pairs
from vivace.requests.limits import PerPrompt
from vivace.requests.prompts import PromptInput, new_id
from vivace.requests.scores import NO_TEMPLATE, Judgment, check_texts, yes_and_no
from vivace.server.body import Body, BodyReader
from vivace.server.collect import complete, prepare_requests
from vivace.server.context import Context
from vivace.server.encode import read_vector
from vivace.server.generate import check_count
from vivace.server.openai.params import check_model
from vivace.server.openai.schema import DEFAULT_MODEL
from vivace.server.responses import encode_list, json_response
from vivace.server.scores import encode, labeled_inputs, own_names, read_scores


class RankedDocument(msgspec.Struct, kw_only=True):
    """A document as Cohere's clients have it."""

    text: str


class RerankRequest(msgspec.Struct, kw_only=True):
    """POST /v1/rerank."""

    query: str
    documents: PerPrompt[str | RankedDocument]
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


class RerankAnswer(msgspec.Struct, kw_only=True):
    """Answer of /v2/rerank. `results`: a list of `index`, `relevance_score` and `document.text`."""

    id: str
    model: str
    results: Any
    usage: dict[str, int]


READER = BodyReader(RerankRequest)


async def rerank(context: Context, http: web.Request, body: Body) -> web.StreamResponse:
    """A list with the documents' scores, as SGLang answers."""
    results, _ = await ranked(context, http, body)
    return json_response(await context.slicer.run(encode_list(results)))


async def rerank_v2(context: Context, http: web.Request, body: Body) -> web.StreamResponse:
    """The same in an object, as Cohere, Jina and vLLM answer."""
    results, tokens = await ranked(context, http, body)
    shown = (
        {"index": one.index, "relevance_score": one.score}
        | ({} if one.document is None else {"document": {"text": one.document}})
        for one in results
    )
    entries = await context.slicer.run(encode_list(shown))
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    name = context.served.name
    answer = RerankAnswer(id=new_id("rerank"), model=name, results=entries, usage=usage)
    return json_response(answer)


async def ranked(context: Context, http: web.Request, body: Body) -> tuple[list[RerankResult], int]:
    """(the documents that are wanted, equal ones in their order; the tokens of all prompts)"""
    arrival = time.monotonic()
    params = await READER.read(context, body)
    documents = [one if isinstance(one, str) else one.text for one in params.documents]
    check(context, params, documents)
    ask = pairs if scores_pairs(context.served) else questions
    inputs, read = await ask(context, params, documents)
    with own_names():
        requests = await prepare_requests(
            context, http, body, params, inputs, stream=False, arrival=arrival
        )
    outputs = await complete(context, requests)
    metas: list[dict[str, Any]] = []
    for request, output in zip(requests, outputs, strict=True):
        answer = SGLangOutput(request, weight_version=context.served.weight_version)
        answer.add(output)
        metas.append(answer.body(lists=False)["meta_info"])
    tokens = sum(output.prompt_tokens for output in outputs)
    scores = list(read(outputs))
    order = sorted(range(len(scores)), key=lambda index: -scores[index])
    best = [
        RerankResult(score=scores[index], index=index, meta_info=metas[index])
        for index in order[: params.top_n]
    ]
    for result in best if params.return_documents else ():
        result.document = documents[result.index]
    return best, tokens


ReadScores = Callable[[Sequence[RequestOutput]], Iterable[float]]


async def questions(
    context: Context, params: RerankRequest, documents: list[str]
) -> tuple[Iterator[PromptInput], ReadScores]:
    """What a model that generates is asked, and how its answers are read."""
    context.require_task(Generate)
    tokenizer = context.tokenizer("query")
    if tokenizer.chat is None:
        raise BadRequest("", NO_TEMPLATE)
    judgment = Judgment(tokenizer.chat, params.query, params.instruct)
    rendered = await tokenizer.chat.render_async(judgment.messages, variables=judgment.variables)
    await check_frame(context, params, judgment.texts(rendered, [""]))
    texts = judgment.texts(rendered, documents)
    prompts = await encode(context, texts, "documents", special=False)
    labels = [yes_and_no(tokenizer)] * len(prompts)
    inputs = labeled_inputs(params, prompts, labels, "documents")
    return inputs, lambda outputs: (yes for yes, _ in read_scores(outputs, apply_softmax=True))


async def pairs(
    context: Context, params: RerankRequest, documents: list[str]
) -> tuple[Iterator[PromptInput], ReadScores]:
    """What a cross-encoder reads, and what its numbers mean."""
    served, tokenizer = context.served, context.tokenizer("query")
    if params.instruct is not None:
        raise BadRequest("instruct", "a cross-encoder takes no task; remove the field")
    with text_named("query"):
        alone = await context.frontend.encode(params.query)
        check_prompt(alone, served, field="query", room=0)
    for index, document in enumerate(documents):
        with text_named(f"documents[{index}]"):
            bounded(document, served, None)
    both = [(params.query, document) for document in documents]
    prompts = await asyncio.to_thread(tokenizer.encode_pairs, both, served.pair_step)
    inputs = pair_inputs(served, prompts, params.rid)
    return inputs, lambda outputs: read_pair_scores(served, outputs)


def read_pair_scores(served: ServedModel, outputs: Sequence[RequestOutput]) -> Iterator[float]:
    for output in outputs:
        yield pair_score(served, read_vector(output).numbers())


def check(context: Context, params: RerankRequest, documents: list[str]) -> None:
    """Refuse what this endpoint cannot do."""
    check_model(context, params.model)
    refuse_unsupported(params, RERANK_REFUSED)
    check_texts(params.query, documents)
    check_count(context, documents, "documents")
    if params.top_n is not None and params.top_n < 1:
        raise BadRequest("top_n", "must be at least 1")


async def check_frame(context: Context, params: RerankRequest, frame: list[str]) -> None:
    """What is too long without any document is the fault of what stands around it."""
    field = "instruct" if len(params.instruct or "") > len(params.query) else "query"
    for tokens in await encode(context, frame, field, special=False):
        check_prompt(tokens, context.served, field=field)
