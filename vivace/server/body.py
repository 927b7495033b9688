"""Reading of request bodies: limits first, then one strict msgspec pass."""

from __future__ import annotations

import asyncio

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from vivace.server.body_budget import BodyBudget, Share
from vivace.server.errors import HTTPError


class Body:
    """The bytes of one body. They are taken once, to be decoded; their share of the memory for
    bodies is held until the request is on its way."""

    def __init__(self, data: bytes | bytearray = b"", share: Share | None = None) -> None:
        self._data = data
        self._share = share

    def take(self) -> bytes | bytearray:
        """The bytes, which are kept here no longer."""
        data, self._data = self._data, b""
        return data

    def release(self) -> None:
        """What came of the body is checked and on its way."""
        self._data = b""
        if self._share is not None:
            self._share.release()


async def read_body(request: web.Request, limit: int, timeout: float, budget: BodyBudget) -> Body:
    """The whole body: 413 as soon as it passes `limit`, 408 after `timeout` seconds, 503 when
    too much of other bodies is there already."""
    encoding = request.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise HTTPError(415, f"Content-Encoding {encoding!r} is not accepted; send the body plain")
    if (request.content_length or 0) > limit:
        raise too_large(limit)
    loop = asyncio.get_running_loop()
    share: Share | None = None
    try:
        async with asyncio.timeout(timeout) as deadline:
            share = budget.share(lambda: deadline.reschedule(loop.time()))
            data = await _arrival(request, limit, share)
    except BaseException as error:
        if share is not None:
            share.release()
        raise _refusal(error, timeout) from None
    share.complete = True
    return Body(data, share)


async def _arrival(request: web.Request, limit: int, share: Share) -> bytes | bytearray:
    """The bytes of a body, whose number is checked while they come."""
    data: bytes | bytearray = b""
    size = 0
    while chunk := await request.content.readany():
        size += len(chunk)
        if size > limit:
            raise too_large(limit)
        share.take(len(chunk))
        if not data:
            data = chunk
            continue
        if isinstance(data, bytes):
            data = bytearray(data)
        data += chunk
    return data


def _refusal(error: BaseException, timeout: float) -> BaseException:
    """What the client is told about a body that did not come."""
    if isinstance(error, TimeoutError):
        return HTTPError(
            408,
            f"the request body did not arrive within {timeout:g} s, or too slowly for the "
            "memory it holds",
            headers={"Connection": "close"},
        )
    if isinstance(error, HttpProcessingError | web.RequestPayloadError):
        return HTTPError(400, f"the request body is malformed: {error}")
    return error


def too_large(limit: int) -> HTTPError:
    """The 413 answer; the connection is closed because the rest of the body is not read."""
    return HTTPError(
        413,
        f"the request body is larger than the limit of {limit} bytes",
        headers={"Connection": "close"},
    )
