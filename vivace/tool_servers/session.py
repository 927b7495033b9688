"""One connection to a server of tools: requests by their numbers, answers as they come."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import msgspec

import vivace
from vivace.config.http import ToolServerSpec
from vivace.tool_servers.http import open_http, open_sse
from vivace.tool_servers.messages import (
    UNKNOWN_METHOD,
    VERSION,
    VERSIONS,
    InitializeResult,
    RpcMessage,
)
from vivace.tool_servers.stdio import open_stdio
from vivace.tool_servers.transport import (
    Listener,
    ToolLimits,
    ToolServerError,
    Transport,
    nothing_to_end,
)

OPEN: dict[str, Callable[..., Coroutine[Any, Any, Transport]]] = {
    "sse": open_sse,
    "http": open_http,
    "stdio": open_stdio,
}
_MESSAGE = msgspec.json.Decoder(RpcMessage)
T = TypeVar("T")


class ToolSession:
    """Once it is over it stays so; whoever waits for an answer then hears why."""

    def __init__(self, spec: ToolServerSpec, limits: ToolLimits) -> None:
        self.over = ""
        """why no answer comes any more"""
        self.stale = False
        """the server has said that its tools are others now"""
        self._spec = spec
        self._limits = limits
        self._transport: Transport | None = None
        self._number = 0
        self._waiting: dict[int, asyncio.Future[msgspec.Raw]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Connect and introduce ourselves. Raises ToolServerError."""
        listener = Listener(receive=self._receive, end=self.end)
        self._transport = await OPEN[self._spec.transport](self._spec, listener, self._limits)
        about = {"name": "vivace", "version": vivace.__version__}
        params = {"protocolVersion": VERSION, "capabilities": {}, "clientInfo": about}
        answer = await self.request("initialize", params, InitializeResult)
        if answer.protocol_version not in VERSIONS:
            spoken = answer.protocol_version[:40]
            raise ToolServerError(f"it speaks version {spoken!r} of MCP, not {', '.join(VERSIONS)}")
        self._transport.version = answer.protocol_version
        await self._send({"method": "notifications/initialized"})

    async def close(self) -> None:
        self.end("it was closed")
        if self._transport is not None:
            await self._transport.close()
        for task in self._tasks:
            task.cancel()

    async def request(self, method: str, params: dict[str, Any], kind: type[T]) -> T:
        """The answer. Raises ToolServerError; the server hears of it when nobody waits any more."""
        if self.over:
            raise ToolServerError(self.over)
        self._number += 1
        number, answer = self._number, asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        give_up: Callable[[], object] = nothing_to_end
        try:
            give_up = await self._send({"id": number, "method": method, "params": params})
            result = await answer
        except asyncio.CancelledError:
            give_up()
            about = {"requestId": number, "reason": "nobody waits for it any more"}
            self._tell({"method": "notifications/cancelled", "params": about})
            raise
        finally:
            del self._waiting[number]
        try:
            return msgspec.json.decode(result, type=kind)
        except (ValueError, RecursionError) as error:
            raise ToolServerError(f"its answer to {method} is none: {str(error)[:200]}") from None

    def end(self, reason: str) -> None:
        """No answer comes any more."""
        self.over = self.over or reason
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(ToolServerError(self.over))
                answer.exception()  # seen: what was asked may not have been sent yet

    async def _send(self, message: dict[str, Any]) -> Callable[[], object]:
        if self._transport is None:
            raise ToolServerError(self.over or "it is not connected")
        return await self._transport.send(msgspec.json.encode({"jsonrpc": "2.0", **message}))

    def _tell(self, message: dict[str, Any]) -> None:
        """Send it beside; whether it arrives is nobody's concern."""
        if self.over or len(self._tasks) >= self._limits.calls_at_once:
            return
        task = asyncio.create_task(self._send_if_possible(message))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send_if_possible(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(ToolServerError, TimeoutError):
            async with asyncio.timeout(self._limits.connect):
                await self._send(message)

    # -- what comes --------------------------------------------------------------------------------

    def _receive(self, data: bytes) -> None:
        try:
            message = _MESSAGE.decode(data)
        except (ValueError, RecursionError):
            start = data[:60].decode("utf-8", "replace")
            self.end(f"it sent what is no JSON-RPC: {start!r}")
            return
        if message.method is None:
            self._take_answer(message)
        elif message.id is not None:
            self._answer(message.id, message.method)
        elif message.method == "notifications/tools/list_changed":
            self.stale = True

    def _take_answer(self, message: RpcMessage) -> None:
        answer = self._waiting.get(message.id) if isinstance(message.id, int) else None
        if answer is None or answer.done():
            return  # nobody waits for it any more
        if message.error is not None:
            answer.set_exception(ToolServerError(f"it answers: {message.error.message[:500]}"))
        elif not bytes(message.result):
            answer.set_exception(ToolServerError("it answers without a result"))
        else:
            answer.set_result(msgspec.Raw(bytes(message.result)))

    def _answer(self, identity: int | str, method: str) -> None:
        """A server may ask whether we are there; it is given nothing else of ours."""
        if method == "ping":
            self._tell({"id": identity, "result": {}})
        else:
            reason = {"code": UNKNOWN_METHOD, "message": f"{method[:100]} is not offered"}
            self._tell({"id": identity, "error": reason})
