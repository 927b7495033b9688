"""Numbers of schemas: the library reads them as doubles, of which not all are those written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, Decimal
from math import floor, inf, lcm, nextafter
from typing import Any, TypeGuard

from vivace.grammar.backend import GrammarError
from vivace.grammar.schema_keywords import DEFINITIONS, HOLDING, all_schemas, spelled
from vivace.parsers.schema_types import Path

ALL_WHOLE = 1 << 53
"""Up to here each whole number is a double."""
LARGEST = (1 << 63) - (1 << 10)
"""the last double below 2 to the power of 63; the library ends with signal 11 at a lower one"""
DIGITS, POWER = 15, 22
"""of a fraction that is read exactly"""
LARGEST_INNER = 10**18
"""From here on the library has no lower bounds, and from minus that down no upper ones."""
Side = tuple[str, str, int]
LOWER: Side = ("minimum", "exclusiveMinimum", 1)
UPPER: Side = ("maximum", "exclusiveMaximum", -1)
BOUNDS: tuple[Side, ...] = (LOWER, UPPER)
"""the inclusive and the exclusive keyword; the sign with which it is a lower one"""
MULTIPLE = "multipleOf"
KEYWORDS = frozenset((*LOWER[:2], *UPPER[:2], "const", "enum", MULTIPLE))
MOST_REMAINDERS = 1 << 18
"""of a `multipleOf` without its last zeros; four times as many of one that is divided by 4"""
COMMON = HOLDING - {"allOf", "anyOf", "oneOf", *DEFINITIONS} | {MULTIPLE}
"""keywords that may meet others of the same value"""
Number = int | float


def fit_numbers(schema: Any, place: str) -> None:
    """In place: a bound that the library would take for another one becomes one inside that it
    would not. Raises GrammarError for values like that, and where nothing is inside."""
    held = [(path, one) for path, one in all_schemas(schema) if not KEYWORDS.isdisjoint(one)]
    fits = {side: [_fit_bound(path, one, side, place) for path, one in held] for side in BOUNDS}
    lower, upper = (list(filter(None, fits[side])) for side in BOUNDS)
    for side, own, others in ((LOWER, lower, upper), (UPPER, upper, lower)):
        # the library takes a strict one for inclusive where another is less than 1 behind it
        near = {floor(-one.value) for one in others}
        for one in own:
            if one.strict and not one.integers and one.value >= 0 and one.value in near:
                one = replace(one, value=_rounded(one.value.next_plus()), strict=False)
            one.write(side)
    for path, one in held:
        for keyword in ("const", "enum"):
            if not all(map(_is_exact, _numbers(one.get(keyword)))):
                reason = "a number with so many digits cannot be enforced; use a string, or bounds"
                raise GrammarError(f"{spelled(place, (*path, keyword))}: {reason}")
    merged = any(MULTIPLE in one for _, one in held) and any(
        len([*one.get("allOf", ()), *({"anyOf", "oneOf", "$ref"} & one.keys())])
        > COMMON.isdisjoint(one)
        for _, one in all_schemas(schema)
    )
    _check_multiples(held, merged, place)


def _check_multiples(held: Sequence[tuple[Path, Any]], merged: bool, place: str) -> None:
    """`merged`: two may become a common one, of which the library has the square in 32 bits."""
    found = [(path, *coefficient(one[MULTIPLE])) for path, one in held if MULTIPLE in one]
    most, common = max((places for _, _, places in found), default=0), 1
    for path, whole, places in found:
        common = lcm(common, whole * 10 ** (most - places)) if merged else 1
        rest = int(str(whole).rstrip("0"))
        large = whole >= 1 << 32 or rest // min(rest & -rest, 4) > MOST_REMAINDERS
        if large or common >= 1 << 16:
            reason = "cannot be enforced: its digits, or those of a common multiple, are too many"
            raise GrammarError(f"{spelled(place, (*path, MULTIPLE))}: {reason}")


def coefficient(number: Number) -> tuple[int, int]:
    """A number without its point, as the library finds it, and how many digits were behind."""
    value, places = float(min(number, 1e300)), 0
    while value % 1:
        value, places = value * 10, places + 1
    return int(value), places


@dataclass(frozen=True)
class FittedBound:
    """`value`: as a lower bound; `integers`: there are no others."""

    schema: dict[str, Any]
    value: Decimal
    strict: bool
    integers: bool

    def write(self, side: Side) -> None:
        inclusive, exclusive, sign = side
        value = self.value * sign
        number = int(value) if value == value.to_integral_value() else float(value)
        older = self.schema.get(exclusive) is True
        for key in (inclusive, exclusive):
            self.schema.pop(key, None)
        self.schema[exclusive if self.strict and not older else inclusive] = number
        if self.strict and older:
            self.schema[exclusive] = True


def _fit_bound(path: Path, schema: dict[str, Any], side: Side, place: str) -> FittedBound | None:
    """The inner one of the inclusive and the exclusive one."""
    inclusive, exclusive, sign = side
    kinds = schema.get("type", ())
    integers = "integer" in kinds and "number" not in kinds
    found = list[tuple[Decimal, bool]]()
    for key, strict in ((inclusive, schema.get(exclusive) is True), (exclusive, True)):
        if not _is_number(bound := schema.get(key)):
            continue
        bound *= sign
        if isinstance(bound, float) and bound.is_integer():
            bound = int(bound)
        whole = integers and isinstance(bound, int)
        found.append(_whole(int(bound), strict) if whole else _any(bound, strict))
        if found[-1][0] >= LARGEST_INNER:
            reason = "cannot be enforced: so large a number can only be a bound on the other side"
            raise GrammarError(f"{spelled(place, (*path, key))}: {reason}")
    return FittedBound(schema, *max(found), integers) if found else None


def _whole(bound: int, strict: bool) -> tuple[Decimal, bool]:
    """Of integers, and whether it is not one itself."""
    if abs(bound) < ALL_WHOLE:
        return Decimal(bound), strict
    return Decimal(_next_inside(bound, strict)), False


def _any(bound: Number, strict: bool) -> tuple[Decimal, bool]:
    """The same of all numbers: the library has those bounds whose shortest spelling this is."""
    if isinstance(bound, int):
        # of whole numbers, as others may ask for, one less would be no double
        beyond = strict and abs(bound) >= ALL_WHOLE
        double = _next_inside(bound, beyond)
        strict, bound = strict and double == bound, double
        exact = Decimal(repr(float(bound))) == bound
    else:
        exact = _is_exact(bound)
    value = Decimal(bound) if isinstance(bound, int) else Decimal(repr(bound))
    return (value, strict) if exact else (_rounded(value), False)


def _rounded(value: Decimal) -> Decimal:
    """Up, to so many digits, none behind those that the library has."""
    power = max(value.adjusted() + 1 - DIGITS, -POWER)
    return value.quantize(Decimal((0, (1,), power)), ROUND_CEILING)


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
