"""Messages of the chat path that are made from another API's turns, items and blocks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from vivace.frontend.errors import BadRequest
from vivace.requests.schema import ContentPart, Message, ToolCall
from vivace.server.apis.chat_run import renamed

_MESSAGE = re.compile(r"messages\[(\d+)\]")
_CALL = re.compile(r"\.tool_calls\[(\d+)\](?:\.(?:function|custom))?")
_TOOL = re.compile(r"tools\[(\d+)\](?:\.(?:function|custom))?")


@dataclass
class ChatMessages:
    """`places` says where in the body each message has begun, `renamed` how the body calls other
    fields of the chat path. `tool_places`: of tools, where they stand elsewhere; `tool_fields`: how
    the body calls fields of a function."""

    renamed: Mapping[str, str]
    tool_places: Sequence[str] = ()
    tool_fields: Mapping[str, str] = field(default_factory=dict[str, str])
    messages: list[Message] = field(default_factory=list)
    places: list[str] = field(default_factory=list)
    _thoughts: dict[int, list[str]] = field(default_factory=dict[int, list[str]])
    """of the message with that number: what `join_thoughts` puts behind its own"""
    _calls: dict[tuple[int, int], str] = field(default_factory=dict[tuple[int, int], str])
    """where a call stands, by the numbers of its message and among the calls of that"""

    def message(self, role: str, place: str) -> Message:
        """The last one if it is of this role, which says more then; else a new one."""
        if not self.messages or self.messages[-1].role != role:
            self.add(Message(role=role), place)
        return self.messages[-1]

    def add(self, message: Message, place: str) -> None:
        self.messages.append(message)
        self.places.append(place)

    def add_text(self, role: str, text: str, place: str) -> None:
        message = self.message(role, place)
        part = ContentPart(type="text", text=text)
        if message.content is None:
            message.content = text
        elif isinstance(message.content, str):
            message.content = [ContentPart(type="text", text=message.content), part]
        else:
            message.content.append(part)

    def add_thought(self, text: str, place: str) -> None:
        """Of the assistant; a message may have thousands."""
        self.message("assistant", place)
        self._thoughts.setdefault(len(self.messages) - 1, []).append(text)

    def join_thoughts(self) -> None:
        """When all are there."""
        for number, parts in self._thoughts.items():
            message = self.messages[number]
            message.reasoning_content = "".join((message.reasoning_content or "", *parts))
        self._thoughts.clear()

    def add_call(self, call: ToolCall, place: str, at: str = "") -> None:
        """Of the assistant, in what stands at `place`; `at`: of the call itself, if it is not all
        of that."""
        message = self.message("assistant", place)
        message.tool_calls = message.tool_calls or []
        self._calls[len(self.messages) - 1, len(message.tool_calls)] = at or place
        message.tool_calls.append(call)

    def rename(self, name: str) -> str:
        """The field of the body that the chat path knows by another name."""
        found = _MESSAGE.match(name)
        if found is not None and int(found[1]) < len(self.places):
            number, rest = int(found[1]), name[found.end() :]
            call = _CALL.match(rest)
            if call is not None and (number, int(call[1])) in self._calls:
                return self._calls[number, int(call[1])] + rest[call.end() :]
            return self.places[number] + rest
        if (found := _TOOL.match(name)) is not None:
            index, places = int(found[1]), self.tool_places
            place = places[index] if index < len(places) else f"tools[{index}]"
            return place + renamed(name[found.end() :], self.tool_fields)
        return renamed(name, self.renamed)


def needed(value: str | None, field_name: str, reason: str = "is required") -> str:
    """BadRequest where a field is missing that its kind of part needs."""
    if value is None:
        raise BadRequest(field_name, reason)
    return value
