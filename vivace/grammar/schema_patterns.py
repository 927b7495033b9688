"""Patterns of schemas: a set with all control characters (but for line breaks), and no quote or no
backslash, the library takes for one with both. U+0000 is left out of such sets, so that they do not
have all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vivace.grammar.backend import GrammarError
from vivace.grammar.quoted_regex import ALL, set_parts
from vivace.grammar.schema_keywords import all_schemas, spelled
from vivace.parsers.schema_types import Path

NULL = "\0"
QUOTES = frozenset('"\\')
NOT_MET = QUOTES | {"\n"}
"""which such a set may lack"""
PATTERNS = "patternProperties"
OTHERS = (
    "an expression that fits control characters, but no quote or no backslash, is enforced without "
    'U+0000; so others must be forbidden: add "additionalProperties": false'
)
Fits = frozenset[str] | None
"""of a part of an expression, as `set_parts` has it"""


def fit_patterns(schema: Any, place: str) -> None:
    """In place. Raises GrammarError for what cannot be read, and where names with U+0000 would be
    taken for other ones."""
    read = [(path, _read(text, spelled(place, path))) for path, text in _patterns(schema)]
    if not _meets_all([fits for _, parts in read for _, fits in parts]):
        return
    for path, one in all_schemas(schema):
        if "pattern" in one:
            one["pattern"] = _without_null(one["pattern"])
        if PATTERNS in one:
            _fit_names(one, spelled(place, (*path, PATTERNS)))


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


def _meets_all(parts: list[Fits]) -> bool:
    """Whether some of these are together such a set: the library makes one of several."""
    for quote in QUOTES:
        without = [fits for fits in parts if fits is None or quote not in fits]
        if None in without or frozenset[str]().union(*filter(None, without)) >= ALL - NOT_MET:
            return True
    return False


def _without_null(pattern: str) -> str:
    return "".join(
        rf"[{text}&&[^\x00]]" if _has_null(fits) else text for text, fits in set_parts(pattern)
    )


def _has_null(fits: Fits) -> bool:
    """And not both quotes beside it."""
    return fits is None or (NULL in fits and not fits >= QUOTES)


def _fit_names(schema: dict[str, Any], place: str) -> None:
    names: dict[str, Any] = schema[PATTERNS]
    changed = {_without_null(name): one for name, one in names.items()}
    if changed.keys() == names.keys():
        return
    others = schema.get("additionalProperties") is not False
    if (
        others
        or len(changed) < len(names)
        or any(NULL in one for one in schema.get("properties", ()))
    ):
        raise GrammarError(f"{place}: {OTHERS}")
    schema[PATTERNS] = changed
