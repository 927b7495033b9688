"""Who may call what: bearer keys compared in constant time, denied unless allowed."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from enum import StrEnum
from hashlib import sha256

from aiohttp import web

from vivace.server.errors import HTTPError

CLIENT = web.RequestKey("client", int)
"""The client of a request: 0 without a key and for the first one"""


class Access(StrEnum):
    """PUBLIC needs no key; USER the api key; ADMIN the admin key (or the api key without one)."""

    PUBLIC = "public"
    USER = "user"
    ADMIN = "admin"


class Keys:
    """The server's keys, kept as digests so that comparing leaks neither content nor length.

    A client is the place of its key in the list, administrators behind the others.
    """

    def __init__(self, api_keys: Sequence[str] = (), admin_api_keys: Sequence[str] = ()) -> None:
        self._users = [_digest(key) for key in api_keys]
        self._admins = [_digest(key) for key in admin_api_keys]

    def needed_for(self, access: Access) -> bool:
        """Must a request for such a route carry a key?"""
        return bool(self._wanted(access)[1])

    def check(self, request: web.Request, access: Access) -> int | None:
        """The client whose key the request brings; None where no key is needed.

        Raises Refusal 401 unless the request may use a route of this class.
        """
        first, wanted = self._wanted(access)
        if not wanted:
            return None
        given = _bearer(request.headers.getall("Authorization", []))
        if given is None:
            raise _unauthorized("send the key as 'Authorization: Bearer <key>'")
        digest = _digest(given)
        matches = [hmac.compare_digest(digest, key) for key in wanted]
        if True not in matches:
            raise _unauthorized("the key is not valid for this endpoint")
        return first + matches.index(True)

    def _wanted(self, access: Access) -> tuple[int, list[bytes]]:
        """(number of the first, digests of which one must match); none where no key is needed.
        An admin key also opens user routes."""
        if access is Access.PUBLIC:
            return 0, []
        if access is Access.ADMIN and self._admins:
            return len(self._users), self._admins
        return 0, [*self._users, *self._admins] if self._users else []


def _digest(key: str) -> bytes:
    return sha256(key.encode("utf-8", "surrogateescape")).digest()


def _bearer(values: list[str]) -> str | None:
    """The token of the only Authorization header; None if absent, doubled or of another scheme."""
    if len(values) != 1:
        return None
    scheme, _, token = values[0].partition(" ")
    return token.strip() if scheme.lower() == "bearer" and token.strip() else None


def _unauthorized(reason: str) -> HTTPError:
    return HTTPError(
        401,
        f"Unauthorized: {reason}",
        code="invalid_api_key",
        headers={"WWW-Authenticate": "Bearer"},
    )
