"""Numbers of schemas: the library reads them as doubles, of which not all are those written."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from math import inf, nextafter
from typing import Any, TypeGuard

from vivace.grammar.backend import GrammarError
from vivace.grammar.schema_keywords import all_schemas, spelled

ALL_WHOLE = 1 << 53
"""Up to here each whole number is a double."""
LARGEST = (1 << 63) - (1 << 10)
"""the last double below 2 to the power of 63; the library ends with signal 11 at a lower one"""
DIGITS, POWER = 15, 22
"""of a fraction that is read exactly"""
BOUNDS = (("minimum", "exclusiveMinimum", 1), ("maximum", "exclusiveMaximum", -1))
"""the inclusive and the exclusive keyword; the sign with which it is a lower one"""
KEYWORDS = frozenset(
    ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum", "const", "enum")
)
Number = int | float


def fit_numbers(schema: Any, place: str) -> None:
    """In place: a bound that the library would take for another one becomes the next one inside
    that it would not. Raises GrammarError for values like that, and where nothing is inside."""
    for path, one in all_schemas(schema):
        if KEYWORDS.isdisjoint(one):
            continue  # as most have none
        for keyword, exclusive, sign in BOUNDS:
            if not _fit_bound(one, keyword, exclusive, sign):
                reason = f"cannot be enforced: numbers go from -{LARGEST} to {LARGEST}"
                raise GrammarError(f"{spelled(place, (*path, keyword))}: {reason}")
        for keyword in ("const", "enum"):
            if not all(map(_is_exact, _numbers(one.get(keyword)))):
                reason = "a number with so many digits cannot be enforced; use a string, or bounds"
                raise GrammarError(f"{spelled(place, (*path, keyword))}: {reason}")


def _fit_bound(schema: dict[str, Any], keyword: str, exclusive: str, sign: int) -> bool:
    """Whether some number is inside."""
    strict = schema.get(exclusive)
    found = list[Number]()
    for key, beyond in ((keyword, strict is True), (exclusive, True)):
        bound = schema.get(key)
        if _is_number(bound) and abs(bound) >= ALL_WHOLE:
            found.append(_next_inside(bound * sign, beyond))
            if key == exclusive:
                del schema[key]
        elif _is_number(bound) and key == keyword:
            found.append(bound * sign)
    if found:
        schema[keyword] = max(found) * sign
    return not found or max(found) <= LARGEST


def _next_inside(bound: Number, beyond: bool) -> int:
    """The lowest double from there on, or behind it; of those below -LARGEST that."""
    if not -LARGEST <= bound <= LARGEST:
        return LARGEST + 1 if bound > 0 else -LARGEST
    double = float(bound)
    if double < bound or (beyond and double == bound):
        double = nextafter(double, inf)
    return int(double)


def _numbers(value: Any) -> Iterator[Number]:
    """In a value of JSON."""
    stack = [value]
    while stack:
        one = stack.pop()
        if _is_number(one):
            yield one
        elif isinstance(one, dict | list):
            stack += one.values() if isinstance(one, dict) else one


def _is_number(value: Any) -> TypeGuard[Number]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_exact(number: Number) -> bool:
    """Whether the library writes it as it is."""
    if isinstance(number, int):
        return abs(number) <= LARGEST and float(number) == number
    _, digits, power = Decimal(repr(number)).normalize().as_tuple()
    return len(digits) <= DIGITS and abs(int(power)) <= POWER
