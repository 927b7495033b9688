"""POST /vertex_generate: /generate as Vertex AI asks for it."""

from __future__ import annotations

import re
import time
from typing import Any

import msgspec
from aiohttp import web

from vivace.frontend.errors import BadRequest
from vivace.frontend.fields import refuse_unsupported, validation_error
from vivace.protocol.constraints import CONSTRAINTS
from vivace.requests.limits import Ids, Members, PerPrompt
from vivace.requests.schema import TEXT_ONLY, GenerateRequest
from vivace.server.apis.chat_run import own_names
from vivace.server.body import Body, BodyReader
from vivace.server.context import Context
from vivace.server.generate import answer_generate
from vivace.server.responses import json_response
from vivace.server.schema import GenerateAnswer


class VertexInstance(msgspec.Struct, kw_only=True):
    """One prompt: text, or token ids; all of a request are of one kind."""

    text: str | None = None
    input_ids: Ids | None = None
    # Refused with a reason when set (INSTANCE_REFUSED).
    image_data: Any = None
    input_embeds: Any = None
    response_format: Any = None
    regex: Any = None
    ebnf: Any = None
    json_schema: Any = None
    structural_tag: Any = None


VERTEX_REFUSED = {
    **dict.fromkeys(CONSTRAINTS, "goes into sampling_params of parameters"),
    "response_format": "use json_schema in sampling_params of parameters",
}
INSTANCE_REFUSED = {"image_data": TEXT_ONLY, "input_embeds": TEXT_ONLY, **VERTEX_REFUSED}


class VertexRequest(msgspec.Struct, kw_only=True):
    """POST /vertex_generate. `parameters`: other fields of /generate, such as sampling_params."""

    instances: PerPrompt[VertexInstance]
    parameters: Members[Any] | None = None
    # Refused with a reason when set (VERTEX_REFUSED).
    response_format: Any = None
    regex: Any = None
    ebnf: Any = None
    json_schema: Any = None
    structural_tag: Any = None


class VertexAnswer(msgspec.Struct, kw_only=True):
    """Answer of /vertex_generate: what /generate says of each instance."""

    predictions: list[GenerateAnswer]


READER = BodyReader(VertexRequest)
SET_HERE = ("text", "input_ids", "stream")
_PROMPT = re.compile(r"(text|input_ids)\[(\d+)\]")


async def vertex_generate(context: Context, http: web.Request, body: Body) -> web.StreamResponse:
    """Generate from every instance."""
    arrival = time.monotonic()
    params = await READER.read(context, body)
    refuse_unsupported(params, VERTEX_REFUSED)
    if not params.instances:
        return json_response(VertexAnswer(predictions=[]))
    with own_names(rename):
        request = read_request(params)
        return await answer_generate(context, http, body, request, arrival, predictions)


def read_request(params: VertexRequest) -> GenerateRequest:
    """All instances as one batch of /generate."""
    parameters = params.parameters or {}
    for name in SET_HERE:
        if parameters.get(name):
            raise BadRequest(name, "is not one of the parameters: answers are whole, of instances")
    first = params.instances[0]
    kind, other = ("text", "input_ids")
    if first.text is None and first.input_ids is not None:
        kind, other = other, kind
    prompts: list[Any] = []
    for number, instance in enumerate(params.instances):
        refuse_unsupported(instance, INSTANCE_REFUSED, place=f"instances[{number}].")
        for name, is_needed in ((kind, True), (other, False)):
            if (getattr(instance, name) is not None) is not is_needed:
                raise BadRequest(f"{name}[{number}]", "every instance has text, or every one ids")
        prompts.append(getattr(instance, kind))
    rest = {name: value for name, value in parameters.items() if name not in SET_HERE}
    try:
        request = msgspec.convert(rest, GenerateRequest)
    except msgspec.ValidationError as error:
        raise validation_error(str(error)) from None
    setattr(request, kind, prompts)
    return request


def rename(name: str) -> str:
    """The field of the body that /generate knows by another name."""
    found = _PROMPT.match(name)
    if found is not None:
        return f"instances[{found[2]}].{found[1]}{name[found.end() :]}"
    if name in ("text", "input_ids"):
        return "instances"
    return name if name.startswith("instances") or not name else f"parameters.{name}"


def predictions(parts: list[bytes]) -> list[bytes]:
    return [b'{"predictions":', *parts, b"}"]
