"""How messages reach a server of tools and come from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


class ToolServerError(Exception):
    """A server of tools is not there, does not answer, or says what is no answer. The text says
    why, for the client of a request; which one it is stands elsewhere."""


class NotHeard(ToolServerError):
    """A message did not reach it, and may over a new connection."""


@dataclass(frozen=True, kw_only=True)
class ToolLimits:
    """What one server of tools may take. Times in seconds, sizes in bytes unless it is said."""

    connect: float = 10.0
    """until it is there and has listed its tools"""
    call: float = 60.0
    """of one call, the wait for its turn included"""
    stop: float = 1.0
    """that a command gets to end by itself, twice: then it is killed"""
    message: int = 4 << 20
    output: int = 128 << 10
    """characters of what a call has found: the rest is cut off, which is said"""
    tools: int = 256
    schemas: int = 512 << 10
    """of all tools together, with their descriptions"""
    calls_at_once: int = 16
    retry: float = 1.0
    """after a connection that failed until the next one is tried"""


@dataclass(frozen=True, kw_only=True)
class Listener:
    """Who hears what comes: whole messages, and why no more will come (once). Neither raises."""

    receive: Callable[[bytes], None]
    end: Callable[[str], None]


def nothing_to_end() -> None:
    """Of a message whose answer takes nothing of its own."""


class Transport(Protocol):
    """A connection to one server of tools. Opened by a function that returns it when messages may
    be sent; what comes goes to a `Listener`."""

    version: str
    """Of MCP, once it was agreed on: over HTTP every message says it."""

    async def send(self, data: bytes) -> Callable[[], object]:
        """One message, JSON without line breaks; what is returned is called if nobody waits for an
        answer to it any more. Raises ToolServerError."""
        ...

    async def close(self) -> None:
        """Everything of it has ended when this returns. Never raises."""
        ...
