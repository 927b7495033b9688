"""POST /classify and /v1/classify: what a model's head makes of texts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import msgspec
from aiohttp import web

from vivace.frontend.fairness import Work
from vivace.frontend.request_output import RequestOutput
from vivace.frontend.served_model import ServedModel
from vivace.frontend.sglang_output import number_rows
from vivace.frontend.tokenizer_pool import text_named
from vivace.requests.classes import label_probabilities, need_classifier
from vivace.requests.embeddings import NOTHING_DRAWN
from vivace.requests.limits import Ids, PerPrompt, Prompts
from vivace.requests.prompts import PromptInput, new_id
from vivace.server.body import Body, BodyReader
from vivace.server.context import Context
from vivace.server.encode import embed, encode, read_vector
from vivace.server.openai.completions import Prompt, read_prompts
from vivace.server.openai.params import check_model, request_id
from vivace.server.openai.response import UsageCounter
from vivace.server.openai.schema import DEFAULT_MODEL, Usage
from vivace.server.responses import json_parts


class ClassifyRequest(msgspec.Struct, kw_only=True):
    """POST /v1/classify. `input`: text, texts, ids, or a list of lists of ids."""

    input: str | Prompts[str | int | Ids]
    model: str = DEFAULT_MODEL
    user: str | None = None
    """For the request log."""
    rid: str | PerPrompt[str] | None = None
    priority: int | None = None


class ClassifyEntry(msgspec.Struct, kw_only=True):
    """`index`: of the text, `step`: where a model judges each of those; `label`: the most probable
    one."""

    index: int
    step: int | msgspec.UnsetType = msgspec.UNSET
    label: str
    probs: list[float]
    num_classes: int


class ClassifyAnswer(msgspec.Struct, kw_only=True):
    """Answer of /v1/classify."""

    id: str
    data: list[ClassifyEntry]
    model: str
    usage: Usage
    created: int
    object: str = "list"


READER = BodyReader(ClassifyRequest)


async def classify_native(context: Context, http: web.Request, body: Body) -> web.StreamResponse:
    """The head's own numbers, as /encode answers with vectors."""
    need_classifier(context.served)
    return await encode(context, http, body)


async def classify(context: Context, http: web.Request, body: Body) -> web.StreamResponse:
    """Probabilities of the labels of each text."""
    arrival, created = time.monotonic(), int(time.time())
    need_classifier(context.served)
    params = await READER.read(context, body)
    check_model(context, params.model)
    with text_named("input"):
        prompts = await read_prompts(context, params.input, "input")
    answer_id = new_id("classify")
    inputs = prompt_inputs(context, params, prompts, answer_id)
    _, outputs = await embed(context, http, body, params, inputs, arrival)
    counter = UsageCounter(1, context.settings.cache_report)
    for index, output in enumerate(outputs):
        counter.update(index, output)
    entries = await context.slicer.run(encode_entries(context.served, outputs))
    rest: dict[str, Any] = {
        "id": answer_id,
        "object": "list",
        "created": created,
        "model": context.served.name,
        "usage": counter.usage(),
    }
    end = b"]," + msgspec.json.encode(rest)[1:]
    return await json_parts(http, [b'{"data":[', *entries, end])


def prompt_inputs(
    context: Context, params: ClassifyRequest, prompts: list[Prompt], answer_id: str
) -> Iterator[PromptInput]:
    for index, prompt in enumerate(prompts):
        yield PromptInput(
            tokens=prompt.tokens,
            sampling=NOTHING_DRAWN,
            prompt_field="input" if len(prompts) == 1 else f"input[{index}]",
            rid=request_id(params, index, len(prompts), answer_id),
            priority=params.priority,
            task=context.served.task,
        )


def encode_entries(served: ServedModel, outputs: list[RequestOutput]) -> Work[list[bytes]]:
    """The entries as JSON, with commas between them."""
    classifier = need_classifier(served)
    parts: list[bytes] = []
    for index, output in enumerate(outputs):
        judged = read_vector(output)
        steps = number_rows([judged]) if served.step_token is not None else [judged.numbers()]
        for step, numbers in enumerate(steps):
            probs = label_probabilities(classifier, numbers)
            best = max(range(len(probs)), key=probs.__getitem__)
            entry = ClassifyEntry(
                index=index,
                step=msgspec.UNSET if served.step_token is None else step,
                label=classifier.labels[best],
                probs=probs,
                num_classes=len(probs),
            )
            parts += [b","] if parts else []
            parts.append(msgspec.json.encode(entry))
        yield
    return parts
