"""One server of tools: connected when it is needed, and again when it has gone."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import msgspec

from vivace.config.http import ToolServerSpec
from vivace.tool_servers.messages import CallOutcome, ToolDescription, ToolList
from vivace.tool_servers.session import ToolSession
from vivace.tool_servers.transport import NotHeard, ToolLimits, ToolServerError

log = logging.getLogger("vivace.tools")

TOOL_NAME = re.compile(r"[\w.:/\-]{1,128}")
DEPTH = 64
"""of a schema, as of a request"""
CLOSED = "it was closed"
LATE = "it did not answer within {:g} s"
CUT = "\n[... {} more characters were left out]"


@dataclass(frozen=True)
class CallText:
    """What a call has found; `failed`: by its tool it went wrong."""

    text: str
    failed: bool


class ToolServer:
    """`tools` are those that it has listed last; a session goes on until it ends by itself."""

    def __init__(self, spec: ToolServerSpec, limits: ToolLimits) -> None:
        self.label = spec.label
        self.place = spec.place
        self.is_command = spec.transport == "stdio"
        self.ignored = spec.ignored
        self._spec = spec
        self._limits = limits if spec.timeout is None else replace(limits, call=spec.timeout)
        self._session: ToolSession | None = None
        self._tools: dict[str, ToolDescription] = {}
        self._lock = asyncio.Lock()
        self._turn = asyncio.Semaphore(limits.calls_at_once)
        self._failed = ("", 0.0)
        """why the last connection failed, and when"""
        self._closed = False
        self._deadline: asyncio.Timeout | None = None
        """of a connection, or a list, that is waited for"""

    async def tools(self) -> Mapping[str, ToolDescription]:
        """By name. Raises ToolServerError."""
        await self._connected()
        return self._tools

    async def call(self, name: str, arguments: dict[str, Any]) -> CallText:
        """What a tool has found. ToolServerError when nobody knows what it did."""
        params = {"name": name, "arguments": arguments}
        try:
            async with asyncio.timeout(self._limits.call), self._turn:
                outcome = await self._ask(params)
        except TimeoutError:
            raise ToolServerError(LATE.format(self._limits.call)) from None
        text = outcome.text()
        left_out = len(text) - self._limits.output
        if left_out > 0:
            text = text[: self._limits.output] + CUT.format(left_out)
        return CallText(text, outcome.is_error)

    async def close(self) -> None:
        """For good: who comes later starts no command again."""
        self._closed = True
        if self._deadline is not None and not self._deadline.expired():
            self._deadline.reschedule(0.0)
        async with self._lock:
            if self._session is not None:
                await self._session.close()

    async def _ask(self, params: dict[str, Any]) -> CallOutcome:
        session = await self._connected()
        try:
            return await session.request("tools/call", params, CallOutcome)
        except NotHeard:
            session = await self._connected()
            return await session.request("tools/call", params, CallOutcome)

    async def _connected(self) -> ToolSession:
        """The session, with a list of tools that is as new as the server says."""
        async with self._lock:
            session = self._session
            if session is None or session.over:
                session = await self._connect()
            elif session.stale:
                await self._list_again(session)
            return session

    async def _connect(self) -> ToolSession:
        if self._closed:
            raise ToolServerError(CLOSED)
        reason, when = self._failed
        if reason and time.monotonic() - when < self._limits.retry:
            raise ToolServerError(reason)
        if self._session is not None:
            log.warning("tool server %s: %s; connecting again", self.label, self._session.over)
            await self._session.close()
        session = self._session = ToolSession(self._spec, self._limits)
        try:
            await self._within(self._begin(session))
        except BaseException as error:
            if isinstance(error, ToolServerError):
                self._failed = (str(error), time.monotonic())
            session.end("it could not be connected")
            await session.close()
            raise
        self._failed = ("", 0.0)
        return session

    async def _list_again(self, session: ToolSession) -> None:
        try:
            await self._within(self._list(session))
        except BaseException:  # also when who asked has left: the next one needs it
            session.stale = True
            raise

    async def _begin(self, session: ToolSession) -> None:
        await session.open()
        await self._list(session)

    async def _within(self, work: Awaitable[None]) -> None:
        try:
            async with asyncio.timeout(self._limits.connect) as self._deadline:
                await work
        except TimeoutError:
            late = LATE.format(self._limits.connect)
            raise ToolServerError(CLOSED if self._closed else late) from None
        finally:
            self._deadline = None

    async def _list(self, session: ToolSession) -> None:
        session.stale = False
        found: dict[str, ToolDescription] = {}
        params: dict[str, Any] = {}
        size = 0
        while True:
            page = await session.request("tools/list", params, ToolList)
            for tool in page.tools:
                found[tool.name] = tool
                size += len(msgspec.json.encode(tool))
            self._check_list(len(found), size)
            if not page.next_cursor or not page.tools:
                break
            params = {"cursor": page.next_cursor}
        self._tools = {tool.name: tool for tool in found.values() if self._is_usable(tool)}

    def _check_list(self, count: int, size: int) -> None:
        limits = self._limits
        if count > limits.tools:
            raise ToolServerError(f"it lists more than {limits.tools} tools")
        if size > limits.schemas:
            raise ToolServerError(
                f"the schemas of its tools are larger than {limits.schemas >> 10} KiB"
            )

    def _is_usable(self, tool: ToolDescription) -> bool:
        usable = TOOL_NAME.fullmatch(tool.name) is not None and not is_deep(tool.input_schema)
        if not usable:
            log.warning(
                "tool server %s: the tool %.80r is left out: its name has other characters than "
                "letters, digits and . : / _ -, or its schema is nested too deeply",
                self.label,
                tool.name,
            )
        return usable


def is_deep(schema: object) -> bool:
    """Whether lists and objects are inside each other beyond DEPTH."""
    level: list[Any] = [schema]
    for _ in range(DEPTH):
        level = [inner for value in level for inner in list_inner(value)]
        if not level:
            return False
    return True


def list_inner(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return list(cast("dict[str, Any]", value).values())
    return cast("list[Any]", value) if isinstance(value, list) else ()
