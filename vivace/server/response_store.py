"""Responses that are kept for a while, for who asks for them again or goes on with them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

from vivace.frontend.errors import BadRequest
from vivace.server.responses import HTTPError

MAX_ENTRIES = 2048
MAX_BYTES = 64 << 20
MAX_RUNNING = 256
"""Responses in the background that have not ended."""
OVERHEAD = 1024
"""Bytes of an entry beside its texts, about."""


@dataclass
class StoredResponse:
    """`body`: the response as JSON; `messages`: the conversation with it at the end, each as JSON.
    `background`: it is made there; `task` makes one that has not ended; `items`: ids of what is in
    one that has; `listed`: tool servers whose tools the conversation has listed."""

    body: bytes
    messages: tuple[bytes, ...] = ()
    task: asyncio.Task[None] | None = None
    items: tuple[str, ...] = ()
    listed: frozenset[str] = frozenset()
    background: bool = False

    @property
    def size(self) -> int:
        texts = (*self.messages, *self.items, *self.listed)
        return OVERHEAD + len(self.body) + sum(map(len, texts))


class ResponseStore:
    """Of every client (an API key) its own: nobody finds another one's. At most `max_entries` and
    `max_bytes` of all together; when there is no room the oldest ones go, of the client that has
    most. Those that are still being made stay."""

    def __init__(self, max_entries: int = MAX_ENTRIES, max_bytes: int = MAX_BYTES) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._clients: dict[int, dict[str, StoredResponse]] = {}
        self._items: dict[tuple[int, str], str] = {}
        """(client, item) -> the response that has it"""
        self._bytes: dict[int, int] = {}

    def __len__(self) -> int:
        return sum(map(len, self._clients.values()))

    @property
    def size(self) -> int:
        return sum(self._bytes.values())

    def put(self, client: int, identity: str, entry: StoredResponse) -> None:
        """Keep it, in the place of an earlier one of this id."""
        self.discard(client, identity)
        self._clients.setdefault(client, {})[identity] = entry
        self._items |= {(client, item): identity for item in entry.items}
        self._bytes[client] = self._bytes.get(client, 0) + entry.size
        self._make_room()

    def get(self, client: int, identity: str) -> StoredResponse:
        """HTTPError 404 when the client has none of this id (any more)."""
        entry = self._clients.get(client, {}).get(identity)
        if entry is None:
            raise HTTPError(
                404,
                f"Response with id {identity[:100]!r} not found: it was not stored here, or has "
                "made room for others",
                param="response_id",
                code="not_found",
            )
        return entry

    def find_response(self, client: int, item: str) -> str | None:
        """The id of the client's response that has an item."""
        return self._items.get((client, item))

    def remove(self, client: int, identity: str) -> StoredResponse:
        """HTTPError 404 as of `get`."""
        entry = self.get(client, identity)
        self.discard(client, identity)
        return entry

    def check_running(self, size: int = 0) -> None:
        """BadRequest when as much is being made in the background as may be, with `size` bytes
        more: none of that goes to make room."""
        running = [entry.size for entry in self._entries() if entry.task is not None]
        if len(running) < MAX_RUNNING and (not running or sum(running) + size <= self._max_bytes):
            return
        reason = f"{len(running)} responses are being made in the background already"
        raise BadRequest("background", reason, 503, retry_after=1.0)

    def _entries(self) -> Iterator[StoredResponse]:
        for entries in self._clients.values():
            yield from entries.values()

    def discard(self, client: int, identity: str) -> None:
        """Forget it, if it is there."""
        entries = self._clients.get(client, {})
        entry = entries.pop(identity, None)
        if entry is None:
            return
        for item in entry.items:
            del self._items[client, item]
        self._bytes[client] -= entry.size
        if not entries:
            del self._clients[client], self._bytes[client]

    def _make_room(self) -> None:
        while len(self) > self._max_entries or self.size > self._max_bytes:
            for client in sorted(self._bytes, key=lambda one: -self._bytes[one]):
                over = (i for i, one in self._clients[client].items() if one.task is None)
                if (oldest := next(over, None)) is not None:
                    self.discard(client, oldest)
                    break
            else:
                return
