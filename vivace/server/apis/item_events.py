"""Events of the items of a response: each is added, says something, and is done."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from vivace.server.apis.response_items import TEXT_EVENTS, Item, new_item, text_part
from vivace.server.apis.responses_schema import OutputItem, ResponseEvent, ResponseObject
from vivace.server.event_bytes import named_event


@dataclass
class ServerCall:
    """A call that a tool server is to make: the item that tells of it, and where that stands."""

    item: OutputItem
    index: int


class ItemEvents:
    """Items come one after the other into `response`: `item` is the open one, `_said` the parts of
    its text, or of its arguments. `calls`: items of calls that tool servers are to make, which are
    done once they were made."""

    def __init__(self, response: ResponseObject) -> None:
        self.item: OutputItem | None = None
        self.calls: list[ServerCall] = []
        self._response = response
        self._number = 0
        self._said: list[str] = []
        self._logprobs: list[msgspec.Raw] = []

    def event(self, kind: str, **fields: Any) -> ResponseEvent:
        """The next event; of an item it says which."""
        number, self._number = self._number, self._number + 1
        if self.item is not None and "response" not in fields:
            fields.setdefault("item_id", self.item.id)
            fields.setdefault("output_index", len(self._response.output))
        return ResponseEvent(type=kind, sequence_number=number, **fields)

    def open(self, item: OutputItem) -> Iterator[ResponseEvent]:
        self.hold(item)
        yield self.event("response.output_item.added", item=item, item_id=None)

    def hold(self, item: OutputItem) -> None:
        """Open one that is told as a whole."""
        self.item, self._said, self._logprobs = item, [], []

    # -- what an item says -------------------------------------------------------------------------

    def add_text(
        self, kind: Item, text: str, logprobs: list[msgspec.Raw]
    ) -> Iterator[ResponseEvent]:
        """More text of the open item, or of a new one where that is of another kind."""
        if self.item is None or self.item.type != kind:
            yield from self.close()
            yield from self._open_text(kind)
        self._said.append(text)
        self._logprobs += logprobs
        shown = {"logprobs": logprobs} if kind == Item.MESSAGE else {}
        yield self.event(f"{TEXT_EVENTS[kind]}.delta", content_index=0, delta=text, **shown)

    def _open_text(self, kind: Item) -> Iterator[ResponseEvent]:
        if kind == Item.MESSAGE:
            item = new_item(Item.MESSAGE, role="assistant", content=[])
        else:
            item = new_item(Item.REASONING, summary=[], content=[])
        yield from self.open(item)
        yield self.event("response.content_part.added", content_index=0, part=text_part(kind))

    def add_arguments(self, text: str) -> Iterator[ResponseEvent]:
        """More arguments of the open call, or more of its input, if there is one."""
        if not text or self.item is None:
            return
        self._said.append(text)
        if self.item.type != Item.APPROVAL_REQUEST:
            yield self.event(f"{TEXT_EVENTS[Item(self.item.type)]}.delta", delta=text)

    # -- ends --------------------------------------------------------------------------------------

    def close(self, status: str = "completed") -> Iterator[ResponseEvent]:
        """What is open is done; a call that a tool server is to make waits for that."""
        item = self.item
        if item is None:
            return
        said = "".join(self._said)
        match item.type:
            case Item.MESSAGE | Item.REASONING:
                item.status = status
                yield from self._close_text(item, said)
            case Item.APPROVAL_REQUEST:
                item.arguments = said
                yield self.event("response.output_item.added", item=item, item_id=None)
            case Item.CUSTOM_CALL:
                item.input = said
                yield self.event(f"{TEXT_EVENTS[Item.CUSTOM_CALL]}.done", input=said)
                item.status = status
            case _:
                item.arguments = said
                named = {"name": item.name} if item.type == Item.CALL else {}
                yield self.event(f"{TEXT_EVENTS[Item(item.type)]}.done", arguments=said, **named)
                item.status = status
        if item.type == Item.SERVER_CALL and status == "completed":
            item.status = "in_progress"
            self.calls.append(ServerCall(item, len(self._response.output)))
            self._leave(item)
            return
        yield from self.end(item)

    def _close_text(self, item: OutputItem, said: str) -> Iterator[ResponseEvent]:
        part = text_part(item.type, said, self._logprobs)
        shown = {"logprobs": self._logprobs} if item.type == Item.MESSAGE else {}
        kind = f"{TEXT_EVENTS[Item(item.type)]}.done"
        yield self.event(kind, content_index=0, text=said, **shown)
        yield self.event("response.content_part.done", content_index=0, part=part)
        item.content = [part]

    def end(self, item: OutputItem) -> Iterator[ResponseEvent]:
        """The open item is done as it stands."""
        yield self.event("response.output_item.done", item=item, item_id=None)
        self._leave(item)

    def _leave(self, item: OutputItem) -> None:
        self._response.output.append(item)
        self.item = None

    def settle(self, call: ServerCall, output: str | None, error: str | None) -> bytes:
        """The events of a call that a tool server has made, or could not."""
        item = call.item
        item.output, item.error = output, error
        item.status = "completed" if error is None else "failed"
        at: dict[str, Any] = {"output_index": call.index}
        return encode_events(
            (
                self.event(f"response.mcp_call.{item.status}", item_id=item.id, **at),
                self.event("response.output_item.done", item=item, **at),
            )
        )

    def leave_calls(self) -> Iterator[ResponseEvent]:
        """Nobody makes them any more."""
        for call in self.calls:
            if call.item.status == "in_progress":
                call.item.status = "incomplete"
                at: dict[str, Any] = {"output_index": call.index}
                yield self.event("response.output_item.done", item=call.item, **at)
        self.calls = []


def encode_event(event: ResponseEvent) -> bytes:
    return named_event(event.type, msgspec.json.encode(event, enc_hook=str))


def encode_events(events: Iterable[ResponseEvent]) -> bytes:
    return b"".join(map(encode_event, events))
