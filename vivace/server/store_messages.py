"""What frontends ask the one that keeps responses, and hear of it: a question for each method of
`ResponseStore`."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence

import msgspec

from vivace.server.response_store import FoundItems, NewEvents, ResponseStore, StoredResponse


class Put(msgspec.Struct, frozen=True, tag=True):
    client: int
    identity: str
    entry: StoredResponse

    def answer(self, store: ResponseStore) -> Awaitable[bool]:
        return store.put(self.client, self.identity, self.entry)


class Get(msgspec.Struct, frozen=True, tag=True):
    client: int
    identity: str

    def answer(self, store: ResponseStore) -> Awaitable[StoredResponse]:
        return store.get(self.client, self.identity)


class Find(msgspec.Struct, frozen=True, tag=True):
    client: int
    items: Sequence[str]

    def answer(self, store: ResponseStore) -> Awaitable[FoundItems]:
        return store.find(self.client, self.items)


class UseApprovals(msgspec.Struct, frozen=True, tag=True):
    client: int
    requests: Sequence[str]

    def answer(self, store: ResponseStore) -> Awaitable[None]:
        return store.use_approvals(self.client, self.requests)


class Remove(msgspec.Struct, frozen=True, tag=True):
    client: int
    identity: str

    def answer(self, store: ResponseStore) -> Awaitable[None]:
        return store.remove(self.client, self.identity)


class Begin(msgspec.Struct, frozen=True, tag=True):
    client: int
    identity: str
    entry: StoredResponse
    lost: bytes = b""
    streamed: bool = False

    def answer(self, store: ResponseStore) -> Awaitable[None]:
        return store.begin(
            self.client, self.identity, self.entry, self.lost, streamed=self.streamed
        )


class Append(msgspec.Struct, frozen=True, tag=True):
    client: int
    identity: str
    first: int
    events: Sequence[bytes]

    def answer(self, store: ResponseStore) -> Awaitable[None]:
        return store.append(self.client, self.identity, self.first, self.events)


class Follow(msgspec.Struct, frozen=True, tag=True):
    client: int
    identity: str
    number: int

    def answer(self, store: ResponseStore) -> Awaitable[NewEvents]:
        return store.follow(self.client, self.identity, self.number)


class WaitStop(msgspec.Struct, frozen=True, tag=True):
    client: int
    identity: str

    def answer(self, store: ResponseStore) -> Awaitable[None]:
        return store.wait_stop(self.client, self.identity)


class StopResponse(msgspec.Struct, frozen=True, tag=True):
    client: int
    identity: str

    def answer(self, store: ResponseStore) -> Awaitable[StoredResponse]:
        return store.stop(self.client, self.identity)


class Forget(msgspec.Struct, frozen=True, tag=True):
    """Nobody waits any more for the answer to the request of this number."""


class StoreError(msgspec.Struct, frozen=True, tag=True):
    """An `HTTPError`."""

    status: int
    message: str
    param: str | None
    code: str | None
    retry_after: float | None


Question = (
    Put | Get | Find | UseApprovals | Remove | Begin | Append | Follow | WaitStop | StopResponse
)
REPEATED = (Put, Get, Find, Follow, StopResponse)
"""Asked twice they do what they do once."""
LONG = (Follow, WaitStop)
"""The answer may never come."""
Found = StoredResponse | FoundItems | NewEvents | StoreError | bool | None


class StoreRequest(msgspec.Struct, frozen=True, array_like=True):
    number: int
    ask: Question | Forget


class StoreReply(msgspec.Struct, frozen=True, array_like=True):
    number: int
    found: Found
