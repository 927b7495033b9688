"""One mapping over another, as deployments of a family share a base."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

BASE = "include"


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Mappings are merged key by key; everything else is replaced; null takes a key away."""
    result = dict(base)
    for key, value in over.items():
        before = result.get(key)
        if value is None and key in result:
            del result[key]
        elif isinstance(value, Mapping) and isinstance(before, Mapping):
            result[key] = merged(before, value)
        else:
            result[key] = value
    return result
