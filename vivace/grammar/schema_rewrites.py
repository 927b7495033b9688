"""Keywords that the library does not enforce, written in those that it does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations
from math import perm
from typing import Any

from vivace.grammar.schema_keywords import all_schemas
from vivace.parsers.schema_types import TYPES, pointed

MAX_CHOICES = 600
"""values times orders of different ones: all of five values, or two of eight"""
MAX_CHOICES_TOGETHER = 1800
"""of all arrays of a schema: the library takes a tenth of a second for each of 600"""
MAX_REFERENCES = 9
PLAIN = (str, int, float, bool, type(None))
FEW = {"boolean": (False, True), "null": (None,)}
"""types with few values"""
POINTER = r"(/([^/~]|~[01])*)*"
ESCAPED = "%[0-9A-Fa-f][0-9A-Fa-f]"
NAME = rf"([A-Za-z0-9_]|{ESCAPED})(\.?([A-Za-z0-9_]|{ESCAPED}))*"
VARIABLE = rf"{NAME}(:[1-9][0-9]{{0,3}}|\*)?"
LITERAL = r"[!#$&(-;=?-\[\]_a-z~\u00a0-\ud7ff\ue000-\ufdcf\ufdf0-\uffef\U00010000-\U0001fffd]"
FORMATS = {
    "json-pointer": POINTER,
    "relative-json-pointer": rf"(0|[1-9][0-9]*)(#|{POINTER})",
    "uri-template": rf"({LITERAL}|{ESCAPED}|\{{[+#./;?&=,!@|]?{VARIABLE}(,{VARIABLE})*\}})*",
}
"""RFC 6901, RFC 6570"""


def rewrite(schema: Any) -> None:
    """In place; what it finds no other words for it leaves, to be refused."""
    choices = 0
    for _, one in all_schemas(schema):
        if (pattern := FORMATS.get(str(one.get("format")))) and "pattern" not in one:
            del one["format"]
            one["pattern"] = f"^{pattern}$"
        if one.get("uniqueItems") is True and choices < MAX_CHOICES_TOGETHER:
            choices += _list_orders(one, schema)


def _list_orders(array: dict[str, Any], root: Any) -> int:
    """Beside its other keywords all arrays of different items, if these are few; of how many
    choices."""
    values, most = _different(_values(array.get("items"), root)), array.get("maxItems", MAX_CHOICES)
    if not isinstance(most, int) or "anyOf" in array:
        return 0
    if most <= 1 or "array" not in array.get("type", TYPES):
        del array["uniqueItems"]
        return 0
    most = min(most, len(values))
    choices = len(values) * perm(len(values), most)
    if not 0 < choices <= MAX_CHOICES:
        return 0
    del array["uniqueItems"]
    others = {"type": [kind for kind in TYPES if kind != "array"]}
    array["anyOf"] = [others, *_arrays(values, most)]
    return choices


def _arrays(values: Sequence[Any], most: int) -> Iterator[dict[str, Any]]:
    """With as many of the first items as there may be."""
    for order in permutations(values, most):
        first = [{"const": value} for value in order]
        yield {"type": "array", "prefixItems": first, "items": False}


def _values(items: Any, root: Any) -> Sequence[Any]:
    """That a schema may have, if they are few and plain; it may forbid some of them."""
    for _ in range(MAX_REFERENCES):
        if not isinstance(items, dict):
            break
        for keyword in ("const", "enum"):
            if keyword in items:
                found = items[keyword] if keyword == "enum" else [items[keyword]]
                return found if all(isinstance(one, PLAIN) for one in found) else ()
        if isinstance(kind := items.get("type"), str) and kind in FEW:
            return FEW[kind]
        target = pointed(root, str(items.get("$ref")))
        items = target and target[1]
    return ()


def _different(values: Sequence[Any]) -> list[Any]:
    """As JSON has it: 1 and 1.0 are one number, which true is not."""
    return list({(isinstance(value, bool), value): value for value in values}.values())
