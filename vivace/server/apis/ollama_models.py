"""Facts about the served model, and its vectors of texts, in Ollama's form."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from aiohttp import web

from vivace.frontend.fairness import Work
from vivace.frontend.fill_in_middle import middle_tokens
from vivace.frontend.request_output import RequestOutput
from vivace.frontend.tokenizer_pool import text_named
from vivace.protocol.tasks import Generate
from vivace.server.apis.ollama import NANOSECONDS
from vivace.server.apis.ollama_request import plain_name
from vivace.server.apis.ollama_schema import (
    ModelDetails,
    OllamaEmbeddingsRequest,
    OllamaEmbedRequest,
    OllamaModel,
    OllamaModelList,
    OllamaShowAnswer,
    OllamaShowRequest,
    OllamaVersion,
)
from vivace.server.body import Body, BodyReader
from vivace.server.context import Context
from vivace.server.encode import embed as run_embed
from vivace.server.encode import read_vector
from vivace.server.openai.completions import read_prompts
from vivace.server.openai.embeddings import EmbeddingRequest, prompt_inputs
from vivace.server.openai.params import check_model, is_served, not_found
from vivace.server.responses import json_parts, json_response
from vivace.version import __version__

SHOW = BodyReader(OllamaShowRequest)
EMBED = BodyReader(OllamaEmbedRequest)
EMBEDDINGS = BodyReader(OllamaEmbeddingsRequest)
NEVER = "9999-12-31T23:59:59Z"
"""when the model is unloaded"""


async def tags(context: Context, _http: web.Request, _body: Body) -> web.Response:
    """The models there are: the served one."""
    return json_response(OllamaModelList(models=[model(context)]))


async def running(context: Context, _http: web.Request, _body: Body) -> web.Response:
    """The models that are loaded: the served one, for good."""
    loaded = model(context)
    loaded.expires_at, loaded.size_vram = NEVER, 0
    loaded.context_length = context.served.context
    return json_response(OllamaModelList(models=[loaded]))


async def version(_context: Context, _http: web.Request, _body: Body) -> web.Response:
    """This server's version, which is none of Ollama's."""
    return json_response(OllamaVersion(version=__version__))


async def show(context: Context, _http: web.Request, body: Body) -> web.Response:
    """The served model by its name, or 404."""
    params = await SHOW.read(context, body)
    name = plain_name(params.model)
    if not is_served(context, name):
        raise not_found(context, name)
    served = context.served
    kind = served.model_type
    answer = OllamaShowAnswer(
        details=details(context),
        model_info={"general.architecture": kind, f"{kind}.context_length": served.context},
        capabilities=list_capabilities(context),
        modified_at=started(context),
        parameters="\n".join(f"{name} {value}" for name, value in served.defaults.items()),
        template=template(context),
    )
    return json_response(answer)


def template(context: Context) -> str:
    """The chat template that conversations are rendered with; "" where the model has none."""
    tokenizer = context.frontend.tokenizer
    return tokenizer.chat.texts[0] if tokenizer is not None and tokenizer.chat is not None else ""


def list_capabilities(context: Context) -> list[str]:
    """What clients may ask of the model: without "tools" here they offer it none."""
    if not isinstance(context.served.task, Generate):
        return ["embedding"]
    syntax = context.syntax
    tokenizer = context.frontend.tokenizer
    more = {
        "tools": syntax.finds_calls and syntax.tells_tools,
        "insert": tokenizer is not None and middle_tokens(tokenizer) is not None,
        "thinking": syntax.finds_reasoning,
    }
    return ["completion", *(name for name, can in more.items() if can)]


def model(context: Context) -> OllamaModel:
    served = context.served
    return OllamaModel(
        name=served.name,
        model=served.name,
        modified_at=started(context),
        size=file_size(served.path),
        digest="",
        details=details(context),
    )


def details(context: Context) -> ModelDetails:
    served = context.served
    form = "gguf" if served.path.endswith(".gguf") else "safetensors"
    return ModelDetails(format=form, family=served.model_type, families=[served.model_type])


def started(context: Context) -> str:
    return datetime.fromtimestamp(context.started, UTC).isoformat().replace("+00:00", "Z")


def file_size(path: str) -> int:
    """Bytes of the model's file, or of the files in its folder; 0 where they cannot be seen."""
    place = Path(path)
    try:
        files = list(place.iterdir()) if place.is_dir() else [place]
        return sum(file.stat().st_size for file in files if file.is_file())
    except OSError:
        return 0


# -- vectors ---------------------------------------------------------------------------------------


async def embed(context: Context, http: web.Request, body: Body) -> web.StreamResponse:
    """A vector of each text."""
    arrival = time.monotonic()
    params = await EMBED.read(context, body)
    request = EmbeddingRequest(
        input=list(params.input) if isinstance(params.input, list) else params.input,
        model=plain_name(params.model),
        dimensions=params.dimensions,
    )
    outputs = await vectors(context, http, body, request, arrival, "input")
    rest = {
        "model": context.served.name,
        "total_duration": int((time.monotonic() - arrival) * NANOSECONDS),
        "load_duration": 0,
        "prompt_eval_count": sum(output.prompt_tokens for output in outputs),
    }
    rows = await context.slicer.run(encode_rows(outputs))
    end = b"]," + msgspec.json.encode(rest)[1:]
    return await json_parts(http, [b'{"embeddings":[', *rows, end])


async def embeddings(context: Context, http: web.Request, body: Body) -> web.StreamResponse:
    """The vector of a text."""
    arrival = time.monotonic()
    params = await EMBEDDINGS.read(context, body)
    request = EmbeddingRequest(input=params.prompt, model=plain_name(params.model))
    (output,) = await vectors(context, http, body, request, arrival, "prompt")
    numbers = read_vector(output).numbers()
    return await json_parts(http, [b'{"embedding":', msgspec.json.encode(numbers), b"}"])


async def vectors(
    context: Context,
    http: web.Request,
    body: Body,
    request: EmbeddingRequest,
    arrival: float,
    field: str,
) -> list[RequestOutput]:
    """What /v1/embeddings computes for the request, whose texts came in `field`."""
    check_model(context, request.model)
    with text_named(field):
        prompts = await read_prompts(context, request.input, field)
    inputs = prompt_inputs(context, request, prompts)
    _, outputs = await run_embed(context, http, body, request, inputs, arrival)
    return outputs


def encode_rows(outputs: list[RequestOutput]) -> Work[list[bytes]]:
    """The vectors as JSON, with commas between them."""
    rows: list[bytes] = []
    for index, output in enumerate(outputs):
        rows += [b","] if index else []
        rows.append(msgspec.json.encode(read_vector(output).numbers()))
        yield
    return rows
