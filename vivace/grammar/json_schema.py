"""JSON schemas: what is read, and what is refused before anything is compiled."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec

from vivace.grammar.backend import GrammarError, JsonFormat
from vivace.grammar.limits import MAX_DEPTH, MAX_VALUES
from vivace.grammar.recursion import forbid_endless
from vivace.grammar.schema_keywords import check_keywords, simplify
from vivace.grammar.schema_numbers import fit_numbers
from vivace.grammar.schema_objects import close_objects, tells_names_apart
from vivace.grammar.schema_patterns import ONE_WAY, fit_patterns
from vivace.grammar.schema_references import separate_instances, use_pointers
from vivace.grammar.schema_rewrites import rewrite

ANY = "$$ANY$$"
"""SGLang's word for any JSON"""


def read_schema(text: str) -> Any:
    """As the library has it. Raises GrammarError."""
    schema = decode_schema(text)
    check_schema(schema)
    return schema


def decode_schema(text: str) -> Any:
    """As it is written. Raises GrammarError."""
    if text == ANY:
        return {}
    try:
        return msgspec.json.decode(text.encode("utf-8", "surrogatepass"))
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise GrammarError(f"is no JSON: {error}") from error


def check_schema(schema: Any, place: str = "") -> None:
    """Raises GrammarError for what is no schema, too large, or can have no finite instance; what
    holds for everything is taken off. `place`: of the schema, for errors."""
    before = f"{place}: " if place else ""
    if not isinstance(schema, dict | bool):
        raise GrammarError(f"{before}must be a JSON schema: an object, or true")
    _check_size(schema, before)
    use_pointers(schema)
    for copy in separate_instances(schema, before):
        _check_size(copy, before)
    check_keywords(schema, place)
    close_objects(schema)
    fit_numbers(schema, place)
    simplify(schema)
    fit_patterns(schema, place)
    rewrite(schema)
    if endless := forbid_endless(schema):
        raise GrammarError(
            f"{before}{endless}: recurses for ever, nothing finite obeys it; make a property on "
            "the way optional, or allow null"
        )


def _check_size(schema: Any, before: str) -> None:
    for values, (path, _) in enumerate(walk(schema)):
        if values >= MAX_VALUES:
            raise GrammarError(f"{before}has more than {MAX_VALUES} values")
        if len(path) > MAX_DEPTH:
            raise GrammarError(f"{before}nests deeper than {MAX_DEPTH} levels")


def json_grammar(schema: Any, form: JsonFormat) -> str:
    from llguidance import LLMatcher

    text = json.dumps(schema if isinstance(schema, dict) else {"allOf": [schema]})
    try:
        return LLMatcher.grammar_from_json_schema(text, overrides=json_options(form, schema))  # type: ignore[arg-type]
    except ValueError as error:
        raise GrammarError(f"has a number that is too large to be enforced ({error})") from error


def json_options(form: JsonFormat, schema: Any) -> dict[str, Any]:
    """Of the operator: a schema's own (x-guidance) count for nothing beside them. `schema`: that
    was checked."""
    return {
        # the library takes "\u0061" for another name than "a"
        "json_allowed_escapes": ONE_WAY if tells_names_apart(schema) else None,
        "item_separator": ",",
        "key_separator": ":",
        "whitespace_flexible": not form.compact,
        "whitespace_pattern": None if form.compact else form.whitespace,
        "coerce_one_of": False,
        "lenient": False,
    }


def walk(schema: Any) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Every value with its path, the schema first."""
    stack: list[tuple[tuple[str | int, ...], Any]] = [((), schema)]
    while stack:
        path, value = stack.pop()
        yield path, value
        if isinstance(value, dict | list):
            held = list(value.items() if isinstance(value, dict) else enumerate(value))
            stack += [((*path, key), one) for key, one in reversed(held)]
