"""Objects of schemas: which have no other properties than they name, and which may."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from vivace.grammar.schema_keywords import all_schemas
from vivace.parsers.schema_types import TYPES, different, listed_values, pointed_value, referred

NAMING = frozenset(("properties", "required", "minProperties", "maxProperties"))
SAYING = {"additionalProperties", "patternProperties", "unevaluatedProperties", "const", "enum"}
"""more that is said of properties"""
MOST_PARTS = 100
"""that say something of the same value"""


def close_objects(root: Any) -> None:
    """In place: what names properties, and says nothing of others, has none, as in SGLang. Not
    where more is said of the same values."""
    schemas = [one for _, one in all_schemas(root)]
    if not all(_are_apart(one["oneOf"], root) for one in schemas if "oneOf" in one):
        return  # a choice might exclude others then that it did not
    joined = [part for one in schemas for part in _joined(one, root)]
    seen: set[int] = set()
    while joined:
        if isinstance(part := joined.pop(), dict) and id(part) not in seen:
            seen.add(id(part))
            joined += chain.from_iterable(_groups(part, root))
    for one in schemas:
        if "properties" in one and id(one) not in seen and _names_all(one, root):
            one["additionalProperties"] = False


def _groups(schema: Mapping[str, Any], root: Any) -> list[Sequence[Any]]:
    """What else a value obeys: of each, one of these."""
    found: list[Sequence[Any]] = [[part] for part in schema.get("allOf", ())]
    found += [schema[keyword] for keyword in ("anyOf", "oneOf") if keyword in schema]
    return [*found, [pointed_value(root, schema["$ref"])]] if "$ref" in schema else found


def _joined(schema: Mapping[str, Any], root: Any) -> list[Any]:
    """Those beside which something is said of the same value."""
    groups = _groups(schema, root)
    alone = len(groups) == 1 and schema.keys().isdisjoint(SAYING | NAMING)
    return [] if alone else [*chain.from_iterable(groups)]


def _names_all(schema: Mapping[str, Any], root: Any) -> bool:
    """Whether whatever is said of the value is about properties that it names."""
    names, parts = schema["properties"], [schema]
    for part in parts:  # which grows
        if not isinstance(part, dict):
            continue
        listed = [part.get("properties", ()), part.get("required", ())]
        if (
            len(parts) > MOST_PARTS
            or not part.keys().isdisjoint(SAYING)
            or max(part.get("minProperties", 0), *map(len, listed)) > len(names)
            or not names.keys() >= {*chain(*listed)}
        ):
            return False
        parts += chain.from_iterable(_groups(part, root))
    return True


def _are_apart(choices: Sequence[Any], root: Any) -> bool:
    """Whether those that are objects have different values of a property that all of them need."""
    found = [one if isinstance(one := referred(part, root), dict) else {} for part in choices]
    objects = [
        one for one in found if "object" in one.get("type", TYPES) and not listed_values(one, root)
    ]
    if len(objects) < 2:
        return True
    needed = [{*one.get("required", ())} & one.get("properties", {}).keys() for one in objects]
    for name in needed[0].intersection(*needed):
        values = [different(listed_values(one["properties"][name], root)) for one in objects]
        if all(values) and len(different(chain(*values))) == sum(map(len, values)):
            return True
    return False


def tells_names_apart(schema: Any) -> bool:
    """Whether some object has properties of two kinds: by name, by pattern, others."""
    return any(
        bool(one.get("properties")) + bool(one.get("patternProperties"))
        > (one.get("additionalProperties") is False)
        for _, one in all_schemas(schema)
    )
