"""Strings of a very large JSON document, taken out of it and decoded piece by piece: a decoder that
has begun does not stop, and 16 MiB of escapes take it 40 ms."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from typing import Any

import msgspec

from vivace.frontend.errors import BadRequest
from vivace.frontend.fairness import Work
from vivace.requests.json_scan import PART_BYTES, WINDOW, Data, Scan

_WHOLE = re.compile(
    rb"(?:[^\\]++|\\u[dD][89abAB]..\\u....|\\u(?![dD][89abAB])....|\\[^u])*+", re.DOTALL
)
"""Characters and escapes, none of them cut; two surrogates are one character."""
_LONGEST_ESCAPE = 12

decode = msgspec.json.Decoder(str).decode


class LongTexts:
    """What was taken out, by the names that stand in its place. Nobody can guess a name."""

    def __init__(self) -> None:
        self._mark = secrets.token_hex(16)
        self._texts: dict[str, str] = {}

    def take_out(self, data: Data, spans: Iterable[tuple[int, int]]) -> Work[Data]:
        """The document with names in place of the strings at `spans` (without their quotes)."""
        parts: list[Data] = []
        place = 0
        for start, end in spans:
            name = f"{self._mark}{len(self._texts)}"
            self._texts[name] = yield from decode_text(data, start, end)
            parts += data[place:start], name.encode()
            place = end
        parts.append(data[place:])
        return b"".join(parts)

    def put_back(self, value: Any, data: Data) -> Work[Any]:
        """What was decoded from `data`, with the strings in place of their names."""
        if not self._texts or self._mark.encode() not in data:
            return value
        return (yield from self._filled(value))

    def _filled(self, value: Any) -> Work[Any]:
        match value:
            case str():
                return self._texts.get(value, value)
            case list():
                for place, entry in enumerate(value):
                    value[place] = yield from self._filled(entry)
            case dict():
                for key, member in value.items():
                    value[key] = yield from self._filled(member)
            case msgspec.Struct():
                for name in value.__struct_fields__:
                    setattr(value, name, (yield from self._filled(getattr(value, name))))
            case _:
                return value
        yield
        return value


def decode_document(data: Data, scan: Scan) -> Work[Any]:
    """The value of a document that `scan` has walked over. BadRequest, or what a decoder raises."""
    texts = LongTexts()
    rest = yield from texts.take_out(data, scan.strings)
    if len(rest) > PART_BYTES:
        raise BadRequest("body", f"is too long; at most {PART_BYTES} bytes fit beside its strings")
    return (yield from texts.put_back(msgspec.json.decode(rest), rest))


def decode_text(data: Data, start: int, end: int) -> Work[str]:
    """The string whose content is data[start:end]; that must be UTF-8. BadRequest."""
    parts: list[str] = []
    while start < end:
        match = _WHOLE.match(data, start, min(start + max(WINDOW, _LONGEST_ESCAPE), end))
        assert match is not None  # it may be empty
        stop = match.end()
        while start < stop < end and data[stop] & 0xC0 == 0x80:
            stop -= 1  # inside of a character
        if stop == start:  # half a character: the decoder will say so
            stop = min(start + _LONGEST_ESCAPE, end)
        try:
            parts.append(decode(b'"%b"' % data[start:stop]))
        except (msgspec.DecodeError, ValueError) as error:
            raise BadRequest("body", f"is not valid JSON: {error}") from None
        start = stop
        yield
    return "".join(parts)
