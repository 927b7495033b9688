"""Patterns of schemas are expressions of ECMA-262. Here they become those of Rust's regex crate,
which the library has, that fit nothing which ECMA-262, or Python's `re`, would not; refused is what
these two read differently, or neither does.

A set with all control characters (but for line breaks), and no quote or no backslash, the library
takes for one with both. U+0000 is left out of such sets, so that they do not have all."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache, partial
from typing import Any

from vivace.grammar.backend import GrammarError
from vivace.grammar.quoted_regex import ESCAPE, POSIX_CLASS, escaped_ones, regex_parts
from vivace.grammar.schema_keywords import ANYTHING, PATTERNS, all_schemas, spelled
from vivace.grammar.schema_objects import tells_names_apart
from vivace.parsers.schema_types import values

NULL, QUOTES = "\0", frozenset('"\\')
NO_NULL = (
    "no two expressions may mean the same, and no property may have U+0000 in its name: what fits "
    "control characters, but no quote or no backslash, is enforced without that"
)
TWO_WAYS = (
    r"ECMA-262 and Python take other names for these; write a set, such as [ \t] for \s and [^0-9] "
    r'for \D, or "additionalProperties": true'
)
ONE_WAY = 'nrbtf\\"'
"""what follows a backslash where each character has one spelling"""
UNWRITTEN = frozenset(map(chr, (*range(32), 127))) - frozenset("\b\t\n\f\r")
"""which has none then"""
NO_CODE = (
    "control characters cannot be written beside objects with other properties than those they "
    'name: leave them out, or add "additionalProperties": false'
)
_SPACES = r"\t-\r \xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_CLASSES = {
    "d": ("0-9", r"\p{Nd}"),
    "w": ("0-9A-Za-z_", r"\p{L}\p{N}_"),
    "s": (_SPACES, rf"{_SPACES}\x1c-\x1f\x85\ufeff"),
}
"""what both take for one; what either does"""
_NARROWED = (_SPACES, *(either for _, either in _CLASSES.values()))  # unlike ECMA-262
_LINE = r"[^\n\r\u2028\u2029]"
_LINE_END = r"\n?$"  # as Python has the end
_MEMBER = re.compile(rf"(?:[\w ](?!-))+|({ESCAPE}|.)(?:-({ESCAPE}|.))?", re.DOTALL)
_KNOWN_ESCAPE = re.compile(r"\\(?:[BdDwWsSnrtfv]|[xU]\w+|u(?![dD][89a-fA-F]).+|[pP]\{.*)")
_DELETE = re.compile(r"\[?(?:-?(?:\x7f|\\(?:x|u00|u\{0*|U000000)7[fF]\}?))+\]?")
_DOTS = re.compile("[iI\u0130\u0131\\-]")
"""some or all of which Python takes for each other where case does not count"""
_SPECIAL = frozenset(r"\.+*?()|[]{}^$-&~")


def fit_patterns(schema: Any, place: str) -> None:
    """In place: where others may be anything, names that fit for one reader only are none of them.
    Raises GrammarError for what cannot be read, and where names would be taken for other ones."""
    unwritten = UNWRITTEN if tells_names_apart(schema) else frozenset[str]()
    for path, one in [*all_schemas(schema)]:
        at = spelled(place, path) + "." * bool(place or path)
        for keyword in ("const", "enum"):
            texts = (value for value in values(one.get(keyword)) if isinstance(value, str))
            if not all(map(unwritten.isdisjoint, texts)):
                raise GrammarError(f"{at}{keyword}: {NO_CODE}")
        if "pattern" in one:
            one["pattern"] = fitted_pattern(one["pattern"], unwritten, f"{at}pattern")
        if names := one.get(PATTERNS):
            at, others = at + PATTERNS, one.get("additionalProperties", True)
            known, fitted = "".join(one.get("properties", ())), dict[str, Any]()
            wide = others in ANYTHING
            alike = wide or (others is False and known.isascii() and known.isprintable())
            for name, held in names.items():
                found = fitted_pattern(name, unwritten, f"{at}.{name}", wide=wide)
                if not alike and any(one in found for one in _NARROWED):
                    raise GrammarError(f"{at}.{name}: {TWO_WAYS}")
                fitted[found] = held
            if len(fitted) < len(names) or NULL in known:
                raise GrammarError(f"{at}: {NO_NULL}")
            one[PATTERNS] = fitted


def fitted_pattern(
    pattern: str, unwritten: frozenset[str] = frozenset(), at: str = "", *, wide: bool = False
) -> str:
    """`wide`: for what fits as ECMA-262 or Python reads it, not only as both do. Raises
    GrammarError, also for what only characters fit that are `unwritten`."""
    found = ""
    try:
        for kind, text, rust in _rust_parts(pattern, wide=wide):
            fits = _fits(kind, text)
            if fits and fits <= unwritten:
                raise GrammarError(NO_CODE)
            found += rf"[{rust}&&[^\x00]]" if NULL in fits and not fits >= QUOTES else rust
    except GrammarError as error:
        raise GrammarError(f"{at}: {error}") from error
    return found


def _fits(kind: str, text: str) -> frozenset[str]:
    """Of characters that are escaped; where that is not known a set without quotes."""
    try:
        return frozenset("\x7f") if _DELETE.fullmatch(text) else escaped_ones(kind, text)
    except GrammarError:
        return frozenset("\0\t")


def rust_pattern(pattern: str) -> str:
    """In the syntax of Rust's regex crate. Raises GrammarError."""
    return "".join(rust for _, _, rust in _rust_parts(pattern))


def _rust_parts(pattern: str, *, wide: bool = False) -> Iterator[tuple[str, str, str]]:
    """Kind and text of each, with the classes of ECMA-262, and how Rust's crate has it."""
    before, characters = "", cache(_characters)
    for kind, text, flags in regex_parts(pattern):
        rust = text
        match kind:
            case "set" | "escape":
                text, rust = characters(text, "i" in flags, wide)
                kind = kind if len(text) > 1 else "other"
            case "dot":
                rust = text if wide or "s" in flags else _LINE
            case "anchor" if wide and text == "$":
                rust = _LINE_END
            case "brace":
                rust = r"\{"
            case "refused":
                raise GrammarError(f"{text[:40]} has no end, or is a comment; in sets ] is \\]")
            case "repeat" if before in ("repeat", "anchor"):
                raise GrammarError(f"{text[:40]} cannot repeat that; put it in a group, as (?:a*)+")
        before = kind
        yield kind, text, rust


def _characters(text: str, any_case: bool, wide: bool) -> tuple[str, str]:
    """Of a set, or an escape."""
    text = _set(text, any_case and not wide) if text[0] == "[" else _one(text)
    wide, kinds = text.startswith("[^") != wide, frozenset(re.findall(r"\\(.)", text))
    return text, re.sub(r"\\(.)", partial(_class, wide=wide, beside=kinds), text)


def _set(text: str, any_case: bool) -> str:
    begin = "[^" if text.startswith("[^") else "["
    inner = text[len(begin) : -1]
    if inner.startswith("]"):
        raise GrammarError(rf"{text[:40]} begins with a bracket; write \], or [\s\S] for any")
    if re.search(POSIX_CLASS, inner):
        raise GrammarError(f"{text[:40]} has a class of POSIX; write A-Za-z for [:alpha:]")
    dots = "i\u0130\u0131" if any_case and begin == "[^" and _DOTS.search(inner) else ""
    return f"{begin}{dots}{_MEMBER.sub(_member, inner)}]"


def _member(found: re.Match[str]) -> str:
    """Of a set: one, or a range; where an end is a class the hyphen is a character."""
    ends = [one for one in found.groups() if one]
    several = any(one[0] == "\\" and one[1] in "dDwWsSpP" for one in ends)
    return (r"\-" if several else "-").join(_one(one, r"\x08") for one in ends) or found[0]


def _one(text: str, backspace: str = r"\b") -> str:
    r"""A character, or an escape; `backspace`: what \b is."""
    if text in (r"\b", r"\0"):
        return backspace if text == r"\b" else r"\x00"
    if _KNOWN_ESCAPE.fullmatch(text):
        return text
    one = text[len(text) > 1 :]
    if len(one) > 1 or (one != text and one.isascii() and one.isalnum()):
        raise GrammarError(
            rf"{text[:40]} is not read alike everywhere; write a character as itself or as \u0041, "
            "and the ends as ^ and $"
        )
    return "\\" * (one in _SPECIAL) + one


def _class(found: re.Match[str], wide: bool, beside: frozenset[str]) -> str:
    """`wide`: what either takes for one, as a set leaves it out; `beside` its opposite all."""
    if (kind := found[1].lower()) not in _CLASSES:
        return found[0]
    if found[1].swapcase() in beside:
        return r"\x00-\u{10FFFF}"
    without = found[1].isupper()
    return f"[{'^' * without}{_CLASSES[kind][wide != without]}]"
