"""Messages of conversations, each of which is there once."""

from __future__ import annotations

from collections.abc import Sequence


class SharedMessages:
    """Messages of one client's responses: what several conversations have, since each goes on with
    another one, is there once."""

    def __init__(self) -> None:
        self._counts: dict[bytes, int] = {}
        self._known: dict[bytes, bytes] = {}

    def hold(self, messages: Sequence[bytes]) -> tuple[tuple[bytes, ...], int]:
        """(the same ones, bytes that they add)"""
        added = 0
        for message in messages:
            count = self._counts.get(message, 0)
            self._counts[self._known.setdefault(message, message)] = count + 1
            added += 0 if count else len(message)
        return tuple(self._known[message] for message in messages), added

    def drop(self, messages: Sequence[bytes]) -> int:
        """How many bytes that frees."""
        freed = 0
        for message in messages:
            self._counts[message] -= 1
            if not self._counts[message]:
                del self._counts[message], self._known[message]
                freed += len(message)
        return freed
