"""The bytes of server-sent events."""

from __future__ import annotations

DONE = b"data: [DONE]\n\n"
CRLF = b"\r\n"
HEADS = tuple(b"%x\r\n" % size for size in range(1024))
"""Heads of the chunks of most events."""


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked HTTP body."""
    size = len(data)
    return b"".join((HEADS[size] if size < len(HEADS) else b"%x\r\n" % size, data, CRLF))


def event(data: bytes) -> bytes:
    """Frame one JSON document (which holds no raw newline) as an event."""
    return b"data: " + data + b"\n\n"


def named_event(name: str, data: bytes) -> bytes:
    """The same for clients that go by the event's name."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), data)
