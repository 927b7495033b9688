"""response_format, and SGLang's names beside it, of a request -> what its answer obeys."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from vivace.frontend.constraints import make_constraint
from vivace.frontend.errors import BadRequest
from vivace.frontend.fields import abbreviate, is_set, json_type, refuse_unsupported
from vivace.protocol.constraints import CONSTRAINTS, JSON_SCHEMA, STRUCTURAL_TAG, Constraint

FORMAT = "response_format"
PARTS = ("json_schema", "schema", "structures", "triggers", "format")
"""What a response_format may hold besides its type."""
TYPES: dict[str, tuple[str, ...]] = {
    "text": (),
    "json_object": ("schema",),
    "json_schema": ("json_schema",),
    "structural_tag": ("structures", "triggers", "format"),
}
"""Types, and the parts that go with each. The schema of a json_object is llama.cpp's."""
NAMED = 'an object: {"name": ..., "schema": ...}'


class ResponseFormat(msgspec.Struct, kw_only=True):
    type: str
    json_schema: Any = None
    schema: Any = None
    structures: Any = None
    triggers: Any = None
    format: Any = None


class ConstraintFields(Protocol):
    """Where requests say what their answers have to obey."""

    @property
    def response_format(self) -> ResponseFormat | None: ...

    regex: Any
    ebnf: Any
    json_schema: Any
    structural_tag: Any


def body_constraint(request: ConstraintFields) -> Constraint | None:
    """What the answer has to obey. Raises BadRequest for what contradicts itself."""
    found: list[Constraint] = []
    for kind in CONSTRAINTS:
        if is_set(value := getattr(request, kind)):
            found.append(make_constraint(kind, value, kind))
    if request.response_format is not None:
        constraint = format_constraint(request.response_format)
        found += [] if constraint is None else [constraint]
    if len(found) > 1:
        raise BadRequest(found[1].field, f"does not go with {found[0].field}; give one of them")
    return found[0] if found else None


def format_constraint(form: ResponseFormat) -> Constraint | None:
    if form.type not in TYPES:
        known = ", ".join(TYPES)
        raise BadRequest(f"{FORMAT}.type", f"{abbreviate(form.type)!r} is unknown; use {known}")
    others = [part for part in PARTS if part not in TYPES[form.type]]
    told = dict.fromkeys(others, f"does not go with type {form.type!r}")
    if form.type == "json_schema" and form.json_schema is None:
        told["schema"] = f"must stand in json_schema, {NAMED}"
    refuse_unsupported(form, told, place=f"{FORMAT}.")
    match form.type:
        case "json_object":
            schema = form.schema if is_set(form.schema) else {"type": "object"}
            return make_constraint(JSON_SCHEMA, schema, FORMAT)
        case "json_schema":
            return _named_schema(form.json_schema)
        case "structural_tag":
            given = {part: getattr(form, part) for part in TYPES[form.type]}
            tag = {part: value for part, value in given.items() if value is not None}
            return make_constraint(STRUCTURAL_TAG, {"type": form.type, **tag}, FORMAT)
        case _:
            return None


def _named_schema(given: Any) -> Constraint:
    """{"name": ..., "schema": ..., "strict": ...}: it is obeyed, strict or not."""
    place = f"{FORMAT}.json_schema"
    if not isinstance(given, dict):
        raise BadRequest(place, f"must be {NAMED}, not {json_type(given)}")
    fields: dict[str, Any] = given
    schema = fields.get("schema")
    if not isinstance(schema, dict | bool):
        raise BadRequest(f"{place}.schema", f"must be a JSON schema, not {json_type(schema)}")
    return make_constraint(JSON_SCHEMA, schema, f"{place}.schema")
