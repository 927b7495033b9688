"""Which types a schema allows, as far as it says so in so many words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

UNIONS = ("anyOf", "oneOf", "allOf")
MAX_STEPS = 100
"""references to references"""
STRING = frozenset({"string"})
JSON_KINDS: Mapping[type, frozenset[str]] = {
    bool: frozenset({"boolean"}),
    int: frozenset({"integer", "number"}),
    float: frozenset({"number"}),
    dict: frozenset({"object"}),
    list: frozenset({"array"}),
    type(None): frozenset({"null"}),
}
"""what a schema may call the type of a value that JSON had"""
OTHER_NAMES = {"str": "string", "text": "string", "int": "integer", "float": "number"}
OTHER_NAMES |= {"double": "number", "bool": "boolean", "dict": "object", "list": "array"}
OTHER_NAMES |= {"none": "null"}
"""what languages call types, in any case"""


def json_kinds(value: Any) -> frozenset[str]:
    """What a schema may call the type of a value."""
    return JSON_KINDS.get(type(value), STRING)


def kinds(schema: Any, root: Mapping[str, Any]) -> set[str]:
    """The types that a part of `root` allows; none if it does not say."""
    found: set[str] = set()
    seen: set[str] = set()
    stack = [schema]
    while stack:
        one = stack.pop()
        if not isinstance(one, Mapping):
            continue
        if isinstance(ref := one.get("$ref"), str):
            if ref not in seen:
                seen.add(ref)
                stack.append(pointed(root, ref))
        elif isinstance(named := one.get("type"), str | list):
            names = [named] if isinstance(named, str) else map(str, named)
            found |= {OTHER_NAMES.get(kind.lower(), kind) for kind in names}
        elif isinstance(one.get("enum"), list):
            found.update(*map(json_kinds, one["enum"]))
        elif "const" in one:
            found |= json_kinds(one["const"])
        else:
            stack += [each for key in UNIONS if isinstance(one.get(key), list) for each in one[key]]
    return found


def referred(schema: Any, root: Mapping[str, Any]) -> Any:
    """What a part of `root` refers to, and that; itself where it refers to nothing."""
    for _ in range(MAX_STEPS):
        if not isinstance(schema, Mapping) or not isinstance(ref := schema.get("$ref"), str):
            return schema
        schema = pointed(root, ref)
    return None


def pointed(root: Any, ref: str) -> Any:
    """What a reference is to; None where it is to nothing in `root`."""
    if not ref.startswith("#"):
        return None
    for part in ref[1:].split("/")[1:]:
        key = unquote(part).replace("~1", "/").replace("~0", "~")
        if not isinstance(root, Mapping) or key not in root:
            return None
        root = root[key]
    return root
