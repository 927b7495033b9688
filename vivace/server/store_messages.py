"""What frontends say to the one that keeps responses, and hear of it: a message for each method of
`Responses`."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from vivace.server.response_store import FoundItems, NewEvents, StoredResponse


class Put(msgspec.Struct, frozen=True, tag=True):
    client: int
    identity: str
    entry: StoredResponse


class Get(msgspec.Struct, frozen=True, tag=True):
    client: int
    identity: str


class Find(msgspec.Struct, frozen=True, tag=True):
    client: int
    items: Sequence[str]


class UseApprovals(msgspec.Struct, frozen=True, tag=True):
    client: int
    requests: Sequence[str]


class Remove(msgspec.Struct, frozen=True, tag=True):
    client: int
    identity: str


class Begin(msgspec.Struct, frozen=True, tag=True):
    client: int
    identity: str
    entry: StoredResponse
    lost: bytes
    streamed: bool


class Append(msgspec.Struct, frozen=True, tag=True):
    client: int
    identity: str
    first: int
    events: Sequence[bytes]


class Follow(msgspec.Struct, frozen=True, tag=True):
    client: int
    identity: str
    number: int


class WaitStop(msgspec.Struct, frozen=True, tag=True):
    client: int
    identity: str


class StopResponse(msgspec.Struct, frozen=True, tag=True):
    client: int
    identity: str


class Forget(msgspec.Struct, frozen=True, tag=True):
    """Nobody waits any more for the answer to the request of this number."""


class StoreError(msgspec.Struct, frozen=True, tag=True):
    """An `HTTPError`."""

    status: int
    message: str
    param: str | None
    code: str | None
    retry_after: float | None


Ask = (
    Put
    | Get
    | Find
    | UseApprovals
    | Remove
    | Begin
    | Append
    | Follow
    | WaitStop
    | StopResponse
    | Forget
)
REPEATED = (Put, Get, Find, Follow, StopResponse)
"""Asked twice they do what they do once."""
LONG = (Follow, WaitStop)
"""The answer may never come."""
Found = StoredResponse | FoundItems | NewEvents | StoreError | bool | None


class StoreRequest(msgspec.Struct, frozen=True, array_like=True):
    number: int
    ask: Ask


class StoreReply(msgspec.Struct, frozen=True, array_like=True):
    number: int
    found: Found
