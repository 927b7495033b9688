"""json_schema, regex, ebnf and structural_tag of a request -> what its answer has to obey. Whether
that can be enforced is found where it is compiled."""

from __future__ import annotations

import json
from typing import Any

from vivace.frontend.errors import BadRequest
from vivace.frontend.fields import Fields, is_set, json_type
from vivace.frontend.served_model import ServedModel
from vivace.grammar.limits import MAX_CHARACTERS, MAX_DEPTH, MAX_TEXTS, MAX_VALUES
from vivace.protocol.constraints import CONSTRAINTS, JSON_SCHEMA, STRUCTURAL_TAG, Constraint

GIVEN = "constraint"
"""where the settings of a request that has it by other names have it: a `Constraint`"""
JSON_KINDS = (JSON_SCHEMA, STRUCTURAL_TAG)


def read_constraint(fields: Fields, served: ServedModel) -> Constraint | None:
    """Of SGLang's sampling settings. Raises BadRequest."""
    given = fields.get(GIVEN)
    if isinstance(given, Constraint):
        check_constraint(given, served)
        return given
    named = [kind for kind in CONSTRAINTS if is_set(fields.get(kind))]
    if not named:
        return None
    kind, *others = named
    if others:
        raise fields.refuse(others[0], f"does not go with {kind}; give one of them")
    constraint = make_constraint(kind, fields.get(kind), fields.name(kind))
    check_constraint(constraint, served)
    return constraint


def make_constraint(kind: str, value: Any, field: str) -> Constraint:
    """A text, or of JSON the value itself. Raises BadRequest."""
    if kind in JSON_KINDS and isinstance(value, dict | bool):
        check_json(value, field)
        try:
            value = json.dumps(value, ensure_ascii=False)
        except (TypeError, ValueError) as error:
            raise BadRequest(field, f"is no JSON: {error}") from error
    if not isinstance(value, str):
        form = "a string or an object" if kind in JSON_KINDS else "a string"
        raise BadRequest(field, f"must be {form}, not {json_type(value)}")
    return Constraint(kind=kind, text=value, field=field)


def check_json(value: Any, field: str) -> None:
    """BadRequest for what is too large to be made a text of in the event loop."""
    stack, count, characters = [(value, 1)], 0, 0
    while stack:
        one, depth = stack.pop()
        count += 1
        if isinstance(one, str):
            characters += len(one)
        elif isinstance(one, int):
            characters += one.bit_length() // 3  # digits: of long ones to make takes the square
        elif isinstance(one, dict):
            characters += sum(len(key) for key in one if isinstance(key, str))
        if count > MAX_VALUES or characters > MAX_TEXTS:
            raise BadRequest(field, f"is too large, over {MAX_VALUES} values or 256 KiB of texts")
        if depth > MAX_DEPTH:
            raise BadRequest(field, f"nests deeper than {MAX_DEPTH} levels")
        inner = one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
        stack += [(each, depth + 1) for each in inner]


def check_constraint(constraint: Constraint, served: ServedModel) -> None:
    """BadRequest where the server has no structured output, or the text is too long."""
    if served.no_grammars:
        raise BadRequest(constraint.field, served.no_grammars)
    length, most = len(constraint.text), MAX_CHARACTERS[constraint.kind]
    if length > most:
        raise BadRequest(constraint.field, f"has {length} characters, at most {most} are possible")
    try:
        constraint.text.encode()
    except UnicodeEncodeError:
        raise BadRequest(constraint.field, "is not valid Unicode text") from None
