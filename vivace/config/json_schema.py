"""JSON Schemas of our structs."""

from __future__ import annotations

from typing import Any, cast


def clean_descriptions(schema: Any) -> Any:
    """The schema with the text of docstrings, without the indentation that they have in the source
    (Python 3.13 takes it out by itself): the same on every Python."""
    import inspect  # large, and only who writes schemas needs it

    if isinstance(schema, list):
        return [clean_descriptions(part) for part in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    return {
        name: inspect.cleandoc(part)
        if name == "description" and isinstance(part, str)
        else clean_descriptions(part)
        for name, part in cast("dict[str, Any]", schema).items()
    }
