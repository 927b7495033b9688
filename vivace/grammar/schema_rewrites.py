"""Keywords that the library does not enforce, written in those that it does."""

from __future__ import annotations

from copy import deepcopy
from itertools import islice, permutations
from math import perm
from typing import Any

from vivace.grammar.schema_keywords import HOLDING, all_schemas, subschemas
from vivace.grammar.schema_references import as_pointer
from vivace.parsers.schema_strings import NOTES, names_pattern
from vivace.parsers.schema_types import TYPES, Path, different, listed_values, pointed, values

MAX_CHOICES = 600
"""values times orders of different ones: all of five values, or two of eight"""
MAX_CHOICES_TOGETHER = 1800
"""of all arrays of a schema: the library takes a tenth of a second for each of 600"""
MAX_REFERENCES = 9
MAX_INLINED = 20_000
"""values of choices, and characters of expressions for names"""


def rewrite(schema: Any) -> None:
    """In place; what it finds no other words for it leaves, to be refused."""
    choices, room = 0, MAX_INLINED
    # what a choice no longer allows, another one might alone, but not where all are told apart
    apart = all(_find_tag(one, schema) for _, one in all_schemas(schema) if "oneOf" in one)
    for _, one in all_schemas(schema):
        denied = one.get("not", ())
        if denied is True or (isinstance(denied, dict) and denied.keys() <= NOTES):
            one["enum"], denied = [], False
        if denied is False:
            del one["not"]
        names = _followed(one.get("propertyNames"), schema)[1]
        named = "properties" in one or "patternProperties" in one
        if not named and 0 < len(pattern := names_pattern(names)) < room:
            room, others = room - len(pattern), one.get("additionalProperties", True)
            one |= {"patternProperties": {pattern: others}, "additionalProperties": False}
            del one["propertyNames"]
        if "oneOf" in one:
            room = _inline(one, schema, room, _find_tag(one, schema) if apart else "")
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


def _find_tag(one: dict[str, Any], root: Any) -> str:
    """The property that tells choices apart (OpenAPI's discriminator), if it does; else empty."""
    told = one.get("discriminator")
    name = str(told.get("propertyName")) if isinstance(told, dict) else ""
    tags = list[Any]()
    for choice in one["oneOf"]:
        target = _followed(choice, root)[1]
        kinds = target.get("type", TYPES) if isinstance(target, dict) else TYPES
        if "object" in kinds:
            held = target.get("properties", {}) if kinds == "object" else {}
            tags += (few := different(listed_values(held.get(name), root)))
            name = name if few else ""
    return name if len(different(tags)) == len(tags) else ""


def _inline(one: dict[str, Any], root: Any, room: int, tag: str) -> int:
    """Instead of references as choices, what these are to: the library does not see whether others
    exclude each other. A `tag` these need. `room`: for values; what is left of it."""
    one.pop("discriminator", None)
    for index, choice in enumerate(one["oneOf"]):
        path, target = _followed(choice, root)
        known = room > 0 and path and isinstance(target, dict) and "oneOf" not in target
        if known and (room := room - sum(1 for _ in values(target))) > 0:
            one["oneOf"][index] = choice = deepcopy(target)
            for place, inner in islice(subschemas(choice, path), 1, None):
                if not HOLDING.isdisjoint(inner):  # which may lead back
                    inner.clear()
                    inner["$ref"] = as_pointer(place)
        if tag:
            choice["required"] = list(dict.fromkeys([*choice.get("required", ()), tag]))
    return room


def _list_orders(array: dict[str, Any], root: Any) -> int:
    """Beside its keywords all arrays of different items, if these are few; of how many choices."""
    few = different(listed_values(array.get("items"), root))
    most = array.get("maxItems", MAX_CHOICES)
    if not isinstance(most, int) or "anyOf" in array or "prefixItems" in array:
        return 0
    if most <= 1 or "array" not in array.get("type", TYPES):
        del array["uniqueItems"]
        return 0
    choices = len(few) * perm(len(few), most := min(most, len(few)))
    if not 0 < choices <= MAX_CHOICES:
        return 0
    del array["uniqueItems"]
    orders = [[{"const": value} for value in order] for order in permutations(few, most)]
    fitting = [{"type": "array", "prefixItems": order, "items": False} for order in orders]
    array["anyOf"] = [{"type": [kind for kind in TYPES if kind != "array"]}, *fitting]
    return choices
