"""JSON answers that are written as the parts they were made of."""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web

JOINED = 1 << 18
"""Bytes up to which the parts become one body."""


async def json_parts(http: web.Request, parts: Sequence[bytes]) -> web.StreamResponse:
    """The answer to `http`: a long one is written as fast as the client reads it."""
    size = sum(map(len, parts))
    if size <= JOINED:
        return web.Response(body=b"".join(parts), content_type="application/json")
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    response.content_length = size
    await response.prepare(http)
    for part in parts:
        await response.write(part)
    await response.write_eof()
    return response
