"""The servers of MCP's own Python package, over each transport. Skipped where it is missing."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import socket
import sys

import pytest
import uvloop

from vivace.config.http import ToolServerSpec
from vivace.config.secret import Secret
from vivace.tool_servers.server import ToolServer
from vivace.tool_servers.transport import ToolLimits, ToolServerError

PROGRAM = """
import sys
from mcp.server.mcpserver import MCPServer

server = MCPServer("real")

@server.tool()
def add(a: int, b: int) -> int:
    "Add two numbers"
    if a < 0:
        raise ValueError("too small")
    return a + b

transport, port = sys.argv[1:]
server.run(transport, **({} if transport == "stdio" else {"port": int(port)}))
"""
MISSING = importlib.util.find_spec("mcp") is None
pytestmark = pytest.mark.skipif(MISSING, reason="pip install mcp")
PATHS = {"sse": "sse", "streamable-http": "mcp"}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return sock.getsockname()[1]


async def converse(server: ToolServer) -> None:
    tools = await server.tools()
    schema = tools["add"].input_schema
    assert (tools["add"].description, schema["required"]) == ("Add two numbers", ["a", "b"])
    found = await asyncio.gather(*(server.call("add", {"a": n, "b": 1}) for n in range(5)))
    assert [(one.text, one.failed) for one in found] == [(str(n + 1), False) for n in range(5)]
    failed = await server.call("add", {"a": -1, "b": 1})
    assert failed.failed and "add" in failed.text
    assert (await server.call("add", {"a": "x"})).failed


@pytest.mark.parametrize("transport", ["stdio", "sse", "streamable-http"])
def test_tools_of_a_real_server(transport: str) -> None:
    limits = ToolLimits(connect=15, call=15, retry=0)
    env = {"PYTHONPATH": Secret(os.environ.get("PYTHONPATH", ""))}
    port = free_port()
    words = (sys.executable, "-c", PROGRAM, transport, str(port))

    async def work() -> None:
        if transport == "stdio":
            server = ToolServer(
                ToolServerSpec(label="real", transport="stdio", command=words, env=env), limits
            )
            await converse(server)
            await server.close()
            return
        process = await asyncio.create_subprocess_exec(*words)
        url = f"http://127.0.0.1:{port}/{PATHS[transport]}"
        kind = "sse" if transport == "sse" else "http"
        server = ToolServer(ToolServerSpec(label="real", transport=kind, url=url), limits)
        try:
            while not await is_there(server):
                assert process.returncode is None
                await asyncio.sleep(0.1)
            await converse(server)
            await server.close()
        finally:
            process.kill()
            await process.wait()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(work(), 40))


async def is_there(server: ToolServer) -> bool:
    try:
        await server.tools()
    except ToolServerError:
        return False
    return True
