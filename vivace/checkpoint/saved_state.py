"""What the files of single ranks say of themselves (`--load-format sharded_state`). Torch-free.

A file has the parts of the checkpoint's tensors that one rank takes of it, as they are there: not
what a device makes of them, so any device loads them. Parts of a tensor have names of their own:
`model.norm.weight` is whole, `lm_head.weight[0:16/64,:]` the first 16 of 64 rows.
"""

from __future__ import annotations

import json
import os
import re
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from vivace.checkpoint.errors import SourceError
from vivace.files import open_input

KEY = "vivace.sharded_state"
"""in the metadata of each file"""
VERSION = 1
LENGTH = struct.Struct("<Q")
LARGEST_HEADER = 100_000_000
"""bytes; that of safetensors itself"""
PART = re.compile(r"(.+)\[([^\[\]]*)\]")
RANGE = re.compile(r"(\d{1,18}):(\d{1,18})/(\d{1,18})")
MOST_DIMENSIONS = 8
Range = tuple[int, int, int] | None
"""first, end and size of the whole dimension; None: all of it"""


class SavedState(msgspec.Struct, frozen=True, kw_only=True):
    """`made_with`: what decides which rank has what, by its name: flags, and shapes of the
    model."""

    rank: int
    ranks: int
    tied: bool
    """the output layer is the embedding"""
    checkpoint: str
    """digest of the model that all ranks' files were made of"""
    made_with: dict[str, str]
    version: int = VERSION


def metadata(state: SavedState) -> dict[str, str]:
    return {"format": "pt", KEY: msgspec.json.encode(state).decode()}


def read_saved_state(file: Path) -> SavedState:
    """Raises SourceError."""
    header = read_header(file)
    given = header.get("__metadata__")
    text = given.get(KEY) if isinstance(given, dict) else None
    if not isinstance(text, str):
        raise SourceError(
            f"{file}: it does not say what was saved in it: another engine's file; give the "
            "checkpoint that it was made of, and save that with `vivace save-sharded-state`"
        )
    try:
        state = msgspec.json.decode(text, type=SavedState)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise SourceError(f"{file}: {KEY}: {reason}; save the model again") from None
    if state.version != VERSION:
        raise SourceError(
            f"{file}: saved by another version of vivace (format {state.version}, this one reads "
            f"{VERSION}); save the model again"
        )
    return state


def read_header(file: Path) -> dict[str, Any]:
    try:
        with os.fdopen(open_input(file), "rb") as opened:
            (length,) = LENGTH.unpack(opened.read(LENGTH.size))
            if length > LARGEST_HEADER:
                raise ValueError("its header is too long")
            header = json.loads(opened.read(length))
    except (OSError, ValueError, RecursionError, struct.error) as error:
        reason = " ".join(str(error).split())[:200]
        raise SourceError(f"{file}: damaged safetensors file ({reason}); save it again") from None
    if not isinstance(header, dict):
        raise SourceError(f"{file}: damaged safetensors file; save it again")
    return header


def changed_settings(saved: Mapping[str, str], here: Mapping[str, str]) -> list[str]:
    """In words; nothing where all is the same"""
    return [
        f"{name} {saved.get(name) or 'not given'} (here {here.get(name) or 'not given'})"
        for name in dict.fromkeys((*saved, *here))
        if saved.get(name, "") != here.get(name, "")
    ]


def part_name(name: str, shape: Sequence[int], ranges: Sequence[slice]) -> str:
    """Of these ranges of a tensor that has `shape`."""
    dimensions: list[str] = []
    for size, wanted in zip(shape, [*ranges, *[slice(None)] * len(shape)], strict=False):
        start, stop, _ = wanted.indices(size)
        dimensions.append(":" if (start, stop) == (0, size) else f"{start}:{stop}/{size}")
    return name if set(dimensions) <= {":"} else f"{name}[{','.join(dimensions)}]"


def parse_part(stored: str) -> tuple[str, list[Range]]:
    """(name of the tensor, what of each dimension); nothing for a whole one. Raises ValueError."""
    found = PART.fullmatch(stored)
    if found is None:
        return stored, []
    ranges: list[Range] = []
    for text in found[2].split(","):
        numbers = RANGE.fullmatch(text)
        if numbers is None and text != ":":
            raise ValueError(f"{stored[:80]!r} names no part of a tensor")
        first, stop, size = map(int, numbers.groups()) if numbers else (0, 0, 0)
        ranges.append((first, stop, size) if numbers else None)
    if len(ranges) > MOST_DIMENSIONS:
        raise ValueError(f"{stored[:80]!r} has too many dimensions")
    return found[1], ranges
