"""All servers of tools that were named at the start."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping

from vivace.config.http import ToolServerSpec
from vivace.errors import CannotStart
from vivace.tool_servers.server import ToolServer
from vivace.tool_servers.transport import ToolLimits, ToolServerError

CORRECT_COMMAND = (
    "Run the command to see what it lacks, correct command, args, env or cwd in the file, or set "
    "disabled there"
)


class ToolServers(Mapping[str, ToolServer]):
    """By label. A process that answers requests has its own connections."""

    def __init__(
        self, specs: Iterable[ToolServerSpec] = (), limits: ToolLimits | None = None
    ) -> None:
        limits = limits or ToolLimits()
        self._servers = {spec.label: ToolServer(spec, limits) for spec in specs}

    def __getitem__(self, label: str) -> ToolServer:
        return self._servers[label]

    def __iter__(self) -> Iterator[str]:
        return iter(self._servers)

    def __len__(self) -> int:
        return len(self._servers)

    async def connect(self) -> list[str]:
        """Connect to all at once; of each a line that says what it has. CannotStart with the first
        one that is not there."""
        asked = [asyncio.create_task(describe(server)) for server in self._servers.values()]
        try:
            return list(await asyncio.gather(*asked))
        finally:
            for task in asked:
                task.cancel()

    async def close(self) -> None:
        await asyncio.gather(*(server.close() for server in self._servers.values()))


async def describe(server: ToolServer) -> str:
    """Its label and its tools. Raises CannotStart."""
    try:
        tools = await server.tools()
    except ToolServerError as error:
        remedy = CORRECT_COMMAND if server.is_command else "Start it first, or leave it out"
        raise CannotStart(
            f"--tool-server: {server.label} ({server.place}): {error}. {remedy}"
        ) from None
    said = f"{server.label}: {', '.join(tools) or 'no tools'}"
    return said + (f" ({', '.join(server.ignored)}: ignored)" if server.ignored else "")
