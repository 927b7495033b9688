"""What a frontend and the process that renders its chat templates say to each other.

A frame is four bytes of length and a message: JSON toward the process (what requests bring is
JSON, with numbers of any size), msgpack back.
"""

from __future__ import annotations

import struct
from typing import Any

import msgspec

LENGTH = struct.Struct("<I")


class RenderLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Of one rendering, whatever the template does."""

    cpu_seconds: float = 2.0
    """of processor time: a busy machine does not make a template slow"""
    wall_seconds: float = 60.0
    memory: int = 512 << 20
    """bytes beyond what the idle process has mapped"""
    characters: int = 16 << 20
    """of the text that comes out"""

    @property
    def largest_answer(self) -> int:
        """Bytes of an answer's frame: four for each character, and what stands around them."""
        return 4 * self.characters + 4096


class Load(msgspec.Struct, frozen=True, tag="load"):
    """The first message: templates by name, to be compiled."""

    sources: dict[str, str]
    limits: RenderLimits


class Render(msgspec.Struct, frozen=True, tag="render"):
    template: str
    variables: dict[str, Any]


class Loaded(msgspec.Struct, frozen=True, tag="loaded"):
    walks_content: list[str]
    """names of the templates that loop over a message's content as a list of parts"""


class Rendered(msgspec.Struct, frozen=True, tag="rendered"):
    text: str


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    reason: str
    """a clause whose subject is the chat template"""
    over_limit: bool = False


RenderMessage = Load | Render
RenderReply = Loaded | Rendered | Refused


def frame(message: bytes) -> bytes:
    return LENGTH.pack(len(message)) + message
