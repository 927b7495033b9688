"""Request fields: wrong types and values are refused, never bent. A number may be spelled 5, 5.0
or "5", as pydantic and so SGLang take it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from vivace.frontend.errors import BadRequest

NO_TEXT = "is missing; a part of type text needs its text, a string"
"""of a part of a message"""
MEDIA = frozenset(
    f"{prefix}{kind}{suffix}"
    for kind in ("image", "audio", "video")
    for prefix, suffix in (("", ""), ("input_", ""), ("", "_url"))
)
OF_SERVERS = re.compile(r"server_tool_use|mcp_tool_use|container_upload|\w+_tool_result")
"""parts that Anthropic's own tools leave in a conversation"""
PLAIN_TEXT = {"type": "text"}
"""what a response_format asks for that wants what happens anyway"""


def refuse_part(kind: str, place: str, known: str = "text") -> BadRequest:
    """Of a part of a message whose type is not one of those `known`."""
    reason = f"not known here; there is {known}"
    if kind in MEDIA:
        reason = "the served model takes text only"
    elif OF_SERVERS.fullmatch(kind):
        reason = "this server runs no tools of its own; send what came of it as text"
    return BadRequest(place, f"part of type {abbreviate(kind)!r}: {reason}")


class Fields:
    """A mapping of request fields with an error prefix; None means "not given"."""

    def __init__(self, raw: Mapping[str, Any], prefix: str) -> None:
        self._raw = raw
        self._prefix = prefix

    def name(self, key: str) -> str:
        return f"{self._prefix}.{key}" if self._prefix else key

    def refuse(self, key: str, reason: str) -> BadRequest:
        return BadRequest(self.name(key), reason)

    def get(self, key: str) -> Any:
        return self._raw.get(key)

    def integer(self, key: str, default: int, low: int, high: int) -> int:
        value = self._raw.get(key)
        if value is None:
            return default
        value = spelled_as(int, value)
        if value is None:
            raise self.refuse(key, f"must be an integer, not {json_type(self._raw.get(key))}")
        if not low <= value <= high:
            raise self.refuse(key, f"must be between {low} and {high}, got {abbreviate(value)}")
        return value

    def number(
        self, key: str, default: float, low: float, high: float, *, open_low: bool = False
    ) -> float:
        """A finite number in [low, high], or (low, high] with `open_low`."""
        value = self._raw.get(key)
        if value is None:
            return default
        value = self.finite(key, value)
        if value > high or value < low or (open_low and value == low):
            bracket = "(" if open_low else "["
            raise self.refuse(
                key, f"must be in {bracket}{low:g}, {high:g}], got {abbreviate(value)}"
            )
        return value

    def finite(self, key: str, value: Any) -> float:
        number = value if type(value) is int else spelled_as(float, value)
        if number is None:
            raise self.refuse(key, f"must be a number, not {json_type(value)}")
        try:
            number = float(number)
        except OverflowError as error:
            raise self.refuse(key, "is too large") from error
        if not math.isfinite(number):
            raise self.refuse(key, "must be finite, not NaN or infinity")
        return number

    def flag(self, key: str, default: bool) -> bool:
        value = self._raw.get(key)
        if value is None:
            return default
        flag = spelled_as(bool, value)
        if flag is None:
            raise self.refuse(key, f"must be true or false, not {json_type(value)}")
        return flag

    def strings(self, key: str, limit: int, longest: int) -> tuple[str, ...]:
        """One string or a list of them; duplicates are dropped."""
        value = self._raw.get(key)
        if value is None:
            return ()
        values = [value] if isinstance(value, str) else value
        if not isinstance(values, list | tuple):
            raise self.refuse(key, f"must be a string or a list of strings, not {json_type(value)}")
        if len(values) > limit:
            raise self.refuse(key, f"has {len(values)} entries; at most {limit} are allowed")
        for entry in values:
            if not isinstance(entry, str):
                raise self.refuse(key, f"must hold strings only, not {json_type(entry)}")
            if not entry:
                raise self.refuse(key, "must not hold an empty string")
            if len(entry) > longest:
                raise self.refuse(key, f"has a string of over {longest} characters")
        return tuple(dict.fromkeys(values))

    def token_ids(self, key: str, limit: int, vocabulary: int) -> tuple[int, ...]:
        value = self._raw.get(key)
        if value is None:
            return ()
        if not isinstance(value, list | tuple):
            raise self.refuse(key, f"must be a list of token ids, not {json_type(value)}")
        if len(value) > limit:
            raise self.refuse(key, f"has {len(value)} entries; at most {limit} are allowed")
        return tuple(self.token_id(key, entry, vocabulary) for entry in value)

    def token_id(self, key: str, value: Any, vocabulary: int) -> int:
        token = spelled_as(int, value)
        if token is None:
            raise self.refuse(key, f"must hold integers only, not {json_type(value)}")
        if not 0 <= token < vocabulary:
            raise self.refuse(
                key,
                f"token id {abbreviate(token)} is outside of the vocabulary (0..{vocabulary - 1})",
            )
        return token


T = TypeVar("T", int, float, bool)


def spelled_as(kind: type[T], value: Any) -> T | None:
    """`value` as a number or a truth value, if it is one in some spelling: 5.0 or "5" for 5, "0.5"
    for 0.5, 1 or "true" for true. The same as in decoded bodies."""
    if type(value) is kind:
        return value
    try:
        return msgspec.convert(value, kind, strict=False)
    except (TypeError, ValueError):  # also of texts that UTF-8 has no bytes for
        return None


def is_set(value: Any) -> bool:
    """Whether a field with this value asks for something; empty values, and lists of them, do
    not: clients send every field they know."""
    return any(value) if isinstance(value, list) else bool(value)


def json_type(value: Any) -> str:
    """A JSON type name for error messages."""
    names = {
        bool: "a boolean",
        int: "an integer",
        float: "a number",
        str: "a string",
        list: "a list",
        dict: "an object",
        type(None): "null",
    }
    return names.get(type(value), type(value).__name__)


def abbreviate(value: Any) -> str:
    """A value for an error message, never long."""
    if isinstance(value, int) and value.bit_length() > 200:
        return f"a {value.bit_length()}-bit number"
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."


_AT = re.compile(r"^(?P<reason>.*) - at `(?:\$|key in \$)\.?(?P<field>[^`]*)`$", re.DOTALL)


def validation_error(text: str) -> BadRequest:
    """Turn msgspec's "Expected `int`, got `str` - at `$.n`" into field and reason."""
    found = _AT.match(text)
    if found is None:
        missing = re.search(r"missing required field `([^`]+)`", text)
        return BadRequest(missing.group(1), "is missing") if missing else BadRequest("body", text)
    field, reason = found["field"], found["reason"]
    missing = re.search(r"missing required field `([^`]+)`", reason)
    if missing is not None:
        field = f"{field}.{missing.group(1)}" if field else missing.group(1)
        reason = "is missing"
    return BadRequest(field or "body", reason)


def refuse_unsupported(
    request: Any,
    reasons: Mapping[str, str],
    harmless: Mapping[str, tuple[Any, ...]] | None = None,
    *,
    place: str = "",
) -> None:
    """BadRequest for the first field of `reasons` that is set: nothing is silently ignored.

    Empty values, lists of them, a format that is plain text and `harmless` values ask for what
    happens anyway. `place` stands before the field's name.
    """
    for field, reason in reasons.items():
        value = getattr(request, field)
        plain = value == PLAIN_TEXT and field.endswith("_format")
        if is_set(value) and not plain and value not in (harmless or {}).get(field, ()):
            raise BadRequest(place + field, reason)
