"""Servers of tools that answer over HTTP: by MCP's older protocol (SSE) and its present one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urljoin, urlsplit

import aiohttp

from vivace.config.http import ToolServerSpec
from vivace.errors import why_no_answer
from vivace.tool_servers.event_stream import read_events, read_whole
from vivace.tool_servers.transport import (
    Listener,
    NotHeard,
    ToolLimits,
    ToolServerError,
    nothing_to_end,
)

JSON = {"Content-Type": "application/json"}
EVENTS = "text/event-stream"
SESSION, PROTOCOL = "Mcp-Session-Id", "MCP-Protocol-Version"
FORGOTTEN = "it has forgotten us"
"""by its answer: it was started again"""
REFUSAL = 1 << 10
"""Bytes of an answer with an error that are looked at."""


@dataclass(frozen=True)
class ToolSite:
    """Where a server answers, and who hears of it."""

    url: str
    client: aiohttp.ClientSession
    listener: Listener
    limits: ToolLimits


def open_site(spec: ToolServerSpec, listener: Listener, limits: ToolLimits) -> ToolSite:
    """Without proxies and cookies of other programs; answers last as long as they like."""
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=limits.connect)
    headers = {name: value.reveal() for name, value in spec.headers.items()}
    jar = aiohttp.DummyCookieJar()
    client = aiohttp.ClientSession(timeout=timeout, headers=headers, cookie_jar=jar)
    return ToolSite(spec.url, client, listener, limits)


async def refuse_others(response: aiohttp.ClientResponse) -> None:
    """ToolServerError unless the status is 2xx. Redirects are refused too: where a server lies is
    what the start has said."""
    if 200 <= response.status < 300:
        return
    text = (await response.content.read(REFUSAL)).decode("utf-8", "replace").strip()
    said = f": {text.splitlines()[0][:200]}" if text else ""
    raise ToolServerError(f"it answers {response.status}{said}")


class SSETransport:
    """One stream brings all messages; ours are posted to where its first event says."""

    def __init__(self, site: ToolSite) -> None:
        self.version = ""
        self._site = site
        self._endpoint: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._reader = asyncio.create_task(self._read())

    async def opened(self) -> None:
        """Returns when messages may be sent. Raises ToolServerError."""
        await asyncio.wait([self._endpoint, self._reader], return_when=asyncio.FIRST_COMPLETED)
        if not self._endpoint.done():
            raise ToolServerError("its stream ended at once")
        self._endpoint.result()

    async def send(self, data: bytes) -> Callable[[], object]:
        try:
            async with self._site.client.post(
                self._endpoint.result(), data=data, headers=JSON, allow_redirects=False
            ) as response:
                await refuse_others(response)
        except (aiohttp.ClientError, OSError) as error:
            raise ToolServerError(why_no_answer(error)) from None
        return nothing_to_end

    async def close(self) -> None:
        self._reader.cancel()
        await asyncio.wait([self._reader])
        await self._site.client.close()

    async def _read(self) -> None:
        try:
            await self._follow()
            self._end("its stream has ended")
        except ToolServerError as error:
            self._end(str(error))
        except (aiohttp.ClientError, OSError) as error:
            self._end(why_no_answer(error))

    async def _follow(self) -> None:
        async with self._site.client.get(
            self._site.url, headers={"Accept": EVENTS}, allow_redirects=False
        ) as response:
            await refuse_others(response)
            if response.content_type != EVENTS:
                raise ToolServerError(f"it answers {response.content_type}, which is no stream")
            async for name, data in read_events(response, self._site.limits.message):
                if name == "endpoint" and not self._endpoint.done():
                    self._endpoint.set_result(self._own(data.decode("utf-8", "replace")))
                elif name == "message":
                    self._site.listener.receive(data)

    def _own(self, place: str) -> str:
        """ToolServerError for an endpoint on another server."""
        url = urljoin(self._site.url, place.strip())
        if urlsplit(url)[:2] != urlsplit(self._site.url)[:2]:
            raise ToolServerError(f"it sends messages elsewhere ({url[:100]}), which is refused")
        return url

    def _end(self, reason: str) -> None:
        if not self._endpoint.done():
            self._endpoint.set_exception(ToolServerError(reason))
            self._endpoint.exception()  # seen: whoever opens it may have left
        self._site.listener.end(reason)


class HTTPTransport:
    """Each message of ours is a request, whose answer brings what the server has to say to it."""

    def __init__(self, site: ToolSite) -> None:
        self.version = ""
        self._site = site
        self._session: dict[str, str] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def send(self, data: bytes) -> Callable[[], object]:
        """Returns when the answer has begun: what it brings is read beside."""
        begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if not begun.done():
                begun.set_exception(ToolServerError("it was closed"))

        task = asyncio.create_task(self._exchange(data, begun))
        self._tasks.add(task)
        task.add_done_callback(ended)
        try:
            await begun
        except asyncio.CancelledError:
            task.cancel()
            raise
        return task.cancel

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._session:
            with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
                async with asyncio.timeout(self._site.limits.stop):
                    await self._site.client.delete(self._site.url, headers=self._session)
        await self._site.client.close()

    async def _exchange(self, data: bytes, begun: asyncio.Future[None]) -> None:
        given = asyncio.timeout(self._site.limits.call + self._site.limits.connect)
        try:
            async with given:
                await self._post(data, begun)
        except (ToolServerError, aiohttp.ClientError, OSError) as error:
            known = error if isinstance(error, ToolServerError) else None
            known = known or ToolServerError(why_no_answer(error))
            if not begun.done():
                begun.set_exception(known)
            elif not given.expired():  # then nobody waits for this one, but for others
                self._site.listener.end(str(known))

    async def _post(self, data: bytes, begun: asyncio.Future[None]) -> None:
        headers = {**JSON, "Accept": f"application/json, {EVENTS}", **self._session}
        if self.version:
            headers[PROTOCOL] = self.version
        async with self._site.client.post(
            self._site.url, data=data, headers=headers, allow_redirects=False
        ) as response:
            if response.status == 404 and self._session:
                self._site.listener.end(FORGOTTEN)
                raise NotHeard(FORGOTTEN)
            await refuse_others(response)
            if identity := response.headers.get(SESSION):
                self._session = {SESSION: identity}
            if not begun.done():
                begun.set_result(None)
            if response.content_type == EVENTS:
                async for name, event in read_events(response, self._site.limits.message):
                    if name == "message":
                        self._site.listener.receive(event)
            elif answer := await read_whole(response, self._site.limits.message):
                self._site.listener.receive(answer)


async def open_sse(spec: ToolServerSpec, listener: Listener, limits: ToolLimits) -> SSETransport:
    """Raises ToolServerError."""
    transport = SSETransport(open_site(spec, listener, limits))
    try:
        await transport.opened()
    except BaseException:
        await transport.close()
        raise
    return transport


async def open_http(spec: ToolServerSpec, listener: Listener, limits: ToolLimits) -> HTTPTransport:
    """Nothing is sent yet, so nothing is raised."""
    return HTTPTransport(open_site(spec, listener, limits))
