"""Calls that tool servers make: as messages of a conversation, and what an input says of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from vivace.frontend.errors import BadRequest
from vivace.frontend.fairness import Work
from vivace.frontend.fields import abbreviate
from vivace.parsers.answer import new_call_id
from vivace.requests.schema import FunctionCall, Message, ToolCall
from vivace.server.apis.chat_messages import needed
from vivace.server.apis.item_references import read_output
from vivace.server.apis.response_items import Item
from vivace.server.apis.responses_schema import InputItem
from vivace.server.apis.server_tools import ToolOffer
from vivace.server.response_store import FoundItems

NOT_APPROVED = "The user did not approve this call."
FAILED = "The call failed: "


class CallItem(Protocol):
    """An item that tells of a call, said or sent."""

    name: str | None
    arguments: str | None
    error: str | None
    server_label: str | None

    @property
    def output(self) -> Any: ...


@dataclass(frozen=True)
class ApprovedCall:
    """A call that the client wants to be made; `request`: the item that asked for it."""

    label: str
    name: str
    arguments: str
    request: str
    call_id: str


@dataclass
class ServerItems:
    """What an input says of tool servers: `listed`, those whose tools the client knows."""

    items: list[InputItem]
    listed: frozenset[str] = frozenset()
    approved: list[ApprovedCall] = field(default_factory=list[ApprovedCall])


def call_messages(item: CallItem, identity: str, offer: ToolOffer) -> tuple[ToolCall, Message]:
    """The call by the name that the model knows, and the message that says what came of it.
    Arguments that are no JSON object were never sent: templates could not show them."""
    name = item.name or ""
    name = offer.known_name(item.server_label or "", name) or name
    shown = item.arguments if read_object(item.arguments) is not None else "{}"
    call = FunctionCall(name=name, arguments=shown or "{}")
    found = item.output if item.error is None else FAILED + item.error
    result = Message(role="tool", content=found or "", tool_call_id=identity)
    return ToolCall(function=call, id=identity, type="function"), result


def read_object(text: str | None) -> dict[str, Any] | None:
    """The object that a call's arguments are, {} without any; None where they are none."""
    try:
        found = msgspec.json.decode(text or "{}")
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def read_server_items(stored: FoundItems, items: Sequence[InputItem]) -> Work[ServerItems]:
    """The items of an input, with calls that were not approved in the places of the words that say
    so; what was made of those that were stands in the input already, or is to be made. BadRequest
    for an approval of nothing."""
    found = ServerItems(list(items))
    known: dict[str, InputItem] = {}
    answered: set[str] = set()
    made = {item.approval_request_id for item in items if item.type == Item.SERVER_CALL}
    for number, item in enumerate(items):
        place = f"input[{number}]"
        if item.type == Item.SERVER_TOOLS and item.server_label:
            found.listed |= {item.server_label}
        elif item.type == Item.APPROVAL_REQUEST and item.id:
            known[item.id] = item
        elif item.type == Item.APPROVAL_RESPONSE:
            identity = needed(item.approval_request_id, f"{place}.approval_request_id")
            if item.approve is None:
                raise BadRequest(f"{place}.approve", "is required")
            if identity in answered:
                raise BadRequest(f"{place}.approval_request_id", "it is answered already")
            answered.add(identity)
            asked = known.get(identity) or stored_request(stored, identity, place)
            if identity not in made:
                add_answer(found, number, asked, item)
            yield
    return found


def stored_request(stored: FoundItems, identity: str, place: str) -> InputItem:
    """The request for approval, of a stored response. BadRequest."""
    response = stored.places.get(identity)
    found = None if response is None else read_output(stored.bodies[response])[identity]
    if found is None or found.type != Item.APPROVAL_REQUEST:
        reason = f"no request {abbreviate(identity)!r} is in the input or in a stored response"
        raise BadRequest(f"{place}.approval_request_id", reason)
    return found


def add_answer(found: ServerItems, number: int, asked: InputItem, answer: InputItem) -> None:
    place = f"input[{number}]"
    name = needed(asked.name, f"{place}.name")
    label = needed(asked.server_label, f"{place}.server_label")
    identity = asked.call_id or new_call_id()
    if answer.approve:
        call = ApprovedCall(label, name, asked.arguments or "", asked.id or "", identity)
        found.approved.append(call)
        return
    refusal = NOT_APPROVED + (f" {answer.reason}" if answer.reason else "")
    found.items[number] = InputItem(
        type=Item.SERVER_CALL,
        name=name,
        arguments=asked.arguments,
        call_id=identity,
        output=refusal,
        server_label=label,
    )
