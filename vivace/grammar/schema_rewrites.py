"""Keywords that the library does not enforce, written in those that it does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from itertools import islice, permutations
from math import perm
from typing import Any

from vivace.grammar.schema_keywords import HOLDING, all_schemas, subschemas
from vivace.grammar.schema_references import as_pointer
from vivace.parsers.schema_strings import FORMATS, NOTES, names_pattern
from vivace.parsers.schema_types import TYPES, Path, different, listed_values, pointed, values

MAX_CHOICES = 600
"""values times orders of different ones: all of five values, or two of eight"""
MAX_CHOICES_TOGETHER = 1800
"""of all arrays of a schema: the library takes a tenth of a second for each of 600"""
MAX_REFERENCES = 9
MAX_INLINED = 20_000
"""values of choices, and characters of expressions for names"""
NAMING = frozenset(("properties", "patternProperties"))
STANDARD = frozenset(
    "date-time date time duration email idn-email hostname idn-hostname ipv4 ipv6 uri iri "
    "uri-reference iri-reference uuid regex uri-template json-pointer relative-json-pointer".split()
)
"""formats of JSON Schema"""


def rewrite(schema: Any) -> None:
    """In place; what it finds no other words for it leaves, to be refused."""
    choices, room = 0, MAX_INLINED
    for _, one in all_schemas(schema):
        kind = str(one.get("format"))
        if kind in FORMATS and "pattern" not in one:
            one["pattern"] = f"^{FORMATS[kind]}$"
            del one["format"]
        elif "pattern" in one and kind not in STANDARD:
            one.pop("format", None)  # the name of that pattern
        if (denied := one.get("not", ())) is False:
            del one["not"]
        elif denied is True or (isinstance(denied, dict) and denied.keys() <= NOTES):
            del one["not"]
            one["enum"] = []
        names = _followed(one.get("propertyNames"), schema)[1]
        if NAMING.isdisjoint(one) and 0 < len(pattern := names_pattern(names)) < room:
            room, others = room - len(pattern), one.get("additionalProperties", True)
            one |= {"patternProperties": {pattern: others}, "additionalProperties": False}
            del one["propertyNames"]
        if "oneOf" in one:
            room = _inline(one, schema, room)
        if one.get("uniqueItems") is True and choices < MAX_CHOICES_TOGETHER:
            choices += _list_orders(one, schema)


def _followed(schema: Any, root: Any) -> tuple[Path, Any]:
    """What it refers to, where that stands alone; without a path itself."""
    path = Path()
    for _ in range(MAX_REFERENCES):
        said = schema.keys() - NOTES if isinstance(schema, dict) else ()
        if said == {"$ref"}:
            path, schema = pointed(root, schema["$ref"]) or ((), None)
    return path, schema


def _inline(one: dict[str, Any], root: Any, room: int) -> int:
    """Instead of references as choices, what these are to: the library does not see whether others
    exclude each other. What tells these apart (OpenAPI's discriminator) an object needs. `room`:
    for values; what is left of it."""
    told = one.pop("discriminator", None)
    name = str(told.get("propertyName")) if isinstance(told, dict) else None
    for index, choice in enumerate(one["oneOf"]):
        path, target = _followed(choice, root)
        known = room > 0 and path and isinstance(target, dict) and "oneOf" not in target
        if known and (room := room - sum(1 for _ in values(target))) > 0:
            one["oneOf"][index] = choice = deepcopy(target)
            for place, inner in islice(subschemas(choice, path), 1, None):
                if not HOLDING.isdisjoint(inner):  # which may lead back
                    inner.clear()
                    inner["$ref"] = as_pointer(place)
        if isinstance(choice, dict) and name in choice.get("properties", ()):
            one["required"] = list(dict.fromkeys([*one.get("required", ()), name]))
    return room


def _list_orders(array: dict[str, Any], root: Any) -> int:
    """Beside its other keywords all arrays of different items, if these are few; of how many
    choices."""
    few = different(listed_values(array.get("items"), root))
    most = array.get("maxItems", MAX_CHOICES)
    if not isinstance(most, int) or "anyOf" in array or "prefixItems" in array:
        return 0
    if most <= 1 or "array" not in array.get("type", TYPES):
        del array["uniqueItems"]
        return 0
    most = min(most, len(few))
    choices = len(few) * perm(len(few), most)
    if not 0 < choices <= MAX_CHOICES:
        return 0
    del array["uniqueItems"]
    others = {"type": [kind for kind in TYPES if kind != "array"]}
    array["anyOf"] = [others, *_arrays(few, most)]
    return choices


def _arrays(few: Sequence[Any], most: int) -> Iterator[dict[str, Any]]:
    """With as many of the first items as there may be."""
    for order in permutations(few, most):
        first = [{"const": value} for value in order]
        yield {"type": "array", "prefixItems": first, "items": False}
