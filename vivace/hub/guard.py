"""What answers of a hub may be. huggingface_hub makes file names of their ETags, writes as many
bytes as come, and waits for as long as they say, so all of it is looked at before the library gets
them: its HTTP client calls us for each."""

from __future__ import annotations

import importlib
import re
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any

from vivace.hub.listing import HubError

ETAGS = ("x-linked-etag", "etag")
"""headers that become names of files (huggingface_hub, get_hf_file_metadata)"""
ENCODING = "content-encoding"
GZIP = ("gzip", "x-gzip")
BLOCK = 1 << 18
"""bytes that are decoded at once"""
LONGEST_WAIT = 60.0
"""seconds that a hub may have us wait, all waits of one fetch together"""
RESET = re.compile(r"r\s*=\s*(\d+)\s*;\s*t\s*=\s*(\d+)")
"""of the header `ratelimit`: how many requests are left, and seconds until there are new ones"""


@contextmanager
def response_limits(most: int, seconds: float | None = None) -> Iterator[None]:
    """In this block an answer of a hub may have `most` bytes when it is decoded, take so long until
    it is whole, and have us wait for LONGEST_WAIT.

    What asks the hub raises HubError otherwise."""
    from huggingface_hub import get_session, set_client_factory

    usual = get_session()
    requests = list(usual.event_hooks["request"])
    http: Any = importlib.import_module(type(usual).__module__.partition(".")[0])
    counted = counting_stream(http.SyncByteStream)
    waits = Waits()
    active = True

    def check(response: Any) -> None:
        if not active:
            return
        waits.add(response)
        is_encoded = False
        if response.request.method == "HEAD":
            check_names(response.headers)
        else:
            is_encoded = take_encoding(response.headers)
        until = None if seconds is None else time.monotonic() + seconds
        response.stream = counted(response.stream, is_encoded, most, until)

    def client() -> Any:
        hooks = {"request": [*requests, ask_for_gzip], "response": [check]}
        return type(usual)(
            event_hooks=hooks, follow_redirects=usual.follow_redirects, timeout=usual.timeout
        )

    set_client_factory(client)
    try:
        yield
    finally:
        active = False


def check_names(headers: Any) -> None:
    for name in ETAGS:
        value = headers.get(name, "")
        path = value.removeprefix("W/").strip('"')
        if path.startswith("/") or ".." in path or "\0" in path:
            raise HubError(f"the hub names a file by {value[:80]!r}, which leaves the cache")


def ask_for_gzip(request: Any) -> None:
    """Of the encodings that the client's library knows the one that we count."""
    if "gzip" in request.headers.get("accept-encoding", ""):
        request.headers["accept-encoding"] = "gzip"


def take_encoding(headers: Any) -> bool:
    """Whether the answer has to be decoded, which is our work then: the client's library does not
    see it any more. It would decode a block of 64 KiB to 64 MiB, and nobody would have counted."""
    encoding = headers.get(ENCODING, "identity").strip().lower()
    if encoding in ("", "identity"):
        return False
    if encoding not in GZIP:
        raise HubError(f"the hub answers in the encoding {encoding[:80]!r}, which nobody asked for")
    for name in (ENCODING, "content-length"):
        if name in headers:
            del headers[name]
    return True


def decoded(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """What was encoded with gzip, in pieces of at most BLOCK bytes. Raises HubError."""
    decoder = zlib.decompressobj(zlib.MAX_WBITS | 16)
    try:
        for block in blocks:
            rest = block
            while rest and not decoder.eof:
                yield decoder.decompress(rest, BLOCK)
                rest = decoder.unconsumed_tail
        yield decoder.flush()
    except zlib.error:
        raise HubError("the hub calls an answer gzip that is not") from None


def counting_stream(stream: type) -> type:
    """A stream of the client's library that ends with HubError when it is too large or slow."""

    class LimitedStream(stream):
        def __init__(self, inner: Any, is_encoded: bool, most: int, until: float | None) -> None:
            self._inner, self._most, self._until = inner, most, until
            self._is_encoded = is_encoded

        def __iter__(self) -> Iterator[bytes]:
            count = 0
            for block in decoded(self._inner) if self._is_encoded else self._inner:
                count += len(block)
                if count > self._most:
                    raise HubError(f"the hub sends more than the {self._most:,} bytes it may")
                if self._until is not None and time.monotonic() > self._until:
                    raise HubError("the hub's answer about the model does not end")
                yield block

        def close(self) -> None:
            self._inner.close()

    return LimitedStream


class Waits:
    """How long a hub has us wait: several threads may wait at once."""

    def __init__(self) -> None:
        self._seconds, self._end = 0.0, 0.0

    def add(self, response: Any) -> None:
        """Raises HubError when what an answer asks for is too long, with those before."""
        now, seconds = time.monotonic(), asked_wait(response)
        if not seconds:  # of another thread: what was too long is raised where it was asked for
            return
        begin = max(now, self._end)
        self._end = max(begin, now + seconds)
        self._seconds += self._end - begin
        if self._seconds > LONGEST_WAIT:
            raise HubError(f"{refusal(response)}; what has come is kept")


def refusal(response: Any) -> str:
    """What the hub answered instead of what it was asked for, and what helps: a line."""
    status, seconds = response.status_code, asked_wait(response)
    known = status in HTTPStatus.__members__.values()
    said = f"the hub answers {status} {HTTPStatus(status).phrase if known else ''}".strip()
    if status == HTTPStatus.UNAUTHORIZED:
        return (
            f"{said}: it wants a key, or another one: set HF_TOKEN to one that may read this model "
            "(`hf auth login` keeps one)"
        )
    if status == HTTPStatus.FORBIDDEN:
        return (
            f"{said}: set HF_TOKEN to a key of an account that may read this model, or ask for "
            "access on its page"
        )
    if not is_passing(status):
        return said
    when = f"wants to be asked again {later(seconds)}" if seconds else "may answer again soon"
    help = f"fetch it again {'then' if seconds else 'later'}"
    often = ", or set HF_TOKEN: accounts may ask more often"
    return f"{said} and {when}: {help}{often if status == HTTPStatus.TOO_MANY_REQUESTS else ''}"


def is_passing(status: int) -> bool:
    """Whether the same request may succeed later, as the library sees it."""
    return status >= 500 or status in (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)


def asked_wait(response: Any) -> float:
    """Seconds that an answer wants us to wait (`_http_backoff_base` of the library), 0 for none."""
    if not is_passing(response.status_code):
        return 0.0
    said = [response.headers.get("retry-after", "").strip()]
    reset = RESET.search(response.headers.get("ratelimit", ""))
    if reset and not number(reset[1]):
        said.append(reset[2])
    return max(map(number, said))


def number(digits: str) -> float:
    """0 for what is none; of thousands of digits Python makes no int."""
    return float(digits.lstrip("0")[:9] or 0) if digits.isdecimal() else 0.0


def later(seconds: float) -> str:
    """`in 28 hours`: rounded up."""
    for unit, size in (("hours", 3600), ("minutes", 60)):
        if seconds > 2 * size:
            return f"in {-(-int(seconds) // size):,} {unit}"
    return f"in {int(seconds)} seconds"
