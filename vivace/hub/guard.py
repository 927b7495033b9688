"""What answers of a hub may be. huggingface_hub makes file names of their ETags and writes as many
bytes as come, so both are looked at before it gets them: its HTTP client calls us for each."""

from __future__ import annotations

import importlib
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from vivace.hub.listing import HubError

ETAGS = ("x-linked-etag", "etag")
"""headers that become names of files (huggingface_hub, get_hf_file_metadata)"""
ENCODING = "content-encoding"
GZIP = ("gzip", "x-gzip")
BLOCK = 1 << 18
"""bytes that are decoded at once"""


@contextmanager
def response_limits(most: int, seconds: float | None = None) -> Iterator[None]:
    """In this block an answer of a hub may have `most` bytes when it is decoded, take so long until
    it is whole.

    What asks the hub raises HubError otherwise."""
    from huggingface_hub import get_session, set_client_factory

    usual = get_session()
    requests = list(usual.event_hooks["request"])
    http: Any = importlib.import_module(type(usual).__module__.partition(".")[0])
    counted = counting_stream(http.SyncByteStream)
    active = True

    def check(response: Any) -> None:
        if not active:
            return
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
