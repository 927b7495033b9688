"""Schemas that recurse for ever: every instance would have to contain another one."""

from __future__ import annotations

from typing import Any

from vivace.grammar.backend import GrammarError
from vivace.parsers.schema_types import pointed

MAX_WORK = 200_000
"""values that are looked at"""
OBJECT, ARRAY = "object", "array"


def never_ends(schema: Any) -> str | None:
    """The reference of which no finite value can be an instance, if the schema needs one."""
    search = _FiniteSearch(schema)
    if search.has_end(schema):
        return None
    return search.first_missing or "$ref"


class _FiniteSearch:
    """Which references have a finite instance: the least set that follows from itself. Only
    references count; whatever else cannot be obeyed the library finds."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._finite: set[str] = set()
        self._asked: list[str] = []
        self._known: set[str] = set()
        """the same"""
        self._work = 0

    @property
    def first_missing(self) -> str | None:
        return next((ref for ref in self._asked if ref not in self._finite), None)

    def has_end(self, schema: Any) -> bool:
        while not self._ends(schema):
            before = len(self._finite), len(self._asked)
            for ref in self._asked:  # which grows: whatever is referred to from there
                self._reference_ends(ref)
            for ref in reversed(self._asked[:]):
                if self._reference_ends(ref):
                    self._finite.add(ref)
            if before == (len(self._finite), len(self._asked)):
                return False
        return True

    def _reference_ends(self, ref: str) -> bool:
        return ref in self._finite or self._ends(self._resolve(ref))

    def _resolve(self, ref: str) -> Any:
        found = pointed(self._root, ref)
        return True if found is None else found[1]

    def _ends(self, schema: Any) -> bool:
        self._work += 1
        if self._work > MAX_WORK:
            raise GrammarError("is too large: it has too many references to each other")
        if not isinstance(schema, dict):
            return True
        if isinstance(ref := schema.get("$ref"), str):
            if ref not in self._known:
                self._known.add(ref)
                self._asked.append(ref)
            if ref not in self._finite:
                return False
        if not all(self._ends(one) for one in _schemas(schema.get("allOf"))):
            return False
        for choice in ("anyOf", "oneOf"):
            options = _schemas(schema.get(choice))
            if options and not any(self._ends(one) for one in options):
                return False
        return self._value_ends(schema)

    def _value_ends(self, schema: dict[str, Any]) -> bool:
        if "const" in schema or "enum" in schema:
            return True
        kinds = schema.get("type")
        kinds = {kinds} if isinstance(kinds, str) else set(map(str, _schemas(kinds)))
        if not kinds or kinds - {OBJECT, ARRAY}:
            return True
        object_ends = OBJECT in kinds and self._object_ends(schema)
        return object_ends or (ARRAY in kinds and self._array_ends(schema))

    def _object_ends(self, schema: dict[str, Any]) -> bool:
        properties = schema.get("properties")
        known: dict[str, Any] = properties if isinstance(properties, dict) else {}
        others = True if "patternProperties" in schema else schema.get("additionalProperties", True)
        required = _schemas(schema.get("required"))
        return all(self._ends(known.get(str(name), others)) for name in required)

    def _array_ends(self, schema: dict[str, Any]) -> bool:
        least = schema.get("minItems", 0)
        if not isinstance(least, int) or least <= 0:
            return True
        items = schema.get("items", True)
        first = _schemas(items if isinstance(items, list) else schema.get("prefixItems"))
        rest = schema.get("additionalItems", True) if isinstance(items, list) else items
        needed = [*first[:least], *([rest] if least > len(first) else [])]
        return all(self._ends(one) for one in needed)


def _schemas(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
