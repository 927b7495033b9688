"""Patterns of schemas: a set with all control characters (but for line breaks), and no quote or no
backslash, the library takes for one with both. U+0000 is left out of such sets, so that they do not
have all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vivace.grammar.backend import GrammarError
from vivace.grammar.quoted_regex import ALL, literal_braces, set_parts
from vivace.grammar.schema_keywords import all_schemas, spelled
from vivace.grammar.schema_objects import tells_names_apart
from vivace.parsers.schema_types import Path, values

NULL = "\0"
QUOTES = frozenset('"\\')
NOT_MET = QUOTES | {"\n"}
"""which such a set may lack"""
PATTERNS = "patternProperties"
NO_NULL = (
    "an expression that fits control characters, but no quote or no backslash, is enforced without "
    "U+0000; so no property may have that in its name, and no two expressions may differ by it"
)
ONE_WAY = 'nrbtf\\"'
"""what follows a backslash where each character has one spelling"""
UNWRITTEN = frozenset(map(chr, (*range(32), 127))) - frozenset("\b\t\n\f\r")
"""which has none then"""
NO_CODE = (
    "control characters cannot be written beside objects with other properties than those they "
    'name: leave them out, or add "additionalProperties": false'
)
Fits = frozenset[str] | None
"""of a part of an expression, as `set_parts` has it"""


def fit_patterns(schema: Any, place: str) -> None:
    """In place. Raises GrammarError for what cannot be read, and where names with U+0000 would be
    taken for other ones."""
    read = [(path, _read(text, spelled(place, path))) for path, text in _patterns(schema)]
    if tells_names_apart(schema):
        for path in _unwritten(schema, read):
            raise GrammarError(f"{spelled(place, path)}: {NO_CODE}")
    without = _meets_all([fits for _, parts in read for _, fits in parts])
    for path, one in all_schemas(schema):
        if "pattern" in one:
            one["pattern"] = _fitted(one["pattern"], without)
        names = one.get(PATTERNS, {})
        changed = {_fitted(name, without): held for name, held in names.items()}
        if changed.keys() != names.keys():
            if len(changed) < len(names) or any(NULL in name for name in one.get("properties", ())):
                raise GrammarError(f"{spelled(place, (*path, PATTERNS))}: {NO_NULL}")
            one[PATTERNS] = changed


def _patterns(schema: Any) -> Iterator[tuple[Path, str]]:
    for path, one in all_schemas(schema):
        if "pattern" in one:
            yield (*path, "pattern"), one["pattern"]
        yield from (((*path, PATTERNS), name) for name in one.get(PATTERNS, ()))


def _read(pattern: str, place: str) -> list[tuple[str, Fits]]:
    try:
        return list(set_parts(pattern))
    except GrammarError as error:
        raise GrammarError(f"{place}: {error}") from error


def _unwritten(schema: Any, read: list[tuple[Path, list[tuple[str, Fits]]]]) -> Iterator[Path]:
    """The paths of what only such characters obey."""
    for path, parts in read:
        if any(fits and fits <= UNWRITTEN for _, fits in parts):
            yield path
    for path, one in all_schemas(schema):
        for keyword in ("const", "enum"):
            texts = (value for value in values(one.get(keyword)) if isinstance(value, str))
            if not all(map(UNWRITTEN.isdisjoint, texts)):
                yield *path, keyword


def _meets_all(parts: list[Fits]) -> bool:
    """Whether some of these are together such a set: the library makes one of several."""
    for quote in QUOTES:
        without = [fits for fits in parts if fits is None or quote not in fits]
        if None in without or frozenset[str]().union(*filter(None, without)) >= ALL - NOT_MET:
            return True
    return False


def _fitted(pattern: str, without: bool) -> str:
    """`without`: U+0000 in its sets."""
    return "".join(
        rf"[{text}&&[^\x00]]"
        if without and (fits is None or (NULL in fits and not fits >= QUOTES))
        else text
        for text, fits in set_parts(literal_braces(pattern))
    )
