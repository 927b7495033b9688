"""Which types a JSON schema allows, as far as it says so, and what its references are to."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

Path = tuple[str | int, ...]
"""of a part within a schema"""
TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")
UNIONS = ("anyOf", "oneOf", "allOf")
INDEX = re.compile(r"[0-9]{1,9}")
"""of a list, in a reference"""
MAX_STEPS = 100
"""references to references"""
MAX_REFERENCE = 4096
"""characters of one"""
MAX_WORK = 1 << 17
"""schemas that are read for their types, and characters of references, and every `LISTED` values"""
LISTED = 8
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
PLAIN = (str, int, float, bool, type(None))
FEW: Mapping[str, Sequence[Any]] = {"boolean": (False, True), "null": (None,)}
"""types with few values"""
TYPE_NAMES = {kind: kind for kind in TYPES} | {
    "bool": "boolean",
    "dict": "object",
    "double": "number",
    "float": "number",
    "int": "integer",
    "list": "array",
    "none": "null",
    "str": "string",
    "text": "string",
}
"""what languages call types, in lower case -> the type"""


def json_kinds(value: Any) -> frozenset[str]:
    """What a schema may call the type of a value."""
    return JSON_KINDS.get(type(value), STRING)


def kinds(schema: Any, root: Mapping[str, Any]) -> set[str]:
    """The types that a part of `root` allows; none if it does not say."""
    return read_kinds(schema, root, MAX_WORK)[0]


def read_kinds(schema: Any, root: Mapping[str, Any], left: int) -> tuple[set[str], int]:
    """These, as far as so much work finds them, and what is left of that."""
    found: set[str] = set()
    seen: set[str] = set()
    stack = [schema]
    while stack and left > 0:
        one = stack.pop()
        left -= 1
        if not isinstance(one, Mapping):
            continue
        if isinstance(ref := one.get("$ref"), str):
            if ref not in seen:
                seen.add(ref)
                left -= len(ref)
                stack.append(pointed_value(root, ref))
        elif isinstance(named := one.get("type"), str | list):
            names = {named} if isinstance(named, str) else set(map(str, named[: LISTED * left]))
            left -= len(named) // LISTED
            found |= {TYPE_NAMES.get(kind.lower(), kind) for kind in names}
        elif isinstance(one.get("enum"), list):
            types = set(map(type, one["enum"][: LISTED * left]))
            found = found.union(*(JSON_KINDS.get(kind, STRING) for kind in types))
            left -= len(one["enum"]) // LISTED
        elif "const" in one:
            found |= json_kinds(one["const"])
        else:
            for key in UNIONS:
                stack += one[key][:left] if isinstance(one.get(key), list) else ()
    return found, left


def listed_values(schema: Any, root: Any) -> Sequence[Any]:
    """That a schema may have, if they are few and plain; it may forbid some of them."""
    for _ in range(LISTED):
        if not isinstance(schema, Mapping):
            break
        if "const" in schema or "enum" in schema:
            found = [schema["const"]] if "const" in schema else schema["enum"]
            return found if all(isinstance(one, PLAIN) for one in found) else ()
        if isinstance(kind := schema.get("type"), str) and kind in FEW:
            return FEW[kind]
        schema = pointed_value(root, str(schema.get("$ref")))
    return ()


def different(values: Iterable[Any]) -> list[Any]:
    """As JSON has it: 1 and 1.0 are one number, which true is not."""
    return list({(isinstance(value, bool), value): value for value in values}.values())


def referred(schema: Any, root: Mapping[str, Any]) -> Any:
    """What a part of `root` refers to, and that; itself where it refers to nothing."""
    left = MAX_WORK
    for _ in range(MAX_STEPS):
        if not isinstance(schema, Mapping) or not isinstance(ref := schema.get("$ref"), str):
            return schema
        if (left := left - len(ref)) < 0:
            break
        schema = pointed_value(root, ref)
    return None


def is_pointer(ref: str) -> bool:
    """Whether it says where in a schema something stands."""
    return ref == "#" or ref.startswith("#/")


def pointed_value(root: Any, ref: str) -> Any:
    """None where a reference is to nothing in `root`."""
    found = pointed(root, ref)
    return found and found[1]


def pointed(root: Any, ref: str) -> tuple[Path, Any] | None:
    """What a reference within a schema is to, with its path; None where that is nothing, or
    a reference longer than any is (`MAX_REFERENCE`)."""
    path, value = (), root
    if not is_pointer(ref) or len(ref) > MAX_REFERENCE:
        return None
    for part in ref[1:].split("/")[1:]:
        key = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(value, list) and INDEX.fullmatch(key) and int(key) < len(value):
            path, value = (*path, int(key)), value[int(key)]
        elif isinstance(value, dict) and key in value:
            path, value = (*path, key), value[key]
        else:
            return None
    return path, value


def values(value: Any) -> Iterator[Any]:
    """A value of JSON, and all that is in it."""
    stack = [value]
    while stack:
        yield (one := stack.pop())
        if isinstance(one, dict):
            stack += one.values()
        elif isinstance(one, list):
            stack += one
