"""Server-sent events that come in, of bounded size."""

from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp

from vivace.tool_servers.stdio import LineBuffer
from vivace.tool_servers.transport import ToolServerError


async def read_events(
    response: aiohttp.ClientResponse, limit: int
) -> AsyncIterator[tuple[str, bytes]]:
    """(name, data) of each event. ToolServerError for one of more than `limit` bytes."""
    buffer, name, data, held = LineBuffer(limit), "message", list[bytes](), 0
    async for chunk in response.content.iter_any():
        for line in buffer.push(chunk):
            field, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if field == b"data":
                data.append(value)
                held += len(value) + 1
                if held > limit:
                    raise ToolServerError(f"it sent an event of more than {limit >> 20} MiB")
            elif field == b"event":
                name = value.decode("utf-8", "replace")
            elif not line:
                if data:
                    yield name, b"\n".join(data)
                name, data, held = "message", [], 0


async def read_whole(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """A body. ToolServerError when it is longer than `limit` bytes."""
    parts: list[bytes] = []
    held = 0
    async for chunk in response.content.iter_any():
        held += len(chunk)
        if held > limit:
            raise ToolServerError(f"it sent an answer of more than {limit >> 20} MiB")
        parts.append(chunk)
    return b"".join(parts)
