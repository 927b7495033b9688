"""Servers of tools over each transport: what they have, what calls find, and how they go wrong."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import fake_tools
import pytest
import uvloop
from aiohttp import web
from aiohttp.test_utils import TestServer
from fake_tool_sites import FakeSite, fake_site
from fake_tools import FAULT, RESULT, TOOLS
from hypothesis import given
from hypothesis import strategies as st

from vivace.config import child_process
from vivace.config.http import ToolServerSpec
from vivace.config.secret import Secret
from vivace.errors import CannotStart
from vivace.tool_servers.http import open_http
from vivace.tool_servers.server import ToolServer
from vivace.tool_servers.servers import ToolServers
from vivace.tool_servers.stdio import LineBuffer
from vivace.tool_servers.transport import Listener, ToolLimits, ToolServerError

PROGRAM = (sys.executable, "-S", fake_tools.__file__)
LIMITS = ToolLimits(connect=5, call=5, stop=0.2, retry=0)
HASTY = ToolLimits(connect=0.3, call=0.3, stop=0.2, retry=0)


def command(fault: str = "", words: tuple[str, ...] = PROGRAM, **fields: Any) -> ToolServerSpec:
    env = {FAULT: Secret(fault)}
    return ToolServerSpec(label="fake", transport="stdio", command=words, env=env, **fields)


@asynccontextmanager
async def opened(
    transport: str, fault: str = "", limits: ToolLimits = LIMITS
) -> AsyncIterator[tuple[ToolServer, FakeSite | None]]:
    """A client of the fake one, and the fake one where it is in this process."""
    if transport == "stdio":
        server = ToolServer(command(fault), limits)
        try:
            yield server, None
        finally:
            await server.close()
        return
    async with fake_site(fault) as site:
        spec = (
            ToolServerSpec(label="fake", transport="sse", url=f"{site.url}/sse")
            if transport == "sse"
            else ToolServerSpec(label="fake", transport="http", url=f"{site.url}/mcp")
        )
        server = ToolServer(spec, limits)
        try:
            yield server, site
        finally:
            await server.close()


def run(work: Callable[[], Awaitable[Any]]) -> Any:
    async def bounded() -> Any:
        async with asyncio.timeout(20):
            return await work()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # as frontends have it
        return runner.run(bounded())


EVERY = pytest.mark.parametrize("transport", ["stdio", "sse", "http"])


@EVERY
def test_tools_are_listed_and_called(transport: str) -> None:
    async def work() -> None:
        async with opened(transport) as (server, site):
            tools = await server.tools()
            assert list(tools) == [tool["name"] for tool in TOOLS]
            assert tools["look"].read_only and not tools["fail"].read_only
            found = await asyncio.gather(
                *(server.call("look", {"city": str(number)}) for number in range(5))
            )
            assert [one.text for one in found] == [f"{RESULT} in {n}" for n in range(5)]
            failed = await server.call("fail", {})
            assert (failed.text, failed.failed) == ("no such city", True)
        if site is not None and transport == "http":
            assert site.methods()[-1] == "DELETE"

    run(work)


@EVERY
def test_calls_that_go_wrong_say_so_and_the_next_one_works(transport: str) -> None:
    """Too much, none at all, no JSON, and the end of the server."""

    async def work() -> None:
        async with opened(transport) as (server, _):
            for name, word in (("huge", "MiB"), ("garbage", "JSON"), ("die", "died|ended")):
                with pytest.raises(ToolServerError, match=word):
                    await server.call(name, {})
                found = await server.call("look", {"city": "Paris"})
                assert found.text == f"{RESULT} in Paris"

    run(work)


@EVERY
def test_a_call_that_takes_too_long_is_given_up(transport: str) -> None:
    async def work() -> None:
        limits = ToolLimits(call=0.3, stop=0.2, connect=60)
        async with opened(transport, limits=limits) as (server, site):
            await server.tools()
            with pytest.raises(ToolServerError, match="answer"):
                await server.call("slow", {})
            assert (await server.call("look", {})).text.startswith(RESULT)
            while site is not None and (
                site.held or "notifications/cancelled" not in site.methods()
            ):
                await asyncio.sleep(0.01)

    run(work)


@pytest.mark.parametrize("transport", ["stdio", "sse"])
@pytest.mark.parametrize(
    ("fault", "word"),
    [
        ("many", "256"),
        ("large", "KiB"),
        ("wrong", "none"),
        ("version", "1066"),
        ("silent", "within"),
    ],
)
def test_servers_that_lie_are_refused(transport: str, fault: str, word: str) -> None:
    async def work() -> None:
        limits = HASTY if fault == "silent" else LIMITS
        async with opened(transport, fault, limits) as (server, _):
            with pytest.raises(ToolServerError, match=word):
                await server.tools()

    run(work)


@pytest.mark.parametrize(("fault", "word"), [("elsewhere", "elsewhere"), ("redirect", "302")])
def test_a_server_sends_us_nowhere_else(fault: str, word: str) -> None:
    async def work() -> None:
        async with opened("sse", fault) as (server, _):
            with pytest.raises(ToolServerError, match=word):
                await server.tools()

    run(work)


def test_tools_that_cannot_be_offered_are_left_out() -> None:
    async def work() -> None:
        async with opened("sse", "deep") as (server, _):
            assert list(await server.tools()) == ["look"]

    run(work)


def test_a_long_result_is_cut_and_says_so() -> None:
    async def work() -> None:
        limits = ToolLimits(output=2, stop=0.2)
        async with opened("sse", limits=limits) as (server, _):
            assert (await server.call("look", {"city": "Rome"})).text.startswith("su\n[... 9 more")

    run(work)


def test_nothing_is_started_again_once_it_is_closed() -> None:
    async def work() -> None:
        async with opened("stdio") as (server, _):
            await server.tools()
        with pytest.raises(ToolServerError, match="closed"):
            await server.call("look", {})

    run(work)


def test_a_server_that_is_being_connected_is_closed_at_once() -> None:
    async def work() -> None:
        async with opened("stdio", "silent") as (server, _):
            asking = asyncio.create_task(server.tools())
            await asyncio.sleep(0)
            async with asyncio.timeout(LIMITS.connect / 2):
                await server.close()
            with pytest.raises(ToolServerError, match="closed"):
                await asking

    run(work)


@pytest.mark.parametrize("close_range", [child_process.CLOSE_RANGE, -1], ids=["", "older Linux"])
def test_a_command_that_closes_its_output_fails_its_calls_at_once(
    close_range: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_process, "CLOSE_RANGE", close_range)

    async def work() -> None:
        async with opened("stdio", "mute") as (server, _):
            async with asyncio.timeout(LIMITS.call / 2):
                with pytest.raises(ToolServerError, match="output"):
                    await server.call("look", {})
            assert "look" in await server.tools()  # of one that was started anew

    run(work)


def test_a_list_that_has_changed_is_asked_for_until_it_comes() -> None:
    async def work() -> None:
        async with opened("sse") as (server, site):
            assert site is not None
            await server.call("change", {})
            site.fault = "wrong"
            with pytest.raises(ToolServerError):
                await server.tools()
            site.fault = "deep"
            assert list(await server.tools()) == ["look"]

    run(work)


def test_an_answer_that_never_ends_is_no_end_of_the_others() -> None:
    """Nor does anyone wait for one that does not begin once the connection is closed."""

    async def work() -> None:
        asked, left = asyncio.Event(), asyncio.Event()

        async def hang(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            try:
                if await request.text() == "begin":
                    await response.prepare(request)
                asked.set()
                await asyncio.Event().wait()
            finally:
                left.set()
            return response

        app = web.Application()
        app.router.add_post("/", hang)
        async with TestServer(app, handler_cancellation=True) as site:
            ends: list[str] = []
            listener = Listener(receive=lambda data: None, end=ends.append)
            spec = ToolServerSpec(label="fake", transport="http", url=str(site.make_url("/")))
            transport = await open_http(spec, listener, ToolLimits(call=0.1, connect=0.1))
            await transport.send(b"begin")
            await left.wait()
            await transport.close()
            asked.clear()
            transport = await open_http(spec, listener, LIMITS)
            sending = asyncio.create_task(transport.send(b"never"))
            await asked.wait()
            await transport.close()
            with pytest.raises(ToolServerError, match="closed"):
                await sending
            assert ends == []

    run(work)


def test_a_server_that_starts_again_is_found_again() -> None:
    async def work() -> None:
        async with opened("sse") as (server, site):
            assert site is not None
            await server.tools()
            await site.stop()
            with pytest.raises(ToolServerError):
                while True:
                    await server.call("look", {})
            await site.start()
            assert (await server.call("look", {})).text.startswith(RESULT)

    run(work)


def test_a_command_is_started_without_our_secrets_and_ends_with_all_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIVACE_API_KEY", "secret")
    pids = tmp_path / "pids"
    program = (
        "import os, subprocess, sys, fake_tools as f\n"
        "child = subprocess.Popen(['sleep', '60'])\n"
        f"open({str(pids)!r}, 'w').write(f'{{os.getpgid(0)}} {{child.pid}}')\n"
        "assert 'VIVACE_API_KEY' not in os.environ\n"
        "f.main()\n"
        "import time; time.sleep(60)\n"
    )
    folder = str(Path(fake_tools.__file__).parent)
    words = (sys.executable, "-c", f"import sys; sys.path.insert(0, {folder!r})\n{program}")

    async def work() -> None:
        server = ToolServer(command(words=words), LIMITS)
        await server.tools()
        group, child = map(int, pids.read_text().split())
        assert group != os.getpgid(0)
        await server.close()
        while is_running(group) or is_running(child):
            await asyncio.sleep(0.01)

    run(work)


def test_a_command_dies_with_the_process_that_has_started_it(tmp_path: Path) -> None:
    """However that ends, and though the command ignores the end of its input."""
    pid = tmp_path / "pid"
    stubborn = f"import os, time; open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    program = (
        "import asyncio, os, signal, sys, uvloop\n"
        "from vivace.config.http import ToolServerSpec\n"
        "from vivace.tool_servers.stdio import open_stdio\n"
        "from vivace.tool_servers.transport import Listener, ToolLimits\n"
        "async def work():\n"
        "    command = (sys.executable, '-S', '-c', sys.argv[1])\n"
        "    spec = ToolServerSpec(label='x', transport='stdio', command=command)\n"
        "    await open_stdio(spec, Listener(receive=print, end=print), ToolLimits())\n"
        "    while not os.path.exists(sys.argv[2]) or not open(sys.argv[2]).read():\n"
        "        await asyncio.sleep(0.01)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "uvloop.run(work())\n"
    )
    words = [sys.executable, "-c", program, stubborn, str(pid)]
    assert subprocess.run(words, timeout=30, check=False).returncode == -signal.SIGKILL
    deadline = time.monotonic() + 10
    while is_running(int(pid.read_text())):
        assert time.monotonic() < deadline


def is_running(pid: int) -> bool:
    """Whoever adopts it may not have asked for its end yet."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.parametrize(
    ("spec", "word"),
    [
        (command(words=("/no/such/program",)), "correct"),
        (command(words=(sys.executable, "-c", "raise SystemExit('no key')")), "key"),
        (command(cwd="/no/such/folder"), "folder"),
        (command(cwd="x" * 5000), "long"),
        (command(cwd="~nobody-has-this-name/x"), "home"),
        (ToolServerSpec(label="x", transport="sse", url="http://127.0.0.1:1/sse"), "refused"),
        (ToolServerSpec(label="x", transport="http", url="http://127.0.0.1:1/mcp"), "refused"),
    ],
)
def test_a_server_that_is_not_there_ends_the_start_with_a_line(
    spec: ToolServerSpec, word: str
) -> None:
    async def work() -> None:
        servers = ToolServers([spec], LIMITS)
        try:
            with pytest.raises(CannotStart, match=word) as caught:
                await servers.connect()
        finally:
            await servers.close()
        assert spec.label in str(caught.value) and "\n" not in str(caught.value)

    run(work)


def test_a_file_says_where_a_command_runs_and_how_long_calls_take(tmp_path: Path) -> None:
    async def work() -> None:
        spec = command(cwd=str(tmp_path), timeout=0.3, ignored=("autoApprove",))
        servers = ToolServers([spec], LIMITS)
        try:
            (line,) = await servers.connect()
            assert line.startswith("fake: look") and line.endswith("(autoApprove: ignored)")
            with pytest.raises(ToolServerError, match="answer"):
                await servers["fake"].call("slow", {})
        finally:
            await servers.close()

    run(work)
    program = "import os, sys; sys.exit(os.getcwd())"
    spec = command(words=(sys.executable, "-S", "-c", program), cwd=str(tmp_path))

    async def ask_where() -> None:
        servers = ToolServers([spec], LIMITS)
        try:
            with pytest.raises(CannotStart, match=tmp_path.name):
                await servers.connect()
        finally:
            await servers.close()

    run(ask_where)


@given(st.binary(max_size=60), st.lists(st.integers(0, 60), max_size=5))
def test_lines_are_the_same_however_they_come(data: bytes, cuts: list[int]) -> None:
    places = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    buffer = LineBuffer(limit=100)
    parts = [data[a:b] for a, b in pairwise(places)]
    found = [line for part in parts for line in buffer.push(part)]
    assert found == [line.rstrip(b"\r") for line in data.split(b"\n")[:-1]]
