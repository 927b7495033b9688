"""Responses that are kept for a while, for who asks for them again or goes on with them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Protocol, TypeVar

import msgspec

from vivace.server.event_history import EventHistory
from vivace.server.responses import HTTPError
from vivace.server.shared_messages import SharedMessages

MAX_ENTRIES = 2048
MAX_BYTES = 64 << 20
MAX_RUNNING = 256
"""Responses in the background that have not ended."""
MAX_APPROVALS = 4096
"""of each client, that are remembered; 16 bytes of each"""
OVERHEAD = 1024
"""Bytes of an entry beside its texts, about."""
POINTER = 8
"""Bytes"""
STOP_SECONDS = 10.0
"""until who makes a response has ended it"""
A = TypeVar("A", covariant=True)


class StoredResponse(msgspec.Struct, frozen=True, tag=True):
    """`body`: the response as JSON; `messages`: the conversation with it at the end, each as JSON.
    `items`: ids of what is in one that has ended; `listed`: tool servers whose tools the
    conversation has listed; `background`: it is made there; `running`: it has not ended;
    `inputs`: the items that it was asked with, a JSON list."""

    body: bytes
    messages: tuple[bytes, ...] = ()
    items: tuple[str, ...] = ()
    listed: frozenset[str] = frozenset()
    background: bool = False
    running: bool = False
    inputs: bytes = b""

    @property
    def size(self) -> int:
        texts = (*self.messages, *self.items, *self.listed)
        places = POINTER * len(self.messages)
        return OVERHEAD + len(self.body) + len(self.inputs) + places + sum(map(len, texts))


class FoundItems(msgspec.Struct, frozen=True, tag=True):
    """Items of stored responses: the response that has each, and these as JSON."""

    places: dict[str, str]
    bodies: dict[str, bytes]


class NewEvents(msgspec.Struct, frozen=True, tag=True):
    """Events of a response behind those that somebody has; `following`: the number of the one
    behind these. `body`: what has become of the response, once these are the last ones."""

    events: Sequence[bytes]
    following: int
    body: bytes | None = None


class StoreQuestion(Protocol[A]):
    """One of `store_messages.py`."""

    def answer(self, store: ResponseStore) -> Awaitable[A]:
        """Raises HTTPError."""
        ...


class Responses(Protocol):
    """Of every client (an API key) its own: nobody finds another one's."""

    async def ask(self, question: StoreQuestion[A]) -> A:
        """What a `ResponseStore` answers. Raises HTTPError as that does, and 503 where who keeps
        responses is not there."""
        ...


@dataclass(eq=False)
class KeptResponse:
    entry: StoredResponse
    size: int
    lost: bytes = b""
    history: EventHistory | None = None
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    over: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def own_size(self) -> int:
        """Without its messages, which others may have, too."""
        return self.size - sum(map(len, self.entry.messages))

    def end(self) -> None:
        """Nobody waits for it any more, neither its maker."""
        self.stopping.set()
        self.over.set()
        if self.history is not None:
            self.history.tell()


class ResponseStore:
    """`Responses` in this process. At most `max_entries` and `max_bytes` of all clients together;
    when there is no room the oldest ones go, of the client that has most. Those that are still
    being made stay. `shared`: by several clients, each of which is given as many places in the
    background as it leaves to others. What a client has not is HTTPError 404."""

    def __init__(
        self,
        max_entries: int = MAX_ENTRIES,
        max_bytes: int = MAX_BYTES,
        *,
        shared: bool = False,
    ) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._shared = shared
        self._clients: dict[int, dict[str, KeptResponse]] = {}
        self._running: dict[tuple[int, str], KeptResponse] = {}
        self._items: dict[tuple[int, str], str] = {}
        """(client, item) -> the response that has it"""
        self._messages: dict[int, SharedMessages] = {}
        self._bytes: dict[int, int] = {}
        self._approvals: dict[int, dict[bytes, None]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._clients.values()))

    @property
    def size(self) -> int:
        return sum(self._bytes.values())

    async def ask(self, question: StoreQuestion[A]) -> A:
        """As `Responses` says."""
        return await question.answer(self)

    async def put(self, client: int, identity: str, entry: StoredResponse) -> bool:
        """Keep it, in the place of an earlier one of this id. False: it is too large."""
        return self._replace(client, identity, entry)

    async def get(self, client: int, identity: str) -> StoredResponse:
        return self._find(client, identity).entry

    async def find(self, client: int, items: Sequence[str]) -> FoundItems:
        """Those of the items that a response of the client has."""
        known = self._items
        places = {item: known[client, item] for item in items if (client, item) in known}
        kept = self._clients.get(client, {})
        return FoundItems(places, {one: kept[one].entry.body for one in places.values()})

    async def use_approvals(self, client: int, requests: Sequence[str]) -> None:
        """What they asked for is done now: HTTPError 400 for one of which that was said before."""
        used = self._approvals.setdefault(client, {})
        marks = [blake2b(one.encode(), digest_size=16).digest() for one in requests]
        for request, mark in zip(requests, marks, strict=True):
            if mark in used:
                raise HTTPError(
                    400,
                    f"the call that {request[:100]!r} asked for was made already; go on with the "
                    "response that made it, or send its mcp_call item, too",
                    param="input",
                )
        used |= dict.fromkeys(marks)
        while len(used) > MAX_APPROVALS:
            del used[next(iter(used))]

    async def remove(self, client: int, identity: str) -> None:
        """Forget it; one in the background is not made any further."""
        await self.stop(client, identity)
        self._discard(client, identity)

    # -- in the background -------------------------------------------------------------------------

    async def begin(
        self,
        client: int,
        identity: str,
        entry: StoredResponse,
        lost: bytes = b"",
        *,
        streamed: bool = False,
    ) -> None:
        """Keep one that is made in the background from now on, until it is put again. `lost`: what
        it is when the process that makes it ends; `streamed`: it has events, which are kept, too.
        HTTPError 503 when there is no place."""
        history = EventHistory() if streamed else None
        earlier = self._discard(client, identity)
        if earlier is not None:  # who makes it had lost its connection
            history = earlier.history
        size = entry.size + len(lost) + (history.size if history is not None else 0)
        try:
            self._check_running(client, size)
        except HTTPError:
            if earlier is not None:  # who waits for it or follows it has to hear
                earlier.end()
            raise
        kept = self._running[client, identity] = KeptResponse(entry, size, lost, history)
        self._keep(client, identity, kept)
        if earlier is not None:
            earlier.end()

    async def append(self, client: int, identity: str, first: int, events: Sequence[bytes]) -> None:
        """The next events of one that is made; `first`: the number of the first of them."""
        kept = self._find(client, identity)
        if (history := kept.history) is None or not kept.entry.running:
            return
        before = history.size
        history.add(first, events)
        self._grow(client, kept, history.size - before)
        while self._is_full() and not self._make_room(client):
            before = history.size
            if not history.cut():
                return
            self._grow(client, kept, history.size - before)

    async def follow(self, client: int, identity: str, number: int) -> NewEvents:
        """The events from this one on; waits until there are any. HTTPError 400 where there never
        were any, or they have made room for others."""
        kept = self._find(client, identity)
        if (history := kept.history) is None:
            message = "stream: only streams in the background have events; ask without it"
            raise HTTPError(400, message, param="stream")
        while not (events := history.behind(number)) and kept.entry.running:
            await history.more()
            kept = self._find(client, identity)
        over = not kept.entry.running and number + len(events) >= history.following
        body = kept.entry.body if over else None
        return NewEvents(events, history.following if over else number + len(events), body)

    async def wait_stop(self, client: int, identity: str) -> None:
        """Until somebody wants it to end, or it has ended: for who makes it."""
        if (kept := self._running.get((client, identity))) is not None:
            await kept.stopping.wait()

    async def stop(self, client: int, identity: str) -> StoredResponse:
        """Have it end, and wait for it. One that is over stays as it is."""
        kept = self._find(client, identity)
        if not kept.entry.running:
            return kept.entry
        kept.stopping.set()
        with suppress(TimeoutError):
            await asyncio.wait_for(kept.over.wait(), STOP_SECONDS)
        if not kept.over.is_set():
            message = "the process that makes the response does not end it; try again"
            raise HTTPError(503, message, retry_after=1.0)
        return self._find(client, identity).entry

    def running(self, client: int, identity: str) -> KeptResponse:
        return self._running[client, identity]

    def lose(self, client: int, identity: str, kept: KeptResponse) -> None:
        """Who made it has ended, or its connection, unless it was begun again over another one."""
        if self._running.get((client, identity)) is kept:
            entry = StoredResponse(kept.lost, background=True, inputs=kept.entry.inputs)
            self._replace(client, identity, entry)

    def _check_running(self, client: int, size: int) -> None:
        """HTTPError 503 when as much is being made in the background as may be, with `size` bytes
        more: none of that goes to make room."""
        places, room = MAX_RUNNING - len(self._running), self._max_bytes
        room -= sum(kept.size for kept in self._running.values())
        own = [kept.size for (one, _), kept in self._running.items() if one == client]
        if self._shared:  # what is left is for who has less
            places, room = places - len(own), room - sum(own)
        if places > 0 and size <= room:
            return
        message = (
            f"{len(self._running)} responses are being made in the background already, "
            f"{len(own)} of them yours; try again when one has ended"
        )
        raise HTTPError(503, message, param="background", retry_after=1.0)

    # -- entries -----------------------------------------------------------------------------------

    def _find(self, client: int, identity: str) -> KeptResponse:
        """HTTPError 404 when the client has none of this id (any more)."""
        kept = self._clients.get(client, {}).get(identity)
        if kept is None:
            raise HTTPError(
                404,
                f"Response with id {identity[:100]!r} not found: it was not stored here, has "
                "made room for others, or went with the process that kept it",
                param="response_id",
                code="not_found",
            )
        return kept

    def _replace(self, client: int, identity: str, entry: StoredResponse) -> bool:
        """False: the new one is too large."""
        size, earlier = entry.size, self._discard(client, identity)
        history = earlier.history if earlier is not None else None
        if history is not None and size + history.size > self._max_bytes:
            history = None
        if size <= self._max_bytes:
            size += history.size if history is not None else 0
            self._keep(client, identity, KeptResponse(entry, size, history=history))
        if earlier is not None:
            earlier.end()
        return entry.size <= self._max_bytes

    def _keep(self, client: int, identity: str, kept: KeptResponse) -> None:
        self._clients.setdefault(client, {})[identity] = kept
        self._items |= {(client, item): identity for item in kept.entry.items}
        shared, entry = self._messages.setdefault(client, SharedMessages()), kept.entry
        messages, added = shared.hold(entry.messages)
        kept.entry = msgspec.structs.replace(entry, messages=messages)
        self._bytes[client] = self._bytes.get(client, 0) + kept.own_size + added
        while self._is_full() and self._make_room():
            pass

    def _grow(self, client: int, kept: KeptResponse, size: int) -> None:
        kept.size += size
        self._bytes[client] += size

    def _is_full(self) -> bool:
        return len(self) > self._max_entries or self.size > self._max_bytes

    def _discard(self, client: int, identity: str) -> KeptResponse | None:
        """Forget it, if it is there."""
        entries = self._clients.get(client, {})
        kept = entries.pop(identity, None)
        if kept is None:
            return None
        self._running.pop((client, identity), None)
        for item in kept.entry.items:
            del self._items[client, item]
        self._bytes[client] -= kept.own_size + self._messages[client].drop(kept.entry.messages)
        if not entries:
            del self._clients[client], self._bytes[client], self._messages[client]
        return kept

    def _make_room(self, asking: int | None = None) -> bool:
        """Forget the oldest one of the client that has most; False: there is none, or only of
        clients that have less than the one that is `asking`."""
        for client in sorted(self._bytes, key=lambda one: -self._bytes[one]):
            if (oldest := next(self._ended(client), None)) is not None:
                self._discard(client, oldest)
                return True
            if client == asking:
                return False
        return False

    def _ended(self, client: int) -> Iterator[str]:
        for identity, kept in self._clients[client].items():
            if not kept.entry.running:
                yield identity
