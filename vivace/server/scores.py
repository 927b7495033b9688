"""POST /v1/score: how likely certain tokens are behind a query and each of its items."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
from aiohttp import web

from vivace.frontend.errors import BadRequest
from vivace.frontend.fields import refuse_unsupported
from vivace.frontend.request_output import RequestOutput
from vivace.frontend.tokenizer_pool import text_named
from vivace.requests.limits import Chosen, Ids, PerPrompt
from vivace.requests.prompts import PromptInput, new_id
from vivace.requests.scores import PLAIN, item_labels, join_items, probabilities
from vivace.server.body import Body, BodyReader
from vivace.server.collect import complete, prepare_requests
from vivace.server.context import Context
from vivace.server.generate import check_count
from vivace.server.openai.params import RidField, check_model, request_id
from vivace.server.openai.schema import DEFAULT_MODEL, Usage
from vivace.server.openai.usage import UsageCounter
from vivace.server.responses import encode_list, json_response


class ScoreRequest(msgspec.Struct, kw_only=True):
    """POST /v1/score. `query` and `items` are both text, or both token ids."""

    query: str | Ids | None = None
    items: str | PerPrompt[str | Ids] | None = None
    label_token_ids: Chosen[int | Chosen[int]] | None = None
    """The tokens whose probabilities are wanted; one list for all items, or one for each."""
    apply_softmax: bool = False
    """The numbers of an item add up to 1."""
    item_first: bool = False
    temperature: float | None = None
    """Of the distribution; 1 if left out."""
    model: str = DEFAULT_MODEL
    rid: str | PerPrompt[str] | None = None
    # Refused with a reason when set (SCORE_REFUSED).
    embed_override_token_id: int | None = None
    query_embed_overrides: Any = None
    item_embed_overrides: Any = None
    return_token_logprobs: Any = None
    return_pooled_hidden_states: Any = None
    score_extraction_token: Any = None
    text_1: Any = None
    text_2: Any = None
    queries: Any = None
    documents: Any = None


NO_OVERRIDES = "embedding overrides are not supported yet; send token ids"
SCORE_REFUSED: dict[str, str] = {
    "query_embed_overrides": NO_OVERRIDES,
    "item_embed_overrides": NO_OVERRIDES,
    "return_token_logprobs": "the logarithms of the scores are the log-probabilities",
    "return_pooled_hidden_states": "/generate gives hidden states (return_hidden_states)",
    **dict.fromkeys(
        ("text_1", "text_2", "queries", "documents"),
        "scores of pairs are those of /v1/rerank; this path takes query, items, label_token_ids",
    ),
    "score_extraction_token": "scores are those of the token behind the whole text",
}


class ScoreAnswer(msgspec.Struct, kw_only=True):
    """Answer of /v1/score: for each item one number per label token."""

    scores: list[list[float]]
    model: str
    usage: Usage
    object: str = "scoring"


READER = BodyReader(ScoreRequest)


async def score(context: Context, http: web.Request, body: Body) -> web.StreamResponse:
    """Probabilities of tokens behind each item; nothing is generated beyond them."""
    arrival = time.monotonic()
    params = await READER.read(context, body)
    check_model(context, params.model)
    refuse_unsupported(params, SCORE_REFUSED)
    if params.embed_override_token_id is not None:
        raise BadRequest("embed_override_token_id", NO_OVERRIDES)
    joined = join_items(params.query, params.items, params.item_first)
    check_count(context, joined, "items")
    labels = item_labels(params.label_token_ids, len(joined))
    prompts = await encode(context, joined, "items") if isinstance(params.query, str) else joined
    sampling = PLAIN if params.temperature is None else {**PLAIN, "temperature": params.temperature}
    inputs = labeled_inputs(params, prompts, labels, "items", sampling)
    with own_names():
        requests = await prepare_requests(
            context, http, body, params, inputs, stream=False, arrival=arrival
        )
    outputs = await complete(context, requests)
    counter = UsageCounter(1, context.settings.cache_report)
    for index, output in enumerate(outputs):
        counter.update(index, output)
    scores: Any = await context.slicer.run(encode_list(read_scores(outputs, params.apply_softmax)))
    return json_response(
        ScoreAnswer(scores=scores, model=context.served.name, usage=counter.usage())
    )


async def encode(
    context: Context, texts: Sequence[str], field: str, special: bool = True
) -> list[list[int]]:
    """Token ids of each text, which the client sent in `field`."""
    context.tokenizer(field)
    with text_named(field):
        groups = context.frontend.encode_all(list(texts), special)
        return [ids async for group in groups for ids in group]


def labeled_inputs(
    params: RidField,
    prompts: Sequence[list[int]],
    labels: Sequence[list[int]],
    field: str,
    sampling: dict[str, Any] = PLAIN,
) -> Iterator[PromptInput]:
    """Prompts behind which those tokens are scored. `field`: the list that they came in."""
    answer_id = new_id("score")
    for index, (tokens, wanted) in enumerate(zip(prompts, labels, strict=True)):
        yield PromptInput(
            tokens=tokens,
            sampling=sampling,
            prompt_field=f"{field}[{index}]",
            rid=request_id(params, index, len(prompts), answer_id),
            logprobs={"return_logprob": True, "token_ids_logprob": wanted},
        )


OWN_NAMES = {
    "token_ids_logprob": "label_token_ids",
    "top_logprobs_num": "label_token_ids",
    "sampling_params.temperature": "temperature",
}
"""a field of /generate -> the one that stands for it here"""


@contextmanager
def own_names() -> Iterator[None]:
    """Errors raised inside name the fields of /v1/score."""
    try:
        yield
    except BadRequest as error:
        raise error.of_field(OWN_NAMES.get(error.field, error.field)) from None


def read_scores(outputs: Sequence[RequestOutput], apply_softmax: bool) -> Iterator[list[float]]:
    """Of each answer. Raises BadRequest where one was aborted."""
    for output in outputs:
        chosen = output.logprobs[0].chosen if output.logprobs else None
        if chosen is None:
            raise BadRequest("", "the request was aborted")
        yield probabilities([logprob for logprob, _ in chosen], apply_softmax)
