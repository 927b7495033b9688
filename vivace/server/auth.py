"""Who may call what: bearer keys compared in constant time, denied unless allowed."""

from __future__ import annotations

import hmac
from enum import StrEnum
from hashlib import sha256

from aiohttp import web

from vivace.server.errors import Refusal

CLIENT = web.RequestKey("client", int)
"""The client of a request: 0 without a key and for the first one"""


class Access(StrEnum):
    """PUBLIC needs no key; USER the api key; ADMIN the admin key (or the api key without one)."""

    PUBLIC = "public"
    USER = "user"
    ADMIN = "admin"


class Keys:
    """The server's keys, kept as digests so that comparing leaks neither content nor length."""

    def __init__(self, api_key: str | None, admin_api_key: str | None) -> None:
        self._user = _digest(api_key) if api_key else None
        self._admin = _digest(admin_api_key) if admin_api_key else None

    def needed_for(self, access: Access) -> bool:
        """Must a request for such a route carry a key?"""
        return access is not Access.PUBLIC and bool(self._wanted(access))

    def check(self, request: web.Request, access: Access) -> None:
        """Raise Refusal 401 unless the request may use a route of this class."""
        if not self.needed_for(access):
            return
        wanted = self._wanted(access)
        given = _bearer(request.headers.getall("Authorization", []))
        if given is None:
            raise _unauthorized("send the key as 'Authorization: Bearer <key>'")
        digest = _digest(given)
        matches = [hmac.compare_digest(digest, key) for key in wanted]
        if True not in matches:
            raise _unauthorized("the key is not valid for this endpoint")

    def _wanted(self, access: Access) -> list[bytes]:
        """Digests of which one must match; the admin key also opens user routes."""
        if access is Access.ADMIN and self._admin is not None:
            return [self._admin]
        if self._user is None:
            return []
        return [key for key in (self._user, self._admin) if key is not None]


def _digest(key: str) -> bytes:
    return sha256(key.encode("utf-8", "surrogateescape")).digest()


def _bearer(values: list[str]) -> str | None:
    """The token of the only Authorization header; None if absent, doubled or of another scheme."""
    if len(values) != 1:
        return None
    scheme, _, token = values[0].partition(" ")
    return token.strip() if scheme.lower() == "bearer" and token.strip() else None


def _unauthorized(reason: str) -> Refusal:
    return Refusal(
        401,
        f"Unauthorized: {reason}",
        code="invalid_api_key",
        headers={"WWW-Authenticate": "Bearer"},
    )
