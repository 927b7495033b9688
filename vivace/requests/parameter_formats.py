"""Arguments that are not one JSON object: from their schema to what a model may write.

What is allowed here obeys the schema once the answer's reader has made JSON of it. Where that
cannot be said, NotWritable names the keyword.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vivace.grammar.backend import GrammarError
from vivace.grammar.schema_keywords import DESCRIBING
from vivace.grammar.schema_patterns import rust_pattern
from vivace.grammar.tool_tags import (
    TagFormat,
    any_text,
    constant,
    either,
    json_value,
    listed,
    optional,
    sequence,
    tagged,
)
from vivace.parsers.call_syntax import KEY, ParameterTags
from vivace.parsers.schema_types import STRING, json_kinds, kinds
from vivace.parsers.tagged_calls import OPEN_JSON, converted
from vivace.requests.argument_schemas import (
    IN_TAGS,
    MOST_OPTIONS,
    OF_ALL,
    OF_STRINGS,
    NotWritable,
    Parameter,
    Parameters,
    ReadingAllowance,
    read_parameters,
    said,
)
from vivace.requests.text_formats import FORMATS, as_search

TAG_KEY = re.compile(r'[^<>"\s](?:[^<>"\n]*[^<>"\s])?')
TAG_KEYS = r'[^<>"\s](?:[^<>"\n]{0,62}[^<>"\s])?'
MAX_LENGTH = 100_000
PATTERN_COST = 64
"""of a character of an expression, which is read part by part, in characters of schemas"""
Options = Sequence[tuple[str, Any]]
"""as `Parameter.options` has them"""


def tagged_arguments(
    root: Mapping[str, Any], place: str, tags: ParameterTags, allowance: ReadingAllowance
) -> TagFormat:
    """A tag for each, in the order of the schema; others behind them; or one JSON object where
    that can stand there, too, and nothing else does. Raises NotWritable."""
    try:
        return all_tags(read_parameters(root, place, TAG_KEY, allowance), tags, allowance)
    except NotWritable:
        if not tags.json_begin:
            raise
    return sequence(json_value(root, place), constant("\n"))


def all_tags(parameters: Parameters, tags: ParameterTags, allowance: ReadingAllowance) -> TagFormat:
    parts: list[TagFormat] = []
    for one in parameters.listed:
        form = TaggedValue(one, tags, allowance).format(one.name)
        parts.append(form if one.needed else optional(form))
    if parameters.others is not None:
        names = "|".join(re.escape(one.name) for one in parameters.listed)
        value = TaggedValue(parameters.others, tags, allowance)
        parts.append(listed([value.with_any_key(names)], needed=False))
    return sequence(*parts) if parts else constant("")


@dataclass(frozen=True)
class TaggedValue:
    """One parameter as it is written in tags."""

    parameter: Parameter
    tags: ParameterTags
    allowance: ReadingAllowance

    def format(self, name: str) -> TagFormat:
        """With its tag."""
        return either([behind(begin.replace(KEY, name), value) for begin, value in self._ways()])

    def with_any_key(self, names: str) -> TagFormat:
        """The same under a key that is none of `names`, an expression."""
        key = any_text(patterns=[TAG_KEYS], unlike=[f"(?:{names})"] if names else ())
        ways = [(begin.partition(KEY), value) for begin, value in self._ways()]
        return either([sequence(tagged(head, key, end), value) for (head, _, end), value in ways])

    def _ways(self) -> list[tuple[str, TagFormat]]:
        """(what the tag begins with, the value and what ends it)"""
        tags, allowed, options = self.tags, self.parameter.kinds, self.parameter.options()
        if tags.json_begin:
            return self._flagged_ways(options, allowed)
        is_string = allowed == STRING or not (allowed or tags.untyped)
        if ("string" in allowed or not allowed) and is_plain(options):
            return [(tags.begin, self._any_text(is_string=is_string))]
        begin = tags.begin + tags.edge
        if is_string:
            return [(begin, self.text(options))]
        values = self._values(options)
        if values is not None:
            texts = {text for value in values for text in self._spellings(value, allowed)}
            return [(begin, self._constants(sorted(texts)))]
        return [(begin, self._json())]

    def _flagged_ways(self, options: Options, allowed: set[str]) -> list[tuple[str, TagFormat]]:
        """A tag says which way it is."""
        tags = self.tags
        ways: list[tuple[str, TagFormat]] = []
        if allowed == STRING or ((not allowed or "string" in allowed) and is_plain(options)):
            try:
                ways.append((tags.begin, self.text(options)))
            except NotWritable:
                return [(tags.json_begin, self._json())]
        return ways if allowed == STRING else [*ways, (tags.json_begin, self._json())]

    def _values(self, options: Options) -> list[Any] | None:
        """The few values that it allows; None where they are not listed."""
        found: list[Any] = []
        for _, schema in options:
            values = self._listed_values(schema)
            if values is None:
                return None
            found += values
            if len(found) > MOST_OPTIONS:
                reason = f"has over {MOST_OPTIONS} values that it may be"
                raise NotWritable(self.parameter.place, reason)
        return found

    def _listed_values(self, schema: Any) -> list[Any] | None:
        if not isinstance(schema, Mapping):
            return None
        asked = said(schema)
        types = kinds({"type": schema["type"]}, {}) if "type" in schema else None
        if asked - {"type"} == {"enum"}:
            values = self.parameter.listed(schema, "enum")
        elif asked - {"type"} == {"const"}:
            values = [schema["const"]]
        elif asked == {"type"} and types is not None and types <= {"boolean", "null"}:
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
                yield str(value)  # as Python has it

    def text(self, options: Options) -> TagFormat:
        """A value that the reader takes for a string, whatever it is. Raises NotWritable."""
        return either([self._one_text(place, schema) for place, schema in options])

    def _one_text(self, place: str, schema: Any) -> TagFormat:
        if schema is True:
            return self._any_text([])
        if not isinstance(schema, Mapping):
            raise NotWritable(place)
        asked = set(schema) & (OF_ALL | OF_STRINGS) - {"type"}
        if asked in ({"enum"}, {"const"}):
            listed = self.parameter.listed
            values = listed(schema, "enum") if "enum" in asked else [schema["const"]]
            return self._constants([one for one in values if isinstance(one, str)])
        if asked - OF_STRINGS:
            raise NotWritable(f"{place}.{min(asked - OF_STRINGS)}")
        cost = PATTERN_COST * len(str(schema.get("pattern", "")))
        self.allowance.take(cost + len(FORMATS.get(str(schema.get("format")), "")), place)
        return self._any_text([one for key in asked for one in text_patterns(key, schema, place)])

    # -- values with what ends them ----------------------------------------------------------------

    def _any_text(self, patterns: list[str] | None = None, *, is_string: bool = True) -> TagFormat:
        """Without `patterns` with edges or without: the reader takes them off if they are there.
        It may read JSON unless the value `is_string`."""
        tags = self.tags
        if patterns is None:
            unlike = [] if is_string else [OPEN_JSON]
            return tagged("", any_text(tags.excluded, unlike=unlike), tags.end)
        text = any_text(tags.excluded, patterns=patterns, place=self.parameter.place)
        return tagged("", text, tags.edge + tags.end)

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


def is_plain(options: Options) -> bool:
    """Every value of its types obeys it."""
    return all(
        schema is True or (isinstance(schema, Mapping) and said(schema) <= {"type"})
        for _, schema in options
    )


def behind(begin: str, value: TagFormat) -> TagFormat:
    if value["type"] == "tag":
        return {**value, "begin": begin + value["begin"]}
    return tagged(begin, value, "")


def text_patterns(keyword: str, schema: Mapping[str, Any], place: str) -> Iterator[str]:
    """Expressions for the whole of a text that obeys a keyword. Raises NotWritable."""
    value, at = schema[keyword], f"{place}.{keyword}"
    if keyword in ("minLength", "maxLength"):
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < MAX_LENGTH:
            raise NotWritable(at, f"must be a whole number from 0 to {MAX_LENGTH - 1}")
        yield f"(?s:.{{{value},}})" if keyword == "minLength" else f"(?s:.{{0,{value}}})"
    elif keyword == "pattern":
        try:
            if not isinstance(value, str) or (pattern := as_search(value)) is None:
                raise NotWritable(at)
            yield rust_pattern(pattern)
        except GrammarError as error:
            raise NotWritable(at, str(error)) from error
    elif str(value) in FORMATS:
        yield FORMATS[str(value)].replace(r"\d", "[0-9]")
    elif str(value) not in DESCRIBING:
        raise NotWritable(at, f"{IN_TAGS}, or write a pattern")
