"""The JSON files of a checkpoint, read without trust.

Their size is looked at before they are read. Refused are: what is not UTF-8, keys that occur twice,
NaN and Infinity, numbers that no field can hold, nesting without end, and text that is no Unicode.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from vivace.checkpoint.errors import SourceError

MAX_CONFIG = 4 << 20
MAX_INDEX = 256 << 20
MAX_DEPTH = 32
LARGEST_NUMBER = 1 << 64


def read_json(path: Path, *, limit: int = MAX_CONFIG, required: bool = False) -> dict[str, Any]:
    """The object in a file; an empty one where there is no file and none is `required`.

    `limit`: bytes. Raises SourceError.
    """
    data = read_bytes(path, limit)
    if data is None:
        if required:
            raise SourceError(f"{path}: missing; a model directory needs it")
        return {}
    try:
        value = json.loads(
            data.decode(),
            object_pairs_hook=_without_doubles,
            parse_constant=_refused_constant,
            parse_float=_finite,
            parse_int=_whole,
        )
    except UnicodeDecodeError:
        raise SourceError(f"{path}: not UTF-8; fetch it again") from None
    except RecursionError:
        raise SourceError(f"{path}: nested too deeply") from None
    except ValueError as error:
        raise SourceError(f"{path}: not valid JSON: {error}; fetch it again") from None
    if not isinstance(value, dict):
        raise SourceError(f"{path}: a JSON object is wanted")
    try:
        _check_tree(value, escapes=b"\\ud" in data or b"\\uD" in data)
    except ValueError as error:
        raise SourceError(f"{path}: {error}") from None
    return value


def read_bytes(path: Path, limit: int) -> bytes | None:
    """A file of at most `limit` bytes; None when there is none. Raises SourceError."""
    if not is_file(path):
        return None
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror}") from None
    if len(data) > limit:
        raise SourceError(f"{path}: larger than {limit >> 20} MiB; such a file is not that large")
    return data


def is_file(path: Path) -> bool:
    """False too for names that no file can have."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        double = next(key for key, _ in pairs if key in seen or seen.add(key))
        raise ValueError(f"the key {double[:60]!r} occurs twice")
    return found


def _refused_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:40]} is too large")
    return value


def _whole(text: str) -> int:
    if len(text) > 21 or not -LARGEST_NUMBER < int(text) < LARGEST_NUMBER:
        raise ValueError(f"the number {text[:40]} is too large")
    return int(text)


def _check_tree(value: Any, *, escapes: bool) -> None:
    """Raises ValueError for nesting beyond MAX_DEPTH and, where the file has escapes that can
    make them, for halves of characters."""
    level = [value]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for one in level:
            if isinstance(one, dict):
                below += one.values()
                if escapes:
                    below += one.keys()
            elif isinstance(one, list):
                below += one
            elif escapes and isinstance(one, str) and not _is_unicode(one):
                raise ValueError(f"the text {one[:40]!a} is not valid Unicode")
        level = below
        if not level:
            return
    raise ValueError(f"nested more than {MAX_DEPTH} levels deep")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
