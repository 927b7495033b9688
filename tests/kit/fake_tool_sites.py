"""The fake server of tools over HTTP: SSE at /sse, MCP's present protocol at /mcp."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from fake_tools import answer, encoded


class FakeSite:
    """`heard`: the messages that came; `fault`: what it does wrong."""

    def __init__(self, fault: str = "") -> None:
        self.heard: list[dict[str, Any]] = []
        self.fault = fault
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._address = self._socket.getsockname()
        self.url = f"http://127.0.0.1:{self._address[1]}"
        self.sessions = {"s1"}
        self.held = 0
        """answers that have begun and never end"""
        self._streams: list[web.StreamResponse] = []
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Also again, at the same address."""
        app = web.Application()
        app.router.add_get("/sse", self._stream)
        app.router.add_post("/messages", self._message)
        app.router.add_post("/mcp", self._exchange)
        app.router.add_delete("/mcp", self._forget)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        if self._socket.fileno() < 0:
            self._socket = socket.create_server(self._address)
        await web.SockSite(self._runner, self._socket).start()

    async def stop(self) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    def methods(self) -> list[str]:
        return [message.get("method", "") for message in self.heard]

    def _say(self, message: dict[str, Any]) -> list[str]:
        self.heard.append(message)
        try:
            return [encoded(said) for said in answer(message, self.fault)]
        except SystemExit:
            raise web.HTTPInternalServerError(text="it died") from None

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        if self.fault == "redirect":
            raise web.HTTPFound("http://elsewhere.invalid/sse")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        place = "http://elsewhere.invalid/" if self.fault == "elsewhere" else "/messages?id=1"
        await response.write(f"event: endpoint\ndata: {place}\n\n: hi\n\n".encode())
        self._streams.append(response)
        await asyncio.Event().wait()
        return response

    async def _message(self, request: web.Request) -> web.Response:
        for said in self._say(await request.json()):
            await self._streams[-1].write(f"event: message\ndata: {said}\n\n".encode())
        return web.Response(status=202, text="Accepted")

    async def _exchange(self, request: web.Request) -> web.StreamResponse:
        message = await request.json()
        first = message.get("method") == "initialize"
        if first:
            self.sessions = {f"s{len(self.heard)}"}
        elif request.headers.get("Mcp-Session-Id") not in self.sessions:
            return web.Response(status=404, text="no such session")
        elif "MCP-Protocol-Version" not in request.headers:
            return web.Response(status=400, text="which version?")
        said = self._say(message)
        headers = {"Mcp-Session-Id": next(iter(self.sessions))} if first else {}
        if not said and message.get("method") == "tools/call":
            return await self._hold(request)
        if not said:
            return web.Response(status=202, headers=headers)
        if message.get("method") == "tools/call":  # as events, the others as JSON
            events = "".join(f"event: message\ndata: {one}\n\n" for one in said)
            headers["Content-Type"] = "text/event-stream"
            return web.Response(text=events, headers=headers)
        return web.Response(text=said[0], content_type="application/json", headers=headers)

    async def _hold(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        self.held += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.held -= 1
        return response

    async def _forget(self, _request: web.Request) -> web.Response:
        self.heard.append({"method": "DELETE"})
        return web.Response()


@asynccontextmanager
async def fake_site(fault: str = "") -> AsyncIterator[FakeSite]:
    site = FakeSite(fault)
    await site.start()
    try:
        yield site
    finally:
        await site.stop()
