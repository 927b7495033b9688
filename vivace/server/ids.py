"""Identifiers: new ones for answers, and token ids to be decoded."""

from __future__ import annotations

import secrets
from typing import Any

from vivace.frontend.errors import BadRequest


def new_id(prefix: str) -> str:
    """An id no other answer has, e.g. `chatcmpl-5f0c...`."""
    return f"{prefix}-{secrets.token_hex(16)}"


def kind_of_entries(entries: list[Any], most: int) -> type | None:
    """The type that the first `most` entries have in common, None if they have none."""
    kinds = set(map(type, entries[:most]))
    return kinds.pop() if len(kinds) == 1 else None


def checked_ids(ids: list[Any], vocabulary: int, field: str, start: int = 0) -> list[int]:
    """The ids if they are all inside the vocabulary; BadRequest names the first that is not, as
    one of a list that begins `start` entries earlier."""
    if ids and (set(map(type, ids)) != {int} or min(ids) < 0 or max(ids) >= vocabulary):
        for position, token in enumerate(ids, start):
            if type(token) is not int or not 0 <= token < vocabulary:
                raise BadRequest(
                    f"{field}[{position}]",
                    f"must be a token id of the vocabulary (0 to {vocabulary - 1})",
                )
    return ids
