"""The keywords of JSON schemas: which of them hold schemas, what they have to look like, and those
that say nothing."""

from __future__ import annotations

import json
from collections.abc import Container, Iterator
from typing import Any
from urllib.parse import quote

from vivace.grammar.backend import GrammarError
from vivace.parsers.schema_strings import FORMATS
from vivace.parsers.schema_types import MAX_REFERENCE, TYPE_NAMES, TYPES, Path, is_pointer, pointed

IN_ONE = (
    *("additionalProperties", "items", "additionalItems", "not", "if", "then", "else"),
    *("contains", "propertyNames", "unevaluatedItems", "unevaluatedProperties", "contentSchema"),
)
IN_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
PATTERNS = "patternProperties"
IN_MAPS = ("properties", PATTERNS, "$defs", "definitions", "dependentSchemas")
HOLDING = frozenset((*IN_ONE, *IN_LISTS, *IN_MAPS))
DEFINITIONS = ("$defs", "definitions")
DATA = ("const", "enum", "default", "examples")
"""keywords whose values are no schemas"""
DESCRIBING = frozenset(
    ("binary", "byte", "color", "directory-path", "file-path", "json-string", "password", "path")
)
"""formats of OpenAPI and pydantic that tell a reader what a text is, and assert nothing"""
STANDARD_FORMATS = frozenset(
    "date-time date time duration email idn-email hostname idn-hostname ipv4 ipv6 uri iri "
    "uri-reference iri-reference uuid regex uri-template json-pointer relative-json-pointer".split()
)
WRAPPING = {"name", "description", "schema", "strict"}
"""of what response_format has a schema in"""
OUTERMOST = (
    "refers to nothing, or to whichever of several schemas is the outermost one, which cannot be "
    "enforced; use $ref"
)
REPEATED = (
    "can be enforced only up to one more than are required, since a name may come twice; leave it "
    "out, or name them under required"
)
IN_URIS = "#/%:?@!$&'()*+,;=~"
ANYTHING = (True, {})
WITHOUT_PREFIXES = ("draft-04", "draft-06", "draft-07", "2019-09")
"""drafts that have no `prefixItems`"""
COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
MOST_COUNT = (1 << 32) - 1
"""that the library reads: no answer has more"""
SCHEMA, NO_SCHEMA = (dict, bool), 'must be a schema, such as {"type": "string"}'
VALUES: dict[str, tuple[tuple[type, ...], str]] = {
    **dict.fromkeys(COUNTS, ((int,), "must be a whole number from 0 on, without a point")),
    **dict.fromkeys(("minimum", "maximum"), ((int, float), "must be a number")),
    **dict.fromkeys(  # true and false in draft 4
        ("exclusiveMinimum", "exclusiveMaximum"), ((int, float, bool), "must be a number")
    ),
    "multipleOf": ((int, float), "must be a number above 0"),
    **dict.fromkeys(("pattern", "format", "$ref"), ((str,), "must be a text")),
    **dict.fromkeys(IN_ONE, (SCHEMA, NO_SCHEMA)),
    **dict.fromkeys(IN_LISTS, ((list,), "must be a list of schemas")),
    "items": ((*SCHEMA, list), NO_SCHEMA),
    "enum": ((list,), "must be a list of values"),
    **dict.fromkeys(IN_MAPS, ((dict,), "must be an object: names and their schemas")),
}
"""types of a keyword's value, and what is told where it has another"""
NO_NOTES = VALUES.keys() | set(
    "type const required uniqueItems minContains maxContains dependentRequired dependencies "
    "id $id $schema $anchor $dynamicAnchor $recursiveAnchor $dynamicRef $recursiveRef "
    "discriminator".split()
)
"""what the library is to see beside references and choices: any other keyword is one to it there"""
LEAST = {**dict.fromkeys(COUNTS, 0), "multipleOf": 5e-324}


def subschemas(
    schema: Any, path: Path = (), *, defined: bool = True, seen: Container[Path] = ()
) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Every schema that is an object, with its path, the outer ones first. `defined`: also those
    that stand there to be referred to. `seen`: not these, nor what is in them."""
    maps = [key for key in IN_MAPS if defined or key not in DEFINITIONS]
    stack: list[tuple[Path, Any]] = [(path, schema)]
    while stack:
        place, value = stack.pop()
        if not isinstance(value, dict) or place in seen:
            continue
        yield place, value
        if HOLDING.isdisjoint(value):
            continue  # as most have it
        inner = [((*place, key), value[key]) for key in IN_ONE if key in value]
        for key in (*IN_LISTS, *maps):
            held = value.get(key)
            if isinstance(held, list) and key in IN_LISTS:
                inner += [((*place, key, i), one) for i, one in enumerate(held)]
            elif isinstance(held, dict) and key in maps:
                inner += [((*place, key, name), one) for name, one in held.items()]
        stack += reversed(inner)


def all_schemas(root: Any) -> Iterator[tuple[Path, dict[str, Any]]]:
    """`subschemas` of a whole one, those that it uses first, and of what stands where only
    references lead (OpenAPI's components)."""
    seen: set[Path] = set()
    starts: list[tuple[Path, Any]] = [((), root)]
    while starts:
        later: list[tuple[Path, Any]] = []
        for start, value in starts:  # which grows
            for path, one in subschemas(value, start, defined=False, seen=seen):
                seen.add(path)
                yield path, one
                if "$ref" in one and (target := pointed(root, str(one["$ref"]))):
                    starts += [target] if target[0] not in seen else []
                for key in DEFINITIONS:
                    if isinstance(held := one.get(key), dict):
                        later += [((*path, key, name), inner) for name, inner in held.items()]
        starts = later


def spelled(place: str, path: Path) -> str:
    """A path as messages have it; `place`: of the schema."""
    return ".".join([*([place] if place else []), *map(str, path)])


def named_draft(schema: Any) -> str:
    """The URI of the draft that a schema is written in; empty where it does not say."""
    return str(schema.get("$schema", "")) if isinstance(schema, dict) else ""


def check_keywords(schema: Any, place: str) -> None:
    """Raises GrammarError for a keyword whose value is none that it may have."""
    for path, reason in wrong_keywords(schema):
        raise GrammarError(f"{spelled(place, path)}: {reason}")


def wrong_keywords(schema: Any) -> Iterator[tuple[Path, str]]:
    """(the path of a keyword, what is wrong with its value)"""
    if isinstance(schema, dict):
        if "draft-03" in named_draft(schema):
            yield ("$schema",), "draft 3 cannot be enforced; write the schema in a later one"
        if schema.keys() <= WRAPPING and isinstance(schema.get("schema"), dict):
            yield ("schema",), "give this schema alone"
    for path, value in all_schemas(schema):
        yield from (((*path, keyword), reason) for keyword, reason in _wrong(value))


def _wrong(schema: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(a keyword, what is wrong with its value)"""
    kinds = schema.get("type", [])
    for kind in kinds if isinstance(kinds, list) else [kinds]:
        if kind not in TYPES:
            meant = TYPE_NAMES.get(str(kind).lower())
            told = f'use "{meant}"' if meant else f"use {', '.join(TYPES)}"
            yield "type", f"{json.dumps(kind):.60} is no type; {told}"
    ref = schema.get("$ref")
    if isinstance(ref, str) and ref.startswith("#") and not is_pointer(ref):
        yield "$ref", "refers to nothing: no $anchor has this name"
    if isinstance(ref, str) and len(ref) > MAX_REFERENCE:
        yield "$ref", f"is longer than {MAX_REFERENCE} characters; put what it leads to under $defs"
    for keyword in ("$dynamicRef", "$recursiveRef"):
        if keyword in schema:
            yield keyword, OUTERMOST
    least, kinds = schema.get("minProperties"), schema.get("type", "object")
    required = schema.get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        yield "required", "must be a list of names of properties, beside properties"
    elif isinstance(least, int) and least > len(set(required)) + 1 and "object" in kinds:
        yield "minProperties", REPEATED  # one name, given twice, could count for two
    for keyword in filter(VALUES.__contains__, schema):
        value, (kinds, told) = schema[keyword], VALUES[keyword]
        if type(value) not in kinds or (keyword in LEAST and value < LEAST[keyword]):
            yield keyword, told
        listed = enumerate(value) if isinstance(value, list) and keyword in IN_LISTS else ()
        mapped = value.items() if isinstance(value, dict) and keyword in IN_MAPS else ()
        for name, one in (*listed, *mapped):
            if type(one) not in SCHEMA:
                yield f"{keyword}.{name}", NO_SCHEMA


def simplify(schema: Any) -> None:
    """Take keywords off that hold for every instance, which the library might refuse, write
    references as URIs are written, and formats as patterns."""
    older = any(name in named_draft(schema) for name in WITHOUT_PREFIXES)
    refs = {str(one["$ref"]) for _, one in all_schemas(schema) if "$ref" in one}
    targets = filter(None, (pointed(schema, ref) for ref in refs))
    led = {path[:n] for path, _ in targets for n in range(1, len(path) + 1)}
    for path, value in all_schemas(schema):
        if "prefixItems" in value and not older:
            value.pop("additionalItems", None)  # the library would leave out the others
        if isinstance(ref := value.get("$ref"), str):
            value["$ref"] = quote(ref, safe=IN_URIS)
        if not value.keys().isdisjoint(("$ref", "anyOf", "oneOf", "allOf")):
            for key in value.keys() - NO_NOTES:
                if (*path, key) not in led:
                    del value[key]
        value |= {key: min(value[key], MOST_COUNT) for key in COUNTS if key in value}
        if value.get("uniqueItems") is False:
            del value["uniqueItems"]
        for keyword in ("unevaluatedItems", "unevaluatedProperties"):
            if value.get(keyword) in ANYTHING:
                del value[keyword]
        if value.get("propertyNames") in (*ANYTHING, {"type": "string"}):
            del value["propertyNames"]
        kind = value.get("format")
        if kind in FORMATS and "pattern" not in value:
            value["pattern"] = f"^{FORMATS[kind]}$"
            del value["format"]
        elif kind in DESCRIBING or ("pattern" in value and kind not in STANDARD_FORMATS):
            value.pop("format", None)  # the name of that pattern
