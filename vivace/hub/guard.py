"""What answers of a hub may be. huggingface_hub makes file names of their ETags and writes as many
bytes as come, so both are looked at before it gets them: its HTTP client calls us for each."""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from vivace.hub.listing import HubError

ETAGS = ("x-linked-etag", "etag")
"""headers that become names of files (huggingface_hub, get_hf_file_metadata)"""


@contextmanager
def response_limits(most: int, seconds: float | None = None) -> Iterator[None]:
    """In this block an answer of a hub may have `most` bytes, and take so long until it is whole.

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
        if response.request.method == "HEAD":
            check_names(response.headers)
        until = None if seconds is None else time.monotonic() + seconds
        response.stream = counted(response.stream, most, until)

    def client() -> Any:
        hooks = {"request": requests, "response": [check]}
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


def counting_stream(stream: type) -> type:
    """A stream of the client's library that ends with HubError when it is too large or slow."""

    class LimitedStream(stream):
        def __init__(self, inner: Any, most: int, until: float | None) -> None:
            self._inner, self._most, self._until = inner, most, until

        def __iter__(self) -> Iterator[bytes]:
            count = 0
            for block in self._inner:
                count += len(block)
                if count > self._most:
                    raise HubError(f"the hub sends more than the {self._most:,} bytes it may")
                if self._until is not None and time.monotonic() > self._until:
                    raise HubError("the hub's answer about the model does not end")
                yield block

        def close(self) -> None:
            self._inner.close()

    return LimitedStream
