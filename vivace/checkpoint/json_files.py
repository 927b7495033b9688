"""The JSON files of a checkpoint, read without trust.

Their size is looked at before they are read. Refused is what is no JSON as Python writes it, and
what costs without end: nesting, numbers of thousands of digits. Values are judged by who reads
them (`fields`): files hold many that nobody reads, NaN and 10^30 as "no limit" among them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from vivace.checkpoint.errors import SourceError

MAX_CONFIG = 4 << 20
MAX_INDEX = 256 << 20
MAX_DEPTH = 32
MOST_DIGITS = 4000
LFS_POINTER = b"version https://git-lfs"
FETCH_LFS = "a Git LFS pointer; fetch the file itself (`git lfs pull`, or `vivace pull`)"
"""what `git clone` leaves in the place of large files where git-lfs is not installed"""


def read_json(path: Path, *, limit: int = MAX_CONFIG, required: bool = False) -> dict[str, Any]:
    """The object in a file; an empty one where there is no file and none is `required`.

    `limit`: bytes. Raises SourceError.
    """
    value = read_value(path, limit)
    if value is None and required:
        raise SourceError(f"{path}: missing; a model directory needs it")
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise SourceError(f"{path}: must be a JSON object")
    return value


def read_value(path: Path, limit: int = MAX_CONFIG) -> Any:
    """What a file holds; None when there is no file. Raises SourceError."""
    data = read_bytes(path, limit)
    if data is None:
        return None
    try:
        value = json.loads(data.decode(), parse_int=_whole)
    except UnicodeDecodeError:
        raise SourceError(f"{path}: not UTF-8; fetch it again") from None
    except RecursionError:
        raise SourceError(f"{path}: nested too deeply") from None
    except ValueError as error:
        raise SourceError(f"{path}: not valid JSON: {error}; fetch it again") from None
    if value is None:
        raise SourceError(f"{path}: must be a JSON object")
    if not _is_shallow(value):
        raise SourceError(f"{path}: nested more than {MAX_DEPTH} levels deep")
    return value


def read_bytes(path: Path, limit: int) -> bytes | None:
    """A file of at most `limit` bytes; None when there is none. Raises SourceError."""
    if not is_file(path):
        if is_something_else(path):
            raise SourceError(f"{path}: a link to nothing, or no file; fetch it again")
        return None
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror}") from None
    if len(data) > limit:
        raise SourceError(f"{path}: larger than {limit >> 20} MiB; such a file is not that large")
    refuse_pointer(path, data)
    return data


def refuse_pointer(path: Path, begin: bytes) -> None:
    """Raises SourceError for a file that begins as a Git LFS pointer does."""
    if begin.startswith(LFS_POINTER):
        raise SourceError(f"{path}: {FETCH_LFS}")


def is_file(path: Path) -> bool:
    """False too for names that no file can have."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def is_something_else(path: Path) -> bool:
    """The name is taken by what is no file: a link of the hub's cache whose file was never fetched,
    a folder, a pipe."""
    try:
        path.lstat()
    except (OSError, ValueError):
        return False
    return not is_file(path)


def _whole(text: str) -> int:
    if len(text) > MOST_DIGITS:
        raise ValueError(f"a number has {len(text)} digits")
    return int(text)


def _is_shallow(value: Any) -> bool:
    """Whether it is nested at most MAX_DEPTH levels deep."""
    level = [value]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for one in level:
            if isinstance(one, dict):
                below += one.values()
            elif isinstance(one, list):
                below += one
        level = below
        if not level:
            return True
    return False
