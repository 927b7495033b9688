"""Checks of plain data before it becomes structs, with clearer errors than a decoder's."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from functools import cache
from types import UnionType
from typing import Any

import msgspec

ENVIRONMENT = "environment"


def refuse_keys(content: Any, wanted: Any, where: str = "") -> None:
    """Raises ValueError for the first unknown key, with the nearest known one, and for the first
    that is missing, with what it may be."""
    struct = find_struct(wanted)
    if struct is not None and isinstance(content, Mapping):
        fields = struct_fields(struct)
        for key, value in content.items():
            if key not in fields:
                raise ValueError(f"{where or 'the file'} has no key {key!r}{near(key, fields)}")
            refuse_keys(value, fields[key], f"{where}.{key}".lstrip("."))
        for field in msgspec.structs.fields(struct):
            if field.required and field.encode_name not in content:
                place = f"{where}.{field.encode_name}".lstrip(".")
                raise ValueError(f"{place} is missing{describe(field.type)}")
        return
    inner = find_inner_struct(wanted)
    if inner is None:
        return
    if isinstance(content, Mapping):
        for key, value in content.items():
            refuse_keys(value, inner, f"{where}.{key}".lstrip("."))
    elif isinstance(content, list):
        for index, value in enumerate(content):
            refuse_keys(value, inner, f"{where}[{index}]")


@cache
def struct_fields(struct: type[msgspec.Struct]) -> dict[str, Any]:
    return {field.encode_name: field.type for field in msgspec.structs.fields(struct)}


def find_struct(wanted: Any) -> type[msgspec.Struct] | None:
    """The struct among the members of a type."""
    if typing.get_origin(wanted) in (typing.Union, UnionType):
        found = [find_struct(part) for part in typing.get_args(wanted)]
        return next((each for each in found if each is not None), None)
    is_struct = isinstance(wanted, type) and issubclass(wanted, msgspec.Struct)
    return wanted if is_struct else None


def find_inner_struct(wanted: Any) -> Any:
    """The struct that a list or a mapping holds."""
    arguments = typing.get_args(wanted)
    if typing.get_origin(wanted) in (list, dict) and arguments:
        return arguments[-1] if find_struct(arguments[-1]) else None
    return None


def describe(wanted: Any) -> str:
    """What a value may be: one of a few words, or what is said beside the type."""
    if typing.get_origin(wanted) is typing.Annotated:
        return next((f": {meta.description}" for meta in typing.get_args(wanted)[1:]), "")
    is_word = typing.get_origin(wanted) is typing.Literal
    return f" ({', '.join(map(str, typing.get_args(wanted)))})" if is_word else ""


def near(key: Any, known: Mapping[str, Any]) -> str:
    """ "; did you mean ..", or the list of known keys."""
    import difflib

    close = difflib.get_close_matches(str(key), known, n=1)
    return f"; did you mean {close[0]!r}?" if close else f" (it has {', '.join(known)})"


def environment_as_text(content: Any) -> Any:
    """The data with variables written as numbers or switches turned into text, which is all an
    environment can hold."""
    if isinstance(content, list):
        return [environment_as_text(each) for each in content]
    if not isinstance(content, Mapping):
        return content
    return {
        key: texts(value) if key == ENVIRONMENT else environment_as_text(value)
        for key, value in content.items()
    }


def texts(variables: Any) -> Any:
    if not isinstance(variables, Mapping):
        return variables
    return {key: as_text(value) for key, value in variables.items()}


def as_text(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value
