"""POST /v1/embeddings."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from typing import Any

import msgspec
from aiohttp import web

from vivace.frontend.errors import BadRequest
from vivace.frontend.fairness import Work
from vivace.frontend.fields import refuse_unsupported
from vivace.frontend.request_output import RequestOutput
from vivace.frontend.tokenizer_pool import text_named
from vivace.requests.embeddings import NO_OVERRIDES, NOTHING_DRAWN, embed_task
from vivace.requests.limits import Ids, PerPrompt, Prompts
from vivace.requests.prompts import PromptInput, new_id
from vivace.requests.schema import NO_LORA
from vivace.server.body import Body, BodyReader
from vivace.server.context import Context
from vivace.server.encode import embed, read_vector
from vivace.server.openai.completions import Prompt, read_prompts
from vivace.server.openai.params import check_model, request_id
from vivace.server.openai.schema import DEFAULT_MODEL, Usage
from vivace.server.openai.usage import UsageCounter
from vivace.server.responses import json_parts

FLOAT, BASE64 = "float", "base64"
NO_VECTORS = "the served model judges steps, it makes no vectors; ask /classify or /v1/classify"


class EmbeddingRequest(msgspec.Struct, kw_only=True):
    """POST /v1/embeddings. `input`: text, texts, ids, or a list of lists of ids."""

    input: str | Prompts[str | int | Ids]
    model: str = DEFAULT_MODEL
    encoding_format: str | None = None
    """float, or base64 of the numbers as float32, little endian."""
    dimensions: int | None = None
    """The first numbers of the vector, for models that were trained for it (Matryoshka)."""
    user: str | None = None
    """For the request log."""
    rid: str | PerPrompt[str] | None = None
    priority: int | None = None
    # Refused with a reason when set (EMBEDDING_REFUSED).
    lora_path: Any = None
    embed_override_token_id: int | None = None
    embed_overrides: Any = None
    truncate_prompt_tokens: Any = None
    messages: Any = None
    # vLLM's and TEI's, refused where they ask for what the model's files do not say.
    normalize: bool | None = None
    add_special_tokens: bool | None = None


BY_FILES = "the model's files say how a text becomes a vector; remove the field"
EMBEDDING_REFUSED: dict[str, str] = {
    "lora_path": NO_LORA,
    "embed_overrides": NO_OVERRIDES,
    "truncate_prompt_tokens": "a text that is too long is refused; cut it before",
    "messages": "chat templates are not applied to texts; send `input`",
}


class EmbeddingEntry(msgspec.Struct, kw_only=True):
    embedding: list[float] | str
    index: int
    object: str = "embedding"


class EmbeddingAnswer(msgspec.Struct, kw_only=True):
    """Answer of /v1/embeddings."""

    data: list[EmbeddingEntry]
    model: str
    usage: Usage
    object: str = "list"


READER = BodyReader(EmbeddingRequest)


async def embeddings(context: Context, http: web.Request, body: Body) -> web.StreamResponse:
    """A vector of each text."""
    arrival = time.monotonic()
    params = await READER.read(context, body)
    check_model(context, params.model)
    refuse_unsupported(params, EMBEDDING_REFUSED)
    if params.embed_override_token_id is not None:
        raise BadRequest("embed_override_token_id", NO_OVERRIDES)
    if params.encoding_format not in (None, FLOAT, BASE64):
        raise BadRequest("encoding_format", f"must be {FLOAT} or {BASE64}")
    with text_named("input"):
        prompts = await read_prompts(context, params.input, "input")
    inputs = prompt_inputs(context, params, prompts)
    _, outputs = await embed(context, http, body, params, inputs, arrival)
    counter = UsageCounter(1, context.settings.cache_report)
    for index, output in enumerate(outputs):
        counter.update(index, output)
    entries = await context.slicer.run(encode_entries(outputs, params.encoding_format == BASE64))
    rest = {"object": "list", "model": context.served.name, "usage": counter.usage()}
    end = b"]," + msgspec.json.encode(rest)[1:]
    return await json_parts(http, [b'{"data":[', *entries, end])


def prompt_inputs(
    context: Context, params: EmbeddingRequest, prompts: list[Prompt]
) -> Iterator[PromptInput]:
    if context.served.step_token is not None:
        raise BadRequest("", NO_VECTORS)
    task, answer_id = embed_task(context.served, params.dimensions), new_id("embd")
    if params.normalize not in (None, task.normalize):
        raise BadRequest("normalize", BY_FILES)
    if params.add_special_tokens is False:
        raise BadRequest("add_special_tokens", BY_FILES)
    for index, prompt in enumerate(prompts):
        yield PromptInput(
            tokens=prompt.tokens,
            sampling=NOTHING_DRAWN,
            prompt_field="input" if len(prompts) == 1 else f"input[{index}]",
            rid=request_id(params, index, len(prompts), answer_id),
            priority=params.priority,
            task=task,
        )


def encode_entries(outputs: list[RequestOutput], as_text: bool) -> Work[list[bytes]]:
    """The entries as JSON, with commas between them."""
    parts: list[bytes] = []
    for index, output in enumerate(outputs):
        vector = read_vector(output)
        shown = base64.b64encode(vector.data).decode() if as_text else vector.numbers()
        parts += [b","] if index else []
        parts.append(msgspec.json.encode(EmbeddingEntry(embedding=shown, index=index)))
        yield
    return parts
