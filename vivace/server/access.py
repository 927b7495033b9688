"""Who may call what: by bearer key, and through somebody's browser.

Keys are compared in constant time, and what nobody allowed is denied. A browser sends requests that
a page of any origin asks for, and says where they come from. Programs say nothing of the kind, so
they are not concerned. A request with a key that matched is not judged: no page has the key.
docs/http.md gives the reasons of every rule.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Sequence
from enum import StrEnum
from hashlib import sha256
from urllib.parse import urlsplit

from aiohttp import HttpVersion11, web

from vivace.server.responses import HTTPError

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

    @property
    def clients(self) -> int:
        """How many are told apart."""
        return len(self._users) + len(self._admins) if self._users else 1

    def needed_for(self, access: Access) -> bool:
        """Must a request for such a route carry a key?"""
        return bool(self._required_keys(access)[1])

    def check(self, request: web.Request, access: Access) -> int | None:
        """The client whose key the request brings; None where no key is needed.

        Raises HTTPError 401 unless the request may use a route of this class.
        """
        first, wanted = self._required_keys(access)
        if not wanted:
            return None
        given = _bearer(request.headers.getall("Authorization", []))
        if given is None and "Authorization" not in request.headers:
            given = request.headers.get("X-Api-Key")  # Anthropic's clients
        if not given:
            raise _unauthorized("send the key as 'Authorization: Bearer <key>'")
        digest = _digest(given)
        matches = [hmac.compare_digest(digest, key) for key in wanted]
        if True not in matches:
            raise _unauthorized("the key is not valid for this endpoint")
        return first + matches.index(True)

    def _required_keys(self, access: Access) -> tuple[int, list[bytes]]:
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


ANY = "*"
UNNAMED = "application/octet-stream"
"""The type of a body that has none, which clients such as aiohttp's say, too."""
FORM = "application/x-www-form-urlencoded"
FORM_SENDERS = "curl/", "Wget", "wget2/"
"""begin the User-Agent of programs that call any body a form; it costs a page a preflight"""
DEFAULT_PORTS = {"http": ":80", "https": ":443"}
OWN_SITES = ("same-origin", "none")
"""Sec-Fetch-Site of a page of this server, and of what the user typed"""
ONCE = ("Host", "Origin", "Sec-Fetch-Site", "Content-Type", "Authorization", "X-Api-Key")
READ = (
    *ONCE,
    "Referer",
    "Sec-Fetch-Mode",
    "Content-Encoding",
    "Access-Control-Request-Method",
    "Access-Control-Request-Headers",
)
"""Headers that are looked at; they have to be text"""
HOST = re.compile(r"(?:\[[0-9A-Fa-f:.]+(?:%[\w.~-]+)?\]|[\w.~-]+)(?::[0-9]{0,5})?", re.ASCII)
"""A name or an address, and a port"""
PREFLIGHT_SECONDS = "600"


class Effect(StrEnum):
    """READS tells something; ACTS changes something, or has the model compute."""

    READS = "reads"
    ACTS = "acts"


class BrowserPolicy:
    """`origins`: pages that may use the server, as `https://ui.example` or `*`. `hosts`: names it
    may be called by besides addresses and localhost; None when it may have any name."""

    def __init__(self, origins: Sequence[str] = (), hosts: Sequence[str] | None = None) -> None:
        self._origins = frozenset(origin.lower() for origin in origins)
        names = None if hosts is None or ANY in hosts else hosts
        self._hosts = None if names is None else frozenset(name.lower() for name in names)

    def check(
        self,
        request: web.Request,
        effect: Effect,
        *,
        reads_body: bool = True,
        any_host: bool = False,
    ) -> None:
        """Raise HTTPError 403 or 415 unless the request may have this effect.

        `reads_body`: whether the route makes anything of a body; others take any, a form too.
        `any_host`: whether it may be called by any name.
        """
        if not any_host:
            self._check_host(request)
        own = self._from_own_page(request)
        json = self._sends_json(request, reads_body)
        if effect is Effect.READS or own or json:
            return
        if is_link(request) or request.headers.get("User-Agent", "").startswith("Mozilla/"):
            raise HTTPError(
                403,
                "a browser must say for which page it asks this; "
                "send a key, or a JSON body with 'Content-Type: application/json'",
            )

    def preflight(self, request: web.Request) -> web.Response | None:
        """The answer to a browser's question whether a page may ask; None for other requests."""
        wanted = request.headers.get("Access-Control-Request-Method")
        if request.method != "OPTIONS" or wanted is None:
            return None
        self._check_host(request)
        origin = request.headers.get("Origin", "")
        if not self._is_allowed(origin):
            raise foreign(origin)
        headers = {
            "Access-Control-Allow-Methods": wanted[:32],
            "Access-Control-Max-Age": PREFLIGHT_SECONDS,
        }
        names = request.headers.get("Access-Control-Request-Headers")
        if names is not None:
            headers["Access-Control-Allow-Headers"] = names
        if request.headers.get("Access-Control-Request-Private-Network") == "true":
            headers["Access-Control-Allow-Private-Network"] = "true"
        return web.Response(status=204, headers=headers)

    async def mark(self, request: web.Request, response: web.StreamResponse) -> None:
        """Let pages of allowed origins read the answer."""
        if not self._origins:
            return
        response.headers["Vary"] = "Origin"
        origin = request.headers.get("Origin")
        if origin is not None and is_text(origin) and self._is_allowed(origin):
            response.headers["Access-Control-Allow-Origin"] = origin
            response.headers["Access-Control-Expose-Headers"] = "Retry-After"

    # -- the rules -------------------------------------------------------------------------------

    def _check_host(self, request: web.Request) -> None:
        """A page can give its own name this machine's address (DNS rebinding), but then it calls
        the server by that name."""
        host = request.headers.get("Host")
        if host is None:
            return
        if not HOST.fullmatch(host):
            raise HTTPError(
                400, f"the Host header {host[:200]!r} is no name with or without a port"
            )
        name = host_name(host)
        if self._hosts is None or is_local(name) or name in self._hosts:
            return
        raise HTTPError(
            403,
            f"this server is not called {host[:200]!r}; if it is, start it with "
            f"--allowed-hosts {name[:200]}",
        )

    def _from_own_page(self, request: web.Request) -> bool:
        """Whether the browser says that a page of ours, or an allowed one, asks; False when nobody
        says anything. Raises HTTPError for other pages."""
        headers = request.headers
        origin = headers.get("Origin")
        if origin is not None:
            if not self._is_allowed(origin) and not same_origin(origin, headers.get("Host", "")):
                raise foreign(origin)
            return True
        site = headers.get("Sec-Fetch-Site")
        if site is not None:
            if site not in OWN_SITES and not is_link(request):
                raise foreign(f"({site})")
            return site in OWN_SITES
        referrer = headers.get("Referer")
        if referrer is not None and not same_origin(referrer, headers.get("Host", "")):
            raise foreign(referrer)
        return False

    def _is_allowed(self, origin: str) -> bool:
        return ANY in self._origins or origin.lower() in self._origins

    def _sends_json(self, request: web.Request, reads_body: bool) -> bool:
        """Whether it says so, which a page of another origin cannot; HTTPError for other bodies."""
        kind = request.content_type
        if kind == "application/json" or kind.endswith("+json"):
            return True
        if kind == UNNAMED or not reads_body or not request.can_read_body:
            return False
        if kind == FORM and request.headers.get("User-Agent", "").startswith(FORM_SENDERS):
            return False
        raise HTTPError(
            415,
            f"the body comes as {kind!r}; send JSON with 'Content-Type: application/json'",
        )


def check_headers(request: web.Request) -> None:
    """Raise HTTPError for versions of HTTP that are none, and headers that say two things."""
    if request.version not in ((1, 0), (1, 1)):
        major, minor = request.version
        # aiohttp answers in the request's version; no client reads a status line of these.
        request._version = HttpVersion11
        request._cache.pop("version", None)
        raise closing_error(505, f"HTTP/{major}.{minor} is not spoken here; use HTTP/1.1")
    if request.version == (1, 0) and "Transfer-Encoding" in request.headers:
        raise closing_error(400, "HTTP/1.0 has no Transfer-Encoding; use HTTP/1.1")
    coding = request.headers.get("Transfer-Encoding", "chunked")
    if coding.strip().lower() != "chunked":
        raise closing_error(501, f"Transfer-Encoding {coding[:100]} is not known; send chunked")
    for name in ONCE:
        if len(request.headers.getall(name, ())) > 1:
            raise closing_error(400, f"the header {name} is there twice")
    for name in READ:
        if not is_text(request.headers.get(name, "")):
            raise closing_error(400, f"the header {name} is no UTF-8 text")


def closing_error(status: int, message: str) -> HTTPError:
    return HTTPError(status, message, headers={"Connection": "close"})


def is_text(value: str) -> bool:
    """Whether a header's bytes were UTF-8; aiohttp keeps others as lone surrogates."""
    return value.isascii() or not any("\ud800" <= character <= "\udfff" for character in value)


def foreign(origin: str) -> HTTPError:
    shown = origin[:200]
    return HTTPError(
        403,
        f"pages of another origin {shown} may not use this server; "
        "allow one with --allowed-origins https://its.name",
    )


def is_link(request: web.Request) -> bool:
    """The user followed a link: the page that has the link does not see the answer. The browser
    shows it, so only routes that tell something are asked in this way; `check` sees to that."""
    return request.method == "GET" and request.headers.get("Sec-Fetch-Mode") == "navigate"


def host_name(host: str) -> str:
    """The name in a Host header, without port, brackets and the root's dot."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].rstrip(".").lower()


def is_local(name: str) -> bool:
    """Names that no foreign DNS server can give to a page: localhost, and addresses."""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def same_origin(address: str, host: str) -> bool:
    """Whether a URL is of the server that the Host header names, the port included."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return False
    port = DEFAULT_PORTS.get(parts.scheme)
    if port is None or not host:
        return False
    return with_port(parts.netloc.lower(), port) == with_port(host.lower(), port)


def with_port(authority: str, port: str) -> str:
    return authority if authority.rpartition(":")[2].isdigit() else authority + port
