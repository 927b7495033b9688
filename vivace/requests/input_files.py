"""Files in an input: their text, where they are text."""

from __future__ import annotations

import base64
import binascii
import codecs
import re
from collections.abc import Iterator
from typing import Any, Protocol

from vivace.frontend.errors import BadRequest
from vivace.frontend.fairness import Work
from vivace.frontend.fields import abbreviate

DATA, BASE64 = "data:", "base64"
LONGEST_HEAD = 1024
"""characters of a `data:` URL before the data"""
SLICE = 128 << 10
"""characters that are decoded at once: 16 MiB take 50 ms"""
TEXT_TYPES = re.compile(
    r"|text/.*|application/(?:(?:.*\+)?(?:json|xml|yaml)|x-yaml|toml|sql|javascript|x-sh|x-ndjson"
    r"|octet-stream)"
)
"""of media; nothing, and octet-stream: whatever is in it"""
OTHER_ALPHABETS = str.maketrans("-_", "+/", "\r\n")
"""base64 of URLs, and lines as mail has them"""
NO_BASE64 = "is not valid base64; a text may stand in a part of its own"
NO_PLACE = "this server stores no files and fetches none; send the file itself as file_data"
NO_TEXT_FILE = "the served model takes text only; send what the file says as text"


class FilePart(Protocol):
    """A file as a client sends it; without base64 it is elsewhere."""

    file_data: str | None
    filename: str | None
    file_id: Any
    file_url: Any


def read_file(part: FilePart, place: str) -> Work[str]:
    """What a file says, its name in front. BadRequest for one that is no text, or elsewhere."""
    for name in ("file_id", "file_url"):
        if getattr(part, name) is not None:
            raise BadRequest(f"{place}.{name}", NO_PLACE)
    if part.file_data is None:
        raise BadRequest(f"{place}.file_data", "is required")
    texts = [f"{part.filename}\n"] if part.filename else []
    place = f"{place}.file_data"
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    for content, last in decoded_slices(part.file_data, place):
        try:
            texts.append(decoder.decode(content, last))
        except UnicodeDecodeError:
            raise BadRequest(place, f"a file that is no text in UTF-8: {NO_TEXT_FILE}") from None
        if "\0" in texts[-1]:
            raise BadRequest(place, f"a file with bytes in it that are no text: {NO_TEXT_FILE}")
        yield
    return "".join(texts)


def decoded_slices(data: str, place: str) -> Iterator[tuple[bytes, bool]]:
    """Of a `data:` URL, or of base64 alone; and whether it is the last one. BadRequest."""
    start, rest = _find_base64(data, place), ""
    for begin in range(start, len(data), SLICE):
        last = begin + SLICE >= len(data)
        piece = rest + data[begin : begin + SLICE].translate(OTHER_ALPHABETS)
        whole = len(piece) if last else (len(piece) - 1) // 4 * 4  # padding stays with the last one
        try:
            padding = "=" * (-whole % 4) if "=" not in piece else ""  # which some leave out
            content = base64.b64decode(piece[:whole] + padding, validate=True)
        except (binascii.Error, ValueError):
            raise BadRequest(place, NO_BASE64) from None
        if "=" in piece[:whole] and not last:
            raise BadRequest(place, NO_BASE64)
        yield content, last
        rest = piece[whole:]


def _find_base64(data: str, place: str) -> int:
    """Where it begins."""
    if data[: len(DATA)].lower() != DATA:
        return 0
    end = data.find(",", 0, LONGEST_HEAD)
    kind, *parameters = data[len(DATA) : max(end, 0)].lower().split(";")
    if TEXT_TYPES.fullmatch(kind.strip()) is None:
        raise BadRequest(place, f"a file of type {abbreviate(kind)!r}: {NO_TEXT_FILE}")
    if BASE64 not in map(str.strip, parameters):
        raise BadRequest(place, "must be base64: data:text/plain;base64,...")
    return end + 1
