"""JSON schemas: what is read, what is refused before anything is compiled, and where in a schema
it is that the library refuses."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from vivace.grammar.backend import GrammarError, JsonFormat
from vivace.grammar.limits import MAX_DEPTH, MAX_VALUES
from vivace.grammar.recursion import never_ends

ANY = "$$ANY$$"
"""SGLang's word for any JSON"""
DATA = ("const", "enum", "default", "examples")
"""keywords whose values are no schemas"""

_UNIMPLEMENTED = re.compile(r"Unimplemented keys: (\[.*?\])")
_FORMAT = re.compile(r"Unknown format: (.*)")
_ONE_OF = "oneOf constraints are not supported"


def read_schema(text: str) -> Any:
    """A schema, checked for sizes. Raises GrammarError."""
    if text == ANY:
        return {}
    try:
        schema = msgspec.json.decode(text.encode("utf-8", "surrogatepass"))
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise GrammarError(f"is no JSON: {error}") from error
    check_schema(schema)
    return schema


def check_schema(schema: Any) -> None:
    """Raises GrammarError for what is no schema, too large, or can have no finite instance."""
    if not isinstance(schema, dict | bool):
        raise GrammarError("must be a JSON schema: an object, or true")
    for values, (path, _) in enumerate(walk(schema)):
        if values >= MAX_VALUES:
            raise GrammarError(f"has more than {MAX_VALUES} values")
        if len(path) > MAX_DEPTH:
            raise GrammarError(f"nests deeper than {MAX_DEPTH} levels")
    endless = never_ends(schema)
    if endless is not None:
        raise GrammarError(
            f"{endless}: recurses for ever, nothing finite obeys it; make a property on the way "
            "optional, or allow null"
        )


def json_grammar(schema: Any, form: JsonFormat) -> str:
    from llguidance import LLMatcher

    text = json.dumps(schema if isinstance(schema, dict) else {"allOf": [schema]})
    return LLMatcher.grammar_from_json_schema(text, overrides=json_options(form))  # type: ignore[arg-type]


def json_options(form: JsonFormat) -> dict[str, Any]:
    """Of the operator: a schema's own (x-guidance) count for nothing beside them."""
    return {
        "item_separator": ",",
        "key_separator": ":",
        "whitespace_flexible": not form.compact,
        "whitespace_pattern": None if form.compact else form.whitespace_pattern,
        "coerce_one_of": False,
        "lenient": False,
    }


def explain_refusal(schema: Any, reason: str) -> str:
    """The library's reason with the place it is about."""
    if found := _UNIMPLEMENTED.search(reason):
        keys: list[str] = msgspec.json.decode(found[1])
        place = _find(schema, lambda key, value: key in keys)
        return f"{place or keys[0]}: this keyword cannot be enforced; leave it out"
    if found := _FORMAT.search(reason):
        name = found[1].strip()
        place = _find(schema, lambda key, value: key == "format" and value == name)
        return f"{place or 'format'}: the format {name!r:.60} cannot be enforced; use a pattern"
    if reason.startswith(_ONE_OF):
        place = _find(schema, lambda key, value: key == "oneOf")
        return (
            f"{place or 'oneOf'}: its choices overlap, which cannot be enforced; use anyOf, or "
            "choices that exclude each other"
        )
    return " ".join(reason.split())[:400]


def _find(schema: Any, matches: Callable[[str | int, Any], bool]) -> str | None:
    """Path of the first keyword that matches."""
    for path, value in walk(schema):
        names = path[-2:-1] in (("properties",), ("$defs",), ("definitions",))
        if path and not names and matches(path[-1], value):
            return ".".join(map(str, path))
    return None


def walk(schema: Any) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Every value with its path, but for what stands in instances (`DATA`), the schema first."""
    stack: list[tuple[tuple[str | int, ...], Any]] = [((), schema)]
    while stack:
        path, value = stack.pop()
        yield path, value
        if isinstance(value, dict):
            keys = [key for key in value if key not in DATA or path[-1:] == ("properties",)]
            stack += [((*path, key), value[key]) for key in reversed(keys)]
        elif isinstance(value, list):
            stack += [((*path, i), value[i]) for i in reversed(range(len(value)))]
