"""Schemas that recurse for ever: every instance would have to contain another one."""

from __future__ import annotations

from typing import Any

from vivace.grammar.backend import GrammarError
from vivace.parsers.schema_types import pointed_value

MAX_WORK = 200_000
"""values that are looked at"""
OBJECT, ARRAY = "object", "array"


def never_ends(schema: Any) -> str | None:
    """The reference of which no finite value can be an instance, if the schema needs one."""
    search = _FiniteSearch(schema)
    if search.has_end(schema):
        return None
    return next((ref for ref in search.asked if ref not in search.finite), "$ref")


class _FiniteSearch:
    """Which references have a finite instance: the least set that follows from itself. Only
    references count; whatever else cannot be obeyed the library finds."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self.finite: set[str] = set()
        self.asked: list[str] = []
        self._known: set[str] = set()
        """the same"""
        self._work = 0

    def has_end(self, schema: Any) -> bool:
        while not self._ends(schema):
            before = len(self.finite), len(self.asked)
            for ref in self.asked:  # which grows: whatever is referred to from there
                self._reference_ends(ref)
            for ref in reversed(self.asked[:]):
                if self._reference_ends(ref):
                    self.finite.add(ref)
            if before == (len(self.finite), len(self.asked)):
                return False
        return True

    def _reference_ends(self, ref: str) -> bool:
        return ref in self.finite or self._ends(pointed_value(self._root, ref))

    def _ends(self, schema: Any) -> bool:
        self._work += 1
        if self._work > MAX_WORK:
            raise GrammarError("is too large: it has too many references to each other")
        if not isinstance(schema, dict):
            return True
        if isinstance(ref := schema.get("$ref"), str):
            if ref not in self._known:
                self._known.add(ref)
                self.asked.append(ref)
            if ref not in self.finite:
                return False
        if not all(self._ends(one) for one in schema.get("allOf", ())):
            return False
        for choice in ("anyOf", "oneOf"):
            options = schema.get(choice)
            if options and not any(self._ends(one) for one in options):
                return False
        return self._value_ends(schema)

    def _value_ends(self, schema: dict[str, Any]) -> bool:
        if "const" in schema or "enum" in schema:
            return True
        kinds = schema.get("type")
        kinds = {kinds} if isinstance(kinds, str) else set(kinds or ())
        if not kinds or kinds - {OBJECT, ARRAY}:
            return True
        object_ends = OBJECT in kinds and self._object_ends(schema)
        return object_ends or (ARRAY in kinds and self._array_ends(schema))

    def _object_ends(self, schema: dict[str, Any]) -> bool:
        known: dict[str, Any] = schema.get("properties", {})
        others = True if "patternProperties" in schema else schema.get("additionalProperties", True)
        return all(self._ends(known.get(name, others)) for name in schema.get("required", ()))

    def _array_ends(self, schema: dict[str, Any]) -> bool:
        least, items = schema.get("minItems", 0), schema.get("items", True)
        listed = isinstance(items, list)
        first = items if listed else schema.get("prefixItems", [])
        rest = schema.get("additionalItems", True) if listed else items
        return all(self._ends(one) for one in [*first[:least], *[rest] * (least > len(first))])
