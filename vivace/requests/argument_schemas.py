"""The schema of a function's arguments, parameter by parameter.

A schema may refer to a part of itself any number of times, and to itself: so unions are gone
through once, however they refer to each other, and what is read is counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from vivace.grammar.schema_keywords import DEFINITIONS, spelled, wrong_keywords
from vivace.grammar.tool_tags import TagFormat, json_value
from vivace.parsers.json_values import MAX_NAME
from vivace.parsers.schema_types import MAX_STEPS, kinds, pointed_value, values

OF_STRINGS = frozenset(("minLength", "maxLength", "pattern", "format"))
OF_OTHERS = frozenset(
    (
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
        *("items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems"),
        *("contains", "minContains", "maxContains", "unevaluatedItems"),
        *("properties", "required", "additionalProperties", "patternProperties", "propertyNames"),
        *("minProperties", "maxProperties", "dependentRequired", "dependentSchemas"),
        *("dependencies", "unevaluatedProperties"),
    )
)
REFERRING = ("$ref", "$dynamicRef", "$recursiveRef")
OF_ALL = frozenset("type enum const anyOf oneOf allOf not if then else".split()).union(REFERRING)
"""keywords that say something; what is none of these only describes"""
SAYING = OF_ALL | OF_STRINGS | OF_OTHERS
OF_ARGUMENTS = frozenset(("type", "properties", "required", "additionalProperties"))
MOST_READ = 1 << 20
"""characters of schemas, of all functions of a request: twice what a constraint may have"""
MOST_OPTIONS = 1000
"""of a parameter: each is a rule, of which llguidance follows 2000 at a time"""
MOST_TWICE = 1 << 14
"""characters of schemas of objects that may be written as dicts of Python, too"""
VALUE = 8
"""characters that a value counts beside its text"""
IN_TAGS = "cannot be enforced in the tags that this model's calls are made of; leave it out"
NO_PROPERTY = "properties has none of this name, and additionalProperties allows no others"
NO_KEY = "a parameter of this name cannot be written in this model's calls"
TOO_MUCH = (
    "is too large: for each parameter that refers to something the whole schema is gone through; "
    "let fewer refer, write schemas where they are used, or shorten patterns (16 KiB for all)"
)


class NotWritable(Exception):
    """A schema that this model's calls cannot be made to obey; `place`: of the keyword."""

    def __init__(self, place: str, reason: str = IN_TAGS) -> None:
        super().__init__(reason)
        self.place = place
        self.reason = reason


class ReadingAllowance:
    """How much of schemas is gone through for one request."""

    def __init__(self, characters: int = MOST_READ, twice: int = MOST_TWICE) -> None:
        self._left, self._twice = characters, twice

    def take(self, characters: int, place: str) -> None:
        """Raises NotWritable when that is too much."""
        self._left -= characters
        if self._left < 0:
            raise NotWritable(place, TOO_MUCH)

    def take_twice(self, characters: int) -> bool:
        """Whether so much may be written in two ways."""
        self._twice -= characters
        return self._twice >= 0


@dataclass(frozen=True)
class Parameter:
    """A part of `root`, the schema of all arguments, which stands at `place`."""

    name: str
    schema: Any
    root: Mapping[str, Any]
    place: str
    needed: bool = True

    @property
    def kinds(self) -> set[str]:
        return kinds(self.schema, self.root)

    def json(self) -> TagFormat:
        """The value as JSON."""
        schema, defs = self.schema, {key: self.root[key] for key in DEFINITIONS if key in self.root}
        if not any(references(schema)):
            return json_value(schema, self.place)
        if not isinstance(schema, Mapping):
            raise NotWritable(self.place, "must be a schema")
        for ref in references([schema, defs]):
            if not ref.startswith(tuple(f"#/{key}/" for key in DEFINITIONS)):
                raise NotWritable(f"{self.place}.$ref", "must refer to what stands in $defs")
        return json_value({**schema, **defs}, self.place)

    def options(self) -> list[tuple[str, Any]]:
        """(its place, a schema) of all that it is one of: itself, unless it only says anyOf. Raises
        NotWritable."""
        found: list[tuple[str, Any]] = []
        seen: set[int] = set()
        stack = [(self.place, self.schema)]
        while stack:
            place, schema = stack.pop()
            if isinstance(schema, Mapping):
                if id(schema) in seen:
                    continue
                seen.add(id(schema))
            if said(schema) == {"anyOf"}:
                several = self.listed(schema, "anyOf")
                stack += [(f"{place}.anyOf.{i}", one) for i, one in enumerate(several)][::-1]
            elif (meant := one_step(schema, self.root)) is not schema:
                stack.append((self.place, meant))
            else:
                found.append((place, schema))
        if not found:
            raise NotWritable(self.place, "is nothing but itself")
        return found

    def listed(self, schema: Mapping[str, Any], keyword: str) -> list[Any]:
        """Of a keyword that is to have one. Raises NotWritable."""
        value = schema[keyword]
        if not isinstance(value, list) or not 0 < len(value) <= MOST_OPTIONS:
            raise NotWritable(f"{self.place}.{keyword}", f"must have 1 to {MOST_OPTIONS} entries")
        return value


@dataclass(frozen=True)
class Parameters:
    """`others`: what more there may be, under any name; None: nothing."""

    listed: list[Parameter]
    others: Parameter | None


def read_parameters(
    root: Mapping[str, Any], place: str, key: re.Pattern[str], allowance: ReadingAllowance
) -> Parameters:
    """`key`: of names that can be written. Raises NotWritable."""
    whole = text_size(root)
    allowance.take(whole, place)
    for path, reason in wrong_keywords(root):
        raise NotWritable(spelled(place, path), reason)
    schema = followed({key: one for key, one in root.items() if key != "type"}, root)
    if not isinstance(schema, Mapping):
        raise NotWritable(place, "refers to nothing that is an object")
    if not kinds(schema, root) <= {"object"} or not kinds(root, root) <= {"object", "null"}:
        raise NotWritable(f"{place}.type", "must be object")
    asked = (OF_ALL | OF_OTHERS) & set(schema) - OF_ARGUMENTS
    if asked:
        raise NotWritable(f"{place}.{min(asked)}")
    properties, required = schema.get("properties") or {}, schema.get("required") or ()
    if not isinstance(properties, Mapping) or not isinstance(required, list | tuple):
        raise NotWritable(place, "properties must be an object, required a list")
    found: list[Parameter] = []
    wanted = frozenset(map(str, required))
    closed = "properties" in schema and wanted <= properties.keys()
    more = schema.get("additionalProperties", not closed)
    for name in dict.fromkeys((*properties, *map(str, required))):
        inner, at = properties.get(name, more), f"{place}.properties.{name[:MAX_NAME]}"
        if inner is False and name not in wanted:
            continue
        if inner is False and name not in properties:
            raise NotWritable(f"{place}.required", f"{name[:MAX_NAME]!r}: {NO_PROPERTY}")
        if inner is False or len(name) > MAX_NAME or key.fullmatch(name) is None:
            raise NotWritable(at, NO_KEY)
        found.append(Parameter(name, inner, root, at, name in wanted))
    others = Parameter("", more, root, f"{place}.additionalProperties")
    for one in (*found, others):
        allowance.take(whole if any(references(one.schema)) else 0, one.place)
    return Parameters(found, None if more is False else others)


def said(schema: Any) -> set[str]:
    """The keywords of a schema that say something."""
    return set(schema) & SAYING if isinstance(schema, Mapping) else set()


def one_step(schema: Any, root: Mapping[str, Any]) -> Any:
    """What a part of `root` refers to if it does nothing else; else itself."""
    asked = said(schema)
    if asked == {"$ref"}:
        return pointed_value(root, schema["$ref"]) if isinstance(schema["$ref"], str) else None
    if asked == {"allOf"} and isinstance(schema["allOf"], list) and len(schema["allOf"]) == 1:
        return schema["allOf"][0]
    return schema


def followed(schema: Any, root: Mapping[str, Any]) -> Any:
    """What a part of `root` stands for that only refers to another; else itself."""
    for _ in range(MAX_STEPS):
        meant = one_step(schema, root)
        if meant is schema:
            return schema
        schema = meant
    return None


def references(value: Any) -> Iterator[str]:
    """All that a schema refers to."""
    for one in values(value):
        if isinstance(one, Mapping):
            yield from (one[key] for key in REFERRING if isinstance(one.get(key), str))


def text_size(value: Any) -> int:
    """Characters of a schema, about."""
    size = 0
    for one in values(value):
        size += VALUE + (len(one) if isinstance(one, str) else 0)
        size += sum(map(len, one)) if isinstance(one, Mapping) else 0
    return size
