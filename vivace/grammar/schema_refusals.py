"""Where in a schema it is that the library refuses, and in whose words a client is told."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import msgspec

from vivace.grammar.backend import JsonFormat
from vivace.grammar.flat_grammars import validate_grammar
from vivace.grammar.json_schema import check_schema, json_grammar
from vivace.grammar.schema_keywords import PATTERNS, all_schemas, spelled
from vivace.grammar.schema_patterns import fitted_pattern
from vivace.grammar.schema_references import use_pointers
from vivace.parsers.schema_types import MAX_STEPS, Path, pointed

MAX_REASON = 400
MOST_TRIALS = 20
MOST_TRIED_BYTES = 128 << 10
"""of all trials"""
NO_RESOURCE = re.compile(r"Resource '([^']*)' is not present")


@dataclass(frozen=True)
class RefusalRule:
    """`said`: what the library says; `blames`: whether that is about a keyword with that value;
    `told`: what a client is told, with the groups of `said` in it."""

    said: re.Pattern[str]
    blames: Callable[[re.Match[str], str, Any], bool]
    told: str


def _has_expression(said: re.Match[str], keyword: str, value: Any) -> bool:
    written = list(value) if keyword == PATTERNS and isinstance(value, dict) else [value]
    known = keyword in ("pattern", PATTERNS)
    return known and any(_as_shown(str(one)) in said[0] for one in written)


def _as_shown(pattern: str) -> str:
    """By the library."""
    return re.sub(r"\\?/", r"\\/", " ".join(pattern.split()))


def _refers(said: re.Match[str], keyword: str, value: Any) -> bool:
    other = str(value).partition("#")[0]
    return keyword == "$ref" and bool(other) and said[1].endswith(other.lstrip("./"))


def _points(said: re.Match[str], keyword: str, value: Any) -> bool:
    return keyword == "$ref" and str(value).partition("#")[2] == said[1]


NO_EXPRESSION = re.compile(r"regex parse error: .*?error: ([^|]*?)(?: \d+ \||$)")
ANCHORS = re.compile(r"(lookarounds) not supported yet; \w+ in regex /.*?/(?: \d+ \||$)")
NO_ANCHORS = "it has word boundaries, or anchors inside"
RULES = (
    RefusalRule(
        re.compile(r'Unimplemented keys: \[.*"(uniqueItems)"'),
        lambda _, keyword, __: keyword == "uniqueItems",
        "can be enforced only where items are a choice of up to five plain values (eight where "
        "maxItems is 2), or maxItems is 1; leave it out",
    ),
    RefusalRule(
        re.compile(r"Unimplemented keys: (\[.*?\])"),
        lambda said, keyword, _: keyword in msgspec.json.decode(said[1]),
        "this keyword cannot be enforced; leave it out",
    ),
    RefusalRule(
        re.compile(r"Unknown format: ([^ ]*)"),
        lambda said, keyword, value: keyword == "format" and str(value).startswith(said[1]),
        "the format {0!r:.60} cannot be enforced; use a pattern",
    ),
    RefusalRule(
        re.compile("oneOf constraints are not supported"),
        lambda _, keyword, __: keyword == "oneOf",
        "its choices overlap, which cannot be enforced; use anyOf, or choices that exclude each "
        "other",
    ),
    RefusalRule(
        NO_RESOURCE,
        _refers,
        "refers to another document, and none is fetched; put what it has under $defs",
    ),
    RefusalRule(
        NO_RESOURCE,
        lambda _, keyword, __: keyword == "$schema",
        "this draft of JSON Schema is not known; leave it out",
    ),
    RefusalRule(re.compile(r"Pointer '([^']*)' does not exist"), _points, "refers to nothing"),
    RefusalRule(
        re.compile(r"circular references with sibling keys are not supported: [^ #]*#([^ ]*)"),
        _points,
        "a reference that comes back to itself cannot be enforced with other keywords beside it; "
        "leave them out",
    ),
    RefusalRule(
        re.compile("min/maxProperties only supported"),
        lambda _, keyword, __: keyword in ("minProperties", "maxProperties"),
        "can be enforced only where all properties are required; leave it out",
    ),
    RefusalRule(
        re.compile("patternProperty regexes /(.*?)/ and /(.*?)/ are not disjoint"),
        lambda said, keyword, value: keyword == PATTERNS and said[1] in value,
        "{0!r:.60} and {1!r:.60} fit the same names, which cannot be enforced",
    ),
    RefusalRule(NO_EXPRESSION, _has_expression, "cannot be enforced: {0:.200}; write it otherwise"),
    RefusalRule(ANCHORS, _has_expression, f"cannot be enforced: {NO_ANCHORS}"),
    RefusalRule(
        re.compile(r"(Unable) to determine if regex is empty: .*"),
        _has_expression,
        "cannot be enforced with the lengths or the format beside it; leave these out",
    ),
    RefusalRule(
        re.compile("required property '([^']*)' is unsatisfiable"),
        lambda said, keyword, value: keyword == "required" and said[1] in value,
        "no value of {0!r:.60} is possible: its keywords contradict each other",
    ),
    RefusalRule(  # the library knows those documents, and no other rule has found anything
        re.compile("Unimplemented keys|Unknown format"),
        lambda _, keyword, value: keyword == "$ref" and "//json-schema.org/" in str(value),
        'refers to JSON Schema itself, which cannot be enforced; use {{"type": "object"}}',
    ),
)


def explain_blamed(schemas: Sequence[tuple[str, Any]], reason: str) -> str:
    """What the library says, with the place it is about; empty where that is in none of the
    schemas, which are as a client has them, each with its own place."""
    text = " ".join(reason.split())
    found = [(rule, said) for rule in RULES if (said := rule.said.search(text))]
    read = list[tuple[str, Any, Any]]()
    for place, schema in schemas if found else ():
        check_schema(words := deepcopy(schema), place)
        use_pointers(schema)
        read.append((place, schema, words))
    for rule, said in found:
        for place, schema, words in read:
            if path := _blamed(words, rule, said):
                told = rule.told.format(*(group.strip() for group in said.groups()))
                return f"{spelled(place, _written_path(path, schema))}: {told}"
    return ""


def _written_path(path: Path, schema: Any) -> Path:
    """Where a client has what stands there in other words."""
    found, value, rest = Path(), schema, list(path)
    for _ in range(len(path) + MAX_STEPS):
        held: Any = dict(enumerate(value)) if isinstance(value, list) else value
        if not rest or not isinstance(held, dict):
            break
        if rest[0] in held:
            found, value = (*found, rest[0]), held[rest.pop(0)]
        elif rest[0] == PATTERNS and "propertyNames" in held:
            rest[:2] = ["additionalProperties" if rest[1:] else "propertyNames"]
        elif found[-1:] == (PATTERNS,):
            fitted = {fitted_pattern(one, wide=wide): one for one in held for wide in (False, True)}
            rest[0] = fitted.get(str(rest[0]), "")
        elif target := pointed(schema, str(held.get("$ref"))):
            found, value = target
        else:
            break
    return found or path


def explain_expression(reason: str) -> str:
    """What the library says of an expression, without the grammar that it stands in there."""
    text = " ".join(reason.split())
    if said := NO_EXPRESSION.search(text):
        return said[1].strip()[:MAX_REASON]
    return NO_ANCHORS if ANCHORS.search(text) else text[:MAX_REASON]


def _blamed(schema: Any, rule: RefusalRule, said: re.Match[str]) -> Path:
    """The path of a keyword; empty: none of the schema."""
    found = [
        (*path, keyword)
        for path, one in all_schemas(schema)
        for keyword, value in one.items()
        if rule.blames(said, keyword, value)
    ]
    return _guilty(schema, found, said) if found else ()


def _guilty(schema: Any, found: Sequence[Path], said: re.Match[str]) -> Path:
    """Of several choices that may be to blame, the first with which alone it is refused, too."""
    size = len(msgspec.json.encode(schema))
    if found[0][-1] != "oneOf" or len(found) * size > MOST_TRIED_BYTES:
        return found[0]
    for path in found[:MOST_TRIALS]:
        if said.re.search(_said_without(schema, [other for other in found if other != path])):
            return path
    return found[0]


def _said_without(schema: Any, paths: Sequence[Path]) -> str:
    copy: Any = msgspec.json.decode(msgspec.json.encode(schema))
    for path, one in [*all_schemas(copy)]:
        if (*path, "oneOf") in paths:
            del one["oneOf"]
    return validate_grammar(json_grammar(copy, JsonFormat()))
