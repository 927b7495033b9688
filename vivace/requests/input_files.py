"""Files in an input: their text, where they are text."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Any, Protocol

from vivace.frontend.errors import BadRequest
from vivace.frontend.fields import abbreviate

DATA, BASE64 = "data:", "base64"
LONGEST_HEAD = 1024
"""characters of a `data:` URL before the data"""
TEXT_TYPES = re.compile(
    r"|text/.*|application/(?:(?:.*\+)?(?:json|xml|yaml)|x-yaml|toml|sql|javascript|x-sh|x-ndjson"
    r"|octet-stream)"
)
"""of media; nothing, and octet-stream: whatever is in it"""
NO_BASE64 = "is not valid base64; a text may stand in a part of its own"
NO_PLACE = "this server stores no files and fetches none; send the file itself as file_data"
NO_TEXT_FILE = "the served model takes text only; send what the file says as text"


class FilePart(Protocol):
    """A file as a client sends it; without base64 it is elsewhere."""

    file_data: str | None
    filename: str | None
    file_id: Any
    file_url: Any


def file_text(part: FilePart, place: str) -> str:
    """What a file says, its name in front. BadRequest for one that is no text, or elsewhere."""
    for name in ("file_id", "file_url"):
        if getattr(part, name) is not None:
            raise BadRequest(f"{place}.{name}", NO_PLACE)
    if part.file_data is None:
        raise BadRequest(f"{place}.file_data", "is required")
    text = decoded_text(part.file_data, f"{place}.file_data")
    return f"{part.filename}\n{text}" if part.filename else text


def decoded_text(data: str, place: str) -> str:
    """Of a `data:` URL, or of base64 alone. BadRequest."""
    if data.startswith(DATA):
        end = data.find(",", 0, LONGEST_HEAD)
        kind, *parameters = data[len(DATA) : max(end, 0)].lower().split(";")
        if TEXT_TYPES.fullmatch(kind.strip()) is None:
            raise BadRequest(place, f"a file of type {abbreviate(kind)!r}: {NO_TEXT_FILE}")
        if BASE64 not in map(str.strip, parameters):
            raise BadRequest(place, "must be base64: data:text/plain;base64,...")
        data = data[end + 1 :]
    try:  # `base64 FILE` and mail put line ends into it
        content = base64.b64decode(data.replace("\r", "").replace("\n", ""), validate=True)
    except (binascii.Error, ValueError):
        raise BadRequest(place, NO_BASE64) from None
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise BadRequest(place, f"a file that is no text in UTF-8: {NO_TEXT_FILE}") from None
    if "\0" in text:
        raise BadRequest(place, f"a file with bytes in it that are no text: {NO_TEXT_FILE}")
    return text
