"""JSON of long lists, made in slices."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

import msgspec

from vivace.server.pace import Work

ROWS = 4
"""Tokens whose log-probabilities are encoded without a pause: hundreds of numbers each."""


def encode_list(entries: Iterable[Any], run: int = 1) -> Work[msgspec.Raw]:
    """The entries as a JSON list, `run` of them without a pause."""
    rest = iter(entries)
    parts: list[bytes] = []
    while batch := list(islice(rest, run)):
        parts.append(msgspec.json.encode(batch, enc_hook=str)[1:-1])
        yield
    return msgspec.Raw(b"[%b]" % b",".join(parts))
