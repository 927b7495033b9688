"""Arguments as Python has them: `city="Paris", days=3`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from vivace.grammar.tool_tags import (
    TagFormat,
    any_text,
    constant,
    defined,
    either,
    listed,
    sequence,
    tagged,
    with_definitions,
)
from vivace.parsers.call_syntax import ParameterTags
from vivace.parsers.schema_types import STRING
from vivace.requests.argument_schemas import (
    NotWritable,
    Parameter,
    Parameters,
    ReadingAllowance,
    read_parameters,
    references,
    said,
)
from vivace.requests.parameter_formats import TaggedValue, behind, is_plain

PYTHON_KEY, PYTHON_KEYS = re.compile(r"[^\W\d][\w.]*"), "[A-Za-z_][A-Za-z_0-9]{0,63}"
QUOTED = ParameterTags(begin="'", end="'", excluded=("'", "\\", "\n"))
"""A string with one of these in it is written as JSON writes it."""
WORDS: Mapping[str, tuple[str, ...]] = {"boolean": ("True", "False"), "null": ("None",)}
MAX_DEPTH = 3
"""of lists in lists that are written otherwise than JSON"""


def keyword_arguments(
    root: Mapping[str, Any], place: str, allowance: ReadingAllowance
) -> TagFormat:
    """`key=value, ...` in the order of the schema; others behind them. Raises NotWritable."""
    parameters = read_parameters(root, place, PYTHON_KEY, allowance)
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


def python_value(parameter: Parameter, depth: int = 0) -> TagFormat:
    """JSON, which is read as Python, or as Python writes it. Raises NotWritable."""
    options = [replace(parameter, schema=one, place=place) for place, one in parameter.options()]
    ways = [way for option in options for way in own_ways(option, depth)]
    words_alone = all(said(one.schema) == {"type"} and one.kinds <= set(WORDS) for one in options)
    return either(ways if ways and words_alone else [parameter.json(), *ways])


def own_ways(option: Parameter, depth: int) -> Iterator[TagFormat]:
    """To write a value, which JSON does not have."""
    schema, options = option.schema, [(option.place, option.schema)]
    asked, plain = said(schema), is_plain(options)
    allowed = {"string", *WORDS} if plain and not asked else option.kinds
    if plain:
        yield from (constant(word) for kind in sorted(allowed & set(WORDS)) for word in WORDS[kind])
    if allowed == STRING or (plain and "string" in allowed):
        with suppress(NotWritable):
            yield behind("'", TaggedValue(option, QUOTED).text(options))
    is_list = asked == {"type", "items"} and option.kinds == {"array"} and depth < MAX_DEPTH
    if is_list and not any(references(schema["items"])):  # else definitions come with each
        item = replace(option, schema=schema["items"], place=f"{option.place}.items")
        yield tagged("[", listed([python_value(item, depth + 1)], ", ", needed=False), "]")
