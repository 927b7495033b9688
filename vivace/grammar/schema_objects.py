"""Objects of schemas: which have no other properties than they name, and which may."""

from __future__ import annotations

from typing import Any

from vivace.grammar.schema_keywords import all_schemas


def tells_names_apart(schema: Any) -> bool:
    """Whether some object has properties of two kinds: by name, by pattern, others."""
    return any(
        bool(one.get("properties")) + bool(one.get("patternProperties"))
        > (one.get("additionalProperties") is False)
        for _, one in all_schemas(schema)
    )
