"""A server of tools that is a process of ours: a message is a line on its standard streams."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import cast

from vivace.config.child_process import begin_other_program, describe_exit, environment_of_others
from vivace.config.http import ToolServerSpec
from vivace.tool_servers.transport import (
    Listener,
    ToolLimits,
    ToolServerError,
    nothing_to_end,
)

TAIL = 1024
"""Bytes of its standard error that are kept, to say why it has ended."""
OUTPUT, ERRORS = 1, 2
"""its standard streams"""
LAST_WORDS = 0.2
"""Seconds in which they may come behind its end, which something it has started may hold open; and
in which its end may come behind that of its output."""


class StdioTransport(asyncio.SubprocessProtocol):
    """The process, in a session and so a group of its own: no signal of a terminal reaches it, and
    what it starts is killed with it."""

    def __init__(self, listener: Listener, limits: ToolLimits) -> None:
        self.version = ""
        self._listener = listener
        self._limits = limits
        self._buffer = LineBuffer(limits.message)
        self._tail = b""
        self._over = ""
        self._process: asyncio.SubprocessTransport | None = None
        self._exited = asyncio.Event()
        self._silent = asyncio.Event()

    async def send(self, data: bytes) -> Callable[[], object]:
        pipe = self._pipe()
        if not self._over and (pipe is None or pipe.is_closing()):
            await self._hear_why()
        if self._over or pipe is None or pipe.is_closing():
            raise ToolServerError(self._over or "it reads no more")
        if pipe.get_write_buffer_size() > self._limits.message:
            raise ToolServerError("it does not read what it is sent")
        pipe.write(data + b"\n")
        return nothing_to_end

    async def close(self) -> None:
        """End it: by the end of its input, then SIGTERM, then SIGKILL to all of its group."""
        process = self._process
        assert process is not None
        if (pipe := self._pipe()) is not None:
            pipe.close()
        if not await self._comes(self._exited):
            self._signal(signal.SIGTERM)
            await self._comes(self._exited)
        self._signal(signal.SIGKILL)  # also what it has started
        await self._comes(self._exited)
        process.close()

    def _pipe(self) -> asyncio.WriteTransport | None:
        assert self._process is not None
        return cast("asyncio.WriteTransport | None", self._process.get_pipe_transport(0))

    def _signal(self, number: int) -> None:
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError, PermissionError):  # it may be another user's
            os.killpg(self._process.get_pid(), number)

    async def _comes(self, event: asyncio.Event) -> bool:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(event.wait(), self._limits.stop)
        return event.is_set()

    # -- what the event loop says ------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._process = cast("asyncio.SubprocessTransport", transport)  # uvloop's has no base

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == ERRORS:
            self._tail = (self._tail + data)[-TAIL:]
            return
        if self._over:
            return
        try:
            for line in self._buffer.push(data):
                if line.lstrip().startswith(b"{"):  # others print what is no message
                    self._listener.receive(line)
        except ToolServerError as error:
            self._end(str(error))

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == ERRORS:
            self._silent.set()
            self._settle()
        elif fd == OUTPUT:  # as a rule its end, which then is told
            asyncio.get_running_loop().call_later(LAST_WORDS, self._note_mute)

    def _note_mute(self) -> None:
        if not self._exited.is_set():
            self._end("it has closed its output")

    def process_exited(self) -> None:
        self._exited.set()
        asyncio.get_running_loop().call_later(LAST_WORDS, self._silent.set)
        asyncio.get_running_loop().call_later(LAST_WORDS, self._settle)
        self._settle()

    def _settle(self) -> None:
        """Its end is told once what it has said of it is there."""
        if self._exited.is_set() and self._silent.is_set():
            self._end(self._why_ended())

    async def _hear_why(self) -> None:
        """Its input is heard to be closed before its process is heard to have ended."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2 * LAST_WORDS):
                await self._exited.wait()
                await self._silent.wait()

    def _why_ended(self) -> str:
        assert self._process is not None
        code = self._process.get_returncode()
        how = "its process ended" if code is None else f"its process ended ({describe_exit(code)})"
        lines = self._tail.decode("utf-8", "replace").strip().splitlines()
        return how + (f": {lines[-1].strip()[:200]}" if lines else "")

    def _end(self, reason: str) -> None:
        if not self._over:
            self._over = reason
            self._listener.end(reason)


class LineBuffer:
    """Bytes that come in parts -> whole lines of at most `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._rest = bytearray()

    def push(self, data: bytes) -> list[bytes]:
        """The lines that are whole now, without their ends. ToolServerError for a longer one."""
        first, *others = data.split(b"\n")
        self._rest += first
        lines: list[bytes] = []
        for part in others:
            self._check()
            lines.append(bytes(self._rest).rstrip(b"\r"))
            self._rest = bytearray(part)
        self._check()
        return lines

    def _check(self) -> None:
        if len(self._rest) > self._limit:
            self._rest.clear()
            raise ToolServerError(f"it sent a message of more than {self._limit >> 20} MiB")


async def open_stdio(
    spec: ToolServerSpec, listener: Listener, limits: ToolLimits
) -> StdioTransport:
    """Start the command of a server, without a shell. Raises ToolServerError."""
    folder = find_folder(spec.cwd)
    given = {name: value.reveal() for name, value in spec.env.items()}
    loop = asyncio.get_running_loop()
    try:
        _, protocol = await loop.subprocess_exec(
            lambda: StdioTransport(listener, limits),
            *spec.command,
            env={**environment_of_others(), **given},
            cwd=folder,
            start_new_session=True,
            preexec_fn=begin_other_program(),
        )
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ToolServerError(f"{spec.command[0]} cannot be started: {reason}") from None
    return protocol


def find_folder(cwd: str | None) -> Path | None:
    """Where a command runs. Raises ToolServerError, since the system would tell of the command."""
    if cwd is None:
        return None
    try:
        folder = Path(cwd).expanduser()
        if folder.is_dir():
            return folder
        reason = "is no folder"
    except (OSError, RuntimeError) as error:  # of ~ without a home
        reason = f"cannot be used: {error.strerror if isinstance(error, OSError) else error}"
    raise ToolServerError(f"cwd: {cwd[:200]} {reason}")
