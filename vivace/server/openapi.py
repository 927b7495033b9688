"""The OpenAPI 3.1 document, generated from the route table and the message structs."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Sequence
from typing import Any

import msgspec

from vivace.config.json_schema import clean_descriptions
from vivace.server.access import Access
from vivace.server.route import NO_BODY, Route
from vivace.server.schema import ErrorBody
from vivace.version import __version__

REF = "#/components/schemas/{name}"
PARAMETER = re.compile(r"\{(\w+)(?::[^}]*)?\}")


def document(routes: Sequence[Route], keyed: Container[Access] = ()) -> bytes:
    """JSON of the document, indented; the same routes give the same bytes.

    `keyed`: the kinds of access that need a key on this server.
    """
    types = [ErrorBody, *structs(routes)]
    schemas, components = msgspec.json.schema_components(types, ref_template=REF)
    reference = dict(zip(types, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        entry = paths.setdefault(PARAMETER.sub(r"{\1}", route.path), {})
        for method in route.methods:
            entry[method.lower()] = operation(route, method, reference, keyed)
    whole: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "Vivace",
            "version": __version__,
            "description": "SGLang's native API and OpenAI's API. Unknown fields are ignored.",
        },
        "paths": dict(sorted(paths.items())),
        "components": {"schemas": clean_descriptions(dict(sorted(components.items())))},
    }
    if any(route.auth in keyed for route in routes):
        whole["components"]["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
    return msgspec.json.format(msgspec.json.encode(whole), indent=2) + b"\n"


def structs(routes: Iterable[Route]) -> list[Any]:
    """Every struct the routes name, once, in order."""
    named = [kind for route in routes for kind in (route.accepts, route.answers, route.streams)]
    return [kind for kind in dict.fromkeys(named) if kind is not None]


def operation(
    route: Route, method: str, reference: dict[Any, Any], keyed: Container[Access]
) -> dict[str, Any]:
    """One method of one path."""
    plain_path = PARAMETER.sub(r"\1", route.path)
    found: dict[str, Any] = {
        "summary": route.summary,
        "operationId": method.lower() + plain_path.replace("/", "_"),
        "x-access": str(route.auth),
        "responses": responses(route, reference),
    }
    if route.auth in keyed:
        found["security"] = [{"bearer": []}]
    names = PARAMETER.findall(route.path)
    if names:
        found["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in names
        ]
    if route.accepts is not None and route.body_limit != NO_BODY and method != "GET":
        found["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": reference[route.accepts]}},
        }
    return found


def responses(route: Route, reference: dict[Any, Any]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if route.answers is not None:
        content["application/json"] = {"schema": reference[route.answers]}
    if route.streams is not None:
        content["text/event-stream"] = {"schema": reference[route.streams]}
    success: dict[str, Any] = {"description": "Success"}
    if content:
        success["content"] = content
    failure = {
        "description": "Refused or failed; `message` says why",
        "content": {"application/json": {"schema": reference[ErrorBody]}},
    }
    return {"200": success, "default": failure}


if __name__ == "__main__":
    import sys

    from vivace.server.routes import ROUTES

    sys.stdout.buffer.write(document(ROUTES))
