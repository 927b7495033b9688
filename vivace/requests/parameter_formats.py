"""Arguments that are not one JSON object: from their schema to what a model may write.

What is allowed here obeys the schema once the answer's reader has made JSON of it. Where that
cannot be said, NotWritable names the keyword.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from vivace.grammar.schema_keywords import DESCRIBING
from vivace.grammar.tool_tags import (
    TagFormat,
    any_text,
    constant,
    defined,
    either,
    json_value,
    listed,
    optional,
    sequence,
    tagged,
    with_definitions,
)
from vivace.parsers.call_syntax import KEY, ParameterTags
from vivace.parsers.json_values import MAX_NAME
from vivace.parsers.schema_types import MAX_STEPS, STRING, json_kinds, kinds, pointed
from vivace.parsers.tagged_calls import OPEN_JSON, converted
from vivace.requests.text_formats import FORMATS, as_search

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
OF_ALL = frozenset(
    (
        *("type", "enum", "const", "anyOf", "oneOf", "allOf", "not", "if", "then", "else"),
        *("$ref", "$dynamicRef", "$recursiveRef"),
    )
)
"""keywords that say something; what is none of these only describes"""
SAYING = OF_ALL | OF_STRINGS | OF_OTHERS
OF_ARGUMENTS = frozenset(("type", "properties", "required", "additionalProperties"))
DEFINITIONS = ("$defs", "definitions")
TAG_KEY = re.compile(r'[^<>"\s](?:[^<>"\n]*[^<>"\s])?')
TAG_KEYS = r'[^<>"\s](?:[^<>"\n]{0,62}[^<>"\s])?'
PYTHON_KEY, PYTHON_KEYS = re.compile(r"[^\W\d][\w.]*"), "[A-Za-z_][A-Za-z_0-9]{0,63}"
PYTHON = {True: "True", False: "False", None: "None"}
IN_TAGS = "cannot be enforced in the tags that this model's calls are made of; leave it out"
NO_KEY = "a parameter of this name cannot be written in this model's calls"


class NotWritable(Exception):
    """A schema that this model's calls cannot be made to obey; `place`: of the keyword."""

    def __init__(self, place: str, reason: str = IN_TAGS) -> None:
        super().__init__(reason)
        self.place = place
        self.reason = reason


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
        for ref in references([schema, defs]):
            if not ref.startswith(tuple(f"#/{key}/" for key in DEFINITIONS)):
                raise NotWritable(f"{self.place}.$ref", "must refer to what stands in $defs")
        whole = {**schema, **defs} if isinstance(schema, dict) else schema
        return json_value(whole, self.place)


@dataclass(frozen=True)
class Parameters:
    """`others`: what more there may be, under any name; None: nothing."""

    listed: list[Parameter]
    others: Parameter | None


def read_parameters(root: Mapping[str, Any], place: str, key: re.Pattern[str]) -> Parameters:
    """`key`: of names that can be written. Raises NotWritable."""
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
    for name in dict.fromkeys((*properties, *map(str, required))):
        inner, at = properties.get(name, {}), f"{place}.properties.{name}"
        if inner is False and name not in required:
            continue
        if inner is False or len(name) > MAX_NAME or key.fullmatch(name) is None:
            raise NotWritable(at, NO_KEY)
        found.append(Parameter(name, inner, root, at, name in required))
    more = schema.get("additionalProperties", True)
    others = Parameter("", more, root, f"{place}.additionalProperties")
    return Parameters(found, None if more is False else others)


def followed(schema: Any, root: Mapping[str, Any]) -> Any:
    """What a part of `root` stands for that only refers to another; else itself."""
    for _ in range(MAX_STEPS):
        said = set(schema) & SAYING if isinstance(schema, Mapping) else ()
        if said == {"$ref"}:
            schema = pointed(root, schema["$ref"]) if isinstance(schema["$ref"], str) else None
        elif said == {"allOf"} and isinstance(schema["allOf"], list) and len(schema["allOf"]) == 1:
            schema = schema["allOf"][0]
        else:
            return schema
    return None


def references(value: Any) -> Iterator[str]:
    """All that a schema refers to."""
    stack = [value]
    while stack:
        one = stack.pop()
        if isinstance(one, Mapping):
            yield from (ref for key, ref in one.items() if key == "$ref" and isinstance(ref, str))
            stack += one.values()
        elif isinstance(one, list):
            stack += one


# -- tags ------------------------------------------------------------------------------------------


def tagged_arguments(root: Mapping[str, Any], place: str, tags: ParameterTags) -> TagFormat:
    """A tag for each, in the order of the schema; others behind them; or one JSON object where
    that can stand there, too, and nothing else does. Raises NotWritable."""
    try:
        return tags_for_all(read_parameters(root, place, TAG_KEY), tags)
    except NotWritable:
        if not tags.json_begin:
            raise
    return sequence(json_value(root, place), constant("\n"))


def tags_for_all(parameters: Parameters, tags: ParameterTags) -> TagFormat:
    parts: list[TagFormat] = []
    for one in parameters.listed:
        form = TaggedValue(one, tags).format(one.name)
        parts.append(form if one.needed else optional(form))
    if parameters.others is not None:
        names = "|".join(re.escape(one.name) for one in parameters.listed)
        value = TaggedValue(parameters.others, tags)
        parts.append(listed([value.with_any_key(names)], needed=False))
    return sequence(*parts) if parts else constant("")


@dataclass(frozen=True)
class TaggedValue:
    """One parameter as it is written in tags."""

    parameter: Parameter
    tags: ParameterTags

    def format(self, name: str) -> TagFormat:
        """With its tag."""
        ways = self._ways(self.parameter.schema)
        return either([behind(begin.replace(KEY, name), value) for begin, value in ways])

    def with_any_key(self, names: str) -> TagFormat:
        """The same under a key that is none of `names`, an expression."""
        key = any_text(patterns=[TAG_KEYS], unlike=[f"(?:{names})"] if names else ())
        ways: list[TagFormat] = []
        for begin, value in self._ways(self.parameter.schema):
            head, _, tail = begin.partition(KEY)
            ways.append(sequence(tagged(head, key, tail), value))
        return either(ways)

    def _ways(self, schema: Any) -> list[tuple[str, TagFormat]]:
        """(what the tag begins with, the value and what ends it)"""
        tags, allowed = self.tags, self.parameter.kinds
        if tags.json_begin:
            return self._flagged_ways(schema, allowed)
        is_string = allowed == STRING or not (allowed or tags.untyped)
        if ("string" in allowed or not allowed) and self._is_plain(schema):
            return [(tags.begin, self._any_text(is_string=is_string))]
        begin = tags.begin + tags.edge
        if is_string:
            return [(begin, self._text(schema, self.parameter.place))]
        values = self._values(schema)
        if values is not None:
            texts = {text for value in values for text in self._spellings(value, allowed)}
            return [(begin, self._constants(sorted(texts)))]
        return [(begin, self._json())]

    def _flagged_ways(self, schema: Any, allowed: set[str]) -> list[tuple[str, TagFormat]]:
        """A tag says which way it is."""
        tags = self.tags
        ways: list[tuple[str, TagFormat]] = []
        if allowed == STRING or ((not allowed or "string" in allowed) and self._is_plain(schema)):
            try:
                ways.append((tags.begin, self._text(schema, self.parameter.place)))
            except NotWritable:
                return [(tags.json_begin, self._json())]
        return ways if allowed == STRING else [*ways, (tags.json_begin, self._json())]

    def _is_plain(self, schema: Any) -> bool:
        """Every value of its types obeys it."""
        schema = followed(schema, self.parameter.root)
        if schema is True or schema == {}:
            return True
        if not isinstance(schema, Mapping):
            return False
        said = set(schema) & SAYING
        if said <= {"type"}:
            return True
        return said == {"anyOf"} and all(map(self._is_plain, self._list(schema, "anyOf")))

    def _list(self, schema: Mapping[str, Any], keyword: str) -> list[Any]:
        """Of a keyword that is to have one. Raises NotWritable."""
        value = schema[keyword]
        if not isinstance(value, list) or not value:
            reason = "must be a list that is not empty"
            raise NotWritable(f"{self.parameter.place}.{keyword}", reason)
        return value

    def _values(self, schema: Any) -> list[Any] | None:
        """The few values that it allows; None where they are not listed."""
        schema = followed(schema, self.parameter.root)
        if not isinstance(schema, Mapping):
            return None
        said = set(schema) & SAYING
        if said == {"anyOf"}:
            options = [self._values(option) for option in self._list(schema, "anyOf")]
            return None if None in options else [one for each in options for one in each or ()]
        types = kinds({"type": schema["type"]}, {}) if "type" in schema else None
        if said - {"type"} == {"enum"}:
            values = self._list(schema, "enum")
        elif said - {"type"} == {"const"}:
            values = [schema["const"]]
        elif said == {"type"} and types is not None and types <= {"boolean", "null"}:
            return [*((True, False) if "boolean" in types else ()), *[None] * ("null" in types)]
        else:
            return None
        return [one for one in values if types is None or json_kinds(one) & types]

    def _spellings(self, value: Any, allowed: set[str]) -> Iterator[str]:
        """Texts that the reader takes for this value."""
        written = json.dumps(value, ensure_ascii=False)
        if isinstance(value, str):
            plain = json.loads(converted(value, allowed)) == value
            yield value if plain else written
        else:
            yield written
            if isinstance(value, bool | None):
                yield PYTHON[value]

    def _text(self, schema: Any, place: str) -> TagFormat:
        """A value that the reader takes for a string, whatever it is. Raises NotWritable."""
        schema = followed(schema, self.parameter.root)
        if schema is True:
            return self._any_text([])
        if not isinstance(schema, Mapping):
            raise NotWritable(place)
        said = set(schema) & (OF_ALL | OF_STRINGS) - {"type"}
        if said == {"anyOf"}:
            options = enumerate(self._list(schema, "anyOf"))
            return either([self._text(one, f"{place}.anyOf.{index}") for index, one in options])
        if said in ({"enum"}, {"const"}):
            values = self._list(schema, "enum") if "enum" in said else [schema["const"]]
            return self._constants([one for one in values if isinstance(one, str)])
        if said - OF_STRINGS:
            raise NotWritable(f"{place}.{min(said - OF_STRINGS)}")
        return self._any_text(
            [pattern for key in said for pattern in text_patterns(key, schema, place)]
        )

    # -- values with what ends them ----------------------------------------------------------------

    def _any_text(self, patterns: list[str] | None = None, *, is_string: bool = True) -> TagFormat:
        """Without `patterns` with edges or without: the reader takes them off if they are there.
        It may read JSON unless the value `is_string`."""
        tags = self.tags
        if patterns is None:
            unlike = [] if is_string else [OPEN_JSON]
            return tagged("", any_text(tags.excluded, unlike=unlike), tags.end)
        return tagged("", any_text(tags.excluded, patterns=patterns), tags.edge + tags.end)

    def _constants(self, texts: list[str]) -> TagFormat:
        tags = self.tags
        whole = [text for text in texts if not any(word in text for word in tags.excluded)]
        if not whole:
            reason = "none of its values can be written in this model's calls"
            raise NotWritable(self.parameter.place, reason)
        return either([constant(text + tags.edge + tags.end) for text in whole])

    def _json(self) -> TagFormat:
        tags = self.tags
        return tagged("", self.parameter.json(), tags.edge + tags.end)


def behind(begin: str, value: TagFormat) -> TagFormat:
    """In as few parts as there can be."""
    match value["type"]:
        case "tag":
            return {**value, "begin": begin + value["begin"]}
        case "const_string":
            return constant(begin + value["value"])
        case _:
            return sequence(constant(begin), value)


def text_patterns(keyword: str, schema: Mapping[str, Any], place: str) -> Iterator[str]:
    """Expressions for the whole of a text that obeys a keyword. Raises NotWritable."""
    value, at = schema[keyword], f"{place}.{keyword}"
    if keyword in ("minLength", "maxLength"):
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < MAX_LENGTH:
            raise NotWritable(at, f"must be a whole number from 0 to {MAX_LENGTH - 1}")
        yield f"(?s:.{{{value},}})" if keyword == "minLength" else f"(?s:.{{0,{value}}})"
    elif keyword == "pattern":
        pattern = as_search(value) if isinstance(value, str) else None
        if pattern is None:
            raise NotWritable(at)
        yield pattern
    elif str(value) in FORMATS:
        yield FORMATS[str(value)]
    elif str(value) not in DESCRIBING:
        raise NotWritable(at, f"{IN_TAGS}, or write a pattern")


MAX_LENGTH = 100_000

# -- Python ----------------------------------------------------------------------------------------


def keyword_arguments(root: Mapping[str, Any], place: str) -> TagFormat:
    """`key=value, ...` in the order of the schema; others behind them. Raises NotWritable."""
    parameters = read_parameters(root, place, PYTHON_KEY)
    formats = {"": constant("")}
    if parameters.others is not None:
        formats = {begin: other_keywords(parameters, begin) for begin in ("", ", ")}
    rests = {begin: begin if begin in formats else "" for begin in ("", ", ")}
    for number, one in reversed(list(enumerate(parameters.listed))):
        formats[f"{number}"] = python_value(one)
        names: dict[str, str] = {}
        for begin in ("", ", ") if number else ("",):
            form = sequence(
                constant(f"{begin}{one.name}="), defined(f"{number}"), defined(rests[", "])
            )
            names[begin] = f"{number}{begin or '('}"
            formats[names[begin]] = form if one.needed else either([form, defined(rests[begin])])
        rests = names
    return with_definitions(formats, defined(rests[""]))


def other_keywords(parameters: Parameters, begin: str) -> TagFormat:
    """Any more of them, the first behind `begin`."""
    assert parameters.others is not None
    names = "|".join(re.escape(one.name) for one in parameters.listed)
    key = any_text(patterns=[PYTHON_KEYS], unlike=[f"(?:{names})"] if names else ())
    value = parameters.others.json()
    if begin:
        return listed([sequence(tagged(begin, key, "="), value)], needed=False)
    return listed([sequence(tagged("", key, "="), value)], ", ", needed=False)


def python_value(parameter: Parameter) -> TagFormat:
    """JSON, which is read as Python; but its constants as they are written there."""
    schema = followed(parameter.schema, parameter.root)
    if isinstance(schema, Mapping):
        said = set(schema) & SAYING
        if said == {"type"} and schema["type"] == "boolean":
            return either([constant("True"), constant("False")])
        if said == {"type"} and schema["type"] == "null":
            return constant("None")
    return parameter.json()
