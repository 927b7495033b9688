"""Arguments as Python has them: `city="Paris", days=3`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
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
    OF_ARGUMENTS,
    NotWritable,
    Parameter,
    Parameters,
    ReadingAllowance,
    read_parameters,
    references,
    said,
    text_size,
)
from vivace.requests.parameter_formats import TaggedValue, behind, is_plain

DICT_KEY = re.compile(r"[^'\"\\\x00-\x1f]+")
PYTHON_KEY, PYTHON_KEYS = re.compile(r"[^\W\d][\w.]*"), "[A-Za-z_][A-Za-z_0-9]{0,63}"
QUOTED = ParameterTags(begin="'", end="'", excluded=("'", "\\", "\n"))
"""A string with one of these in it is written as JSON writes it."""
WORDS: Mapping[str, tuple[str, ...]] = {"boolean": ("True", "False"), "null": ("None",)}
MAX_DEPTH = 3
"""of lists and dicts in others that are written otherwise than JSON"""


def keyword_arguments(
    root: Mapping[str, Any], place: str, allowance: ReadingAllowance
) -> TagFormat:
    """`key=value, ...` in the order of the schema; others behind them. Raises NotWritable."""
    parameters = read_parameters(root, place, PYTHON_KEY, allowance)
    return PythonMembers(parameters, place, KEYWORDS, allowance).format()


@dataclass(frozen=True)
class KeyStyle:
    """`quotes`: (what stands before, and behind) a key of its own, in each way to write it; `keys`:
    an expression of other keys."""

    quotes: tuple[tuple[str, str], ...]
    keys: str


KEYWORDS = KeyStyle((("", "="),), PYTHON_KEYS)
DICT_KEYS = KeyStyle((("'", "': "), ('"', '": ')), r"[^'\"\\\x00-\x1f]{1,64}")


@dataclass(frozen=True)
class PythonMembers:
    """What stands in the brackets of a call or a dict, which is at `place`; `depth`: of the dict in
    others."""

    parameters: Parameters
    place: str
    style: KeyStyle
    allowance: ReadingAllowance
    depth: int = 0

    def format(self) -> TagFormat:
        """In the order of the schema, others behind them. Raises NotWritable."""
        parameters, place = self.parameters, self.place
        formats = {f"{place} ": constant("")}
        rests = dict.fromkeys(("", ", "), f"{place} ")
        if parameters.others is not None:
            rests = {begin: f"{place} +{begin}" for begin in ("", ", ")}
            formats = {name: self._others(begin) for begin, name in rests.items()}
        for number, one in reversed(list(enumerate(parameters.listed))):
            formats[value := f"{place} {number}"] = self._value(one)
            names: dict[str, str] = {}
            for begin in ("", ", ") if number else ("",):
                key = either([constant(f"{begin}{a}{one.name}{b}") for a, b in self.style.quotes])
                form = sequence(key, defined(value), defined(rests[", "]))
                names[begin] = f"{value}{begin or '('}"
                formats[names[begin]] = (
                    form if one.needed else either([form, defined(rests[begin])])
                )
            rests = names
        return with_definitions(formats, defined(rests[""]))

    def _others(self, begin: str) -> TagFormat:
        """Any more of them, the first behind `begin`."""
        assert self.parameters.others is not None
        names = "|".join(re.escape(one.name) for one in self.parameters.listed)
        key = any_text(patterns=[self.style.keys], unlike=[f"(?:{names})"] if names else ())
        value = self._value(self.parameters.others) if self.depth else self.parameters.others.json()
        ways = [sequence(tagged(f"{begin}{a}", key, b), value) for a, b in self.style.quotes]
        return listed(ways, "" if begin else ", ", needed=False)

    def _value(self, parameter: Parameter) -> TagFormat:
        return python_value(parameter, self.allowance, self.depth)


def python_value(parameter: Parameter, allowance: ReadingAllowance, depth: int = 0) -> TagFormat:
    """JSON, which is read as Python, or as Python writes it. Raises NotWritable."""
    options = [replace(parameter, schema=one, place=place) for place, one in parameter.options()]
    ways = [way for option in options for way in own_ways(option, allowance, depth)]
    words_alone = all(said(one.schema) == {"type"} and one.kinds <= set(WORDS) for one in options)
    return either(ways if ways and words_alone else [parameter.json(), *ways])


def own_ways(option: Parameter, allowance: ReadingAllowance, depth: int) -> Iterator[TagFormat]:
    """To write a value, which JSON does not have."""
    schema, options = option.schema, [(option.place, option.schema)]
    asked, plain = said(schema), is_plain(options)
    allowed = {"string", *WORDS} if plain and not asked else option.kinds
    if plain:
        yield from (constant(word) for kind in sorted(allowed & set(WORDS)) for word in WORDS[kind])
    if allowed == STRING or (plain and "string" in allowed):
        with suppress(NotWritable):
            yield behind("'", TaggedValue(option, QUOTED, allowance).text(options))
    if depth == MAX_DEPTH or any(references(schema)):  # else definitions come with each
        return
    if asked == {"type", "items"} and option.kinds == {"array"}:
        item = replace(option, schema=schema["items"], place=f"{option.place}.items")
        value = python_value(item, allowance, depth + 1)
        yield tagged("[", listed([value], ", ", needed=False), "]")
    elif (
        asked <= OF_ARGUMENTS
        and option.kinds == {"object"}
        and allowance.take_twice(text_size(schema))
    ):
        with suppress(NotWritable):
            members = read_parameters(schema, option.place, DICT_KEY, allowance)
            place = f"{option.place} {depth}"
            inside = PythonMembers(members, place, DICT_KEYS, allowance, depth + 1).format()
            yield tagged("{", inside, "}")
