"""JSON of long lists, made in slices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import msgspec

from vivace.server.pace import Work

ROWS = 4
"""Tokens whose log-probabilities are encoded without a pause: hundreds of numbers each."""


SEGMENT = 1 << 16
"""Bytes up to which new entries are added to the last segment of an `EncodedList`."""


class EncodedList:
    """JSON of a list that grows. Its segments are kept as they are: to show it again copies
    nothing."""

    def __init__(self) -> None:
        self._segments: list[bytes] = []

    def extend(self, entries: list[Any]) -> None:
        data = msgspec.json.encode(entries, enc_hook=str)[1:-1]
        segments = self._segments
        if not segments:
            segments.append(data)
        elif len(segments[-1]) < SEGMENT:
            segments[-1] = b",".join((segments[-1], data)) if segments[-1] else data
        elif data:
            segments.append(b"," + data)

    def parts(self) -> list[bytes]:
        """The whole list, to be written one after the other."""
        return [b"[", *self._segments, b"]"]


def batches(entries: Iterable[Any], run: int = ROWS) -> Iterator[list[Any]]:
    """`run` entries at a time."""
    rest = iter(entries)
    while batch := list(islice(rest, run)):
        yield batch


def encode_list(entries: Iterable[Any], run: int = 1) -> Work[msgspec.Raw]:
    """The entries as a JSON list, `run` of them without a pause."""
    parts: list[bytes] = []
    for batch in batches(entries, run):
        parts.append(msgspec.json.encode(batch, enc_hook=str)[1:-1])
        yield
    return msgspec.Raw(b"[%b]" % b",".join(parts))
