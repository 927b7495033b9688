"""Schemas that recurse for ever: every instance would have to contain another one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vivace.grammar.backend import GrammarError
from vivace.grammar.schema_keywords import all_schemas
from vivace.parsers.schema_strings import NOTES
from vivace.parsers.schema_types import pointed_value, referred

MAX_WORK = 200_000
"""values that are looked at"""


def forbid_endless(schema: Any) -> str:
    """In place: what refers to a schema without finite instances has none itself. A reference for
    which the whole schema has none, either; empty: it has."""
    referring = [one for _, one in all_schemas(schema) if "$ref" in one]
    search = _FiniteSearch(schema, [one["$ref"] for one in referring])
    if not search.ends(schema):
        return search.missed
    for one in referring:
        loops = one.keys() - NOTES != {"$ref"} and referred(one, schema) is None  # and is refused
        if one["$ref"] not in search.finite and not loops:
            del one["$ref"]
            one["enum"] = []
    return ""


class _FiniteSearch:
    """Which references have a finite instance: the least set that follows from itself. Only
    references count; whatever else cannot be obeyed the library finds."""

    def __init__(self, root: Any, refs: Sequence[str]) -> None:
        self.finite: set[str] = set()
        self.missed = ""
        """the last reference that had none"""
        self._work = 0
        targets = {ref: pointed_value(root, ref) for ref in reversed(refs)}  # those of others first
        known = -1
        while known < (known := len(self.finite)):
            for ref, target in targets.items():
                if ref not in self.finite and self.ends(target):
                    self.finite.add(ref)

    def ends(self, schema: Any) -> bool:
        self._work += 1
        if self._work > MAX_WORK:
            raise GrammarError("is too large: it has too many references to each other")
        if not isinstance(schema, dict):
            return True
        if "$ref" in schema and schema["$ref"] not in self.finite:
            self.missed = schema["$ref"]
            return False
        if not all(self.ends(one) for one in schema.get("allOf", ())):
            return False
        for choice in ("anyOf", "oneOf"):
            options = schema.get(choice)
            if options and not any(self.ends(one) for one in options):
                return False
        return self._value_ends(schema)

    def _value_ends(self, schema: dict[str, Any]) -> bool:
        if "const" in schema or "enum" in schema:
            return True
        kinds = schema.get("type")
        kinds = {kinds} if isinstance(kinds, str) else set(kinds or ())
        ends = {"object": self._object_ends, "array": self._array_ends}
        if not kinds or kinds - ends.keys():
            return True
        return any(ends[kind](schema) for kind in kinds)

    def _object_ends(self, schema: dict[str, Any]) -> bool:
        known: dict[str, Any] = schema.get("properties", {})
        others = True if "patternProperties" in schema else schema.get("additionalProperties", True)
        return all(self.ends(known.get(name, others)) for name in schema.get("required", ()))

    def _array_ends(self, schema: dict[str, Any]) -> bool:
        least, items = schema.get("minItems", 0), schema.get("items", True)
        listed = isinstance(items, list)
        first = items if listed else schema.get("prefixItems", [])
        rest = schema.get("additionalItems", True) if listed else items
        return all(self.ends(one) for one in [*first[:least], *[rest] * (least > len(first))])
