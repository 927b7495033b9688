"""Items of stored responses, by which an input names what was said instead of repeating it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from vivace.frontend.errors import BadRequest
from vivace.frontend.fairness import Work
from vivace.frontend.fields import abbreviate
from vivace.server.apis.response_items import Item
from vivace.server.apis.responses_schema import InputItem
from vivace.server.response_store import FoundItems

UNKNOWN = (
    "no stored response has an item {!r}: send the item itself, as it came (nothing is stored with "
    "store false)"
)


class StoredPart(msgspec.Struct, kw_only=True):
    type: str
    text: str


class StoredItem(msgspec.Struct, kw_only=True):
    """What is read of an item of a stored response: log-probabilities, which are most of it, are
    passed over."""

    id: str
    type: str
    role: str | None = None
    content: list[StoredPart] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    input: str | None = None
    server_label: str | None = None
    output: str | None = None
    error: str | None = None
    approval_request_id: str | None = None
    tools: Any = None


class StoredOutput(msgspec.Struct):
    """What is read of a stored response."""

    output: list[StoredItem]


_RESPONSE = msgspec.json.Decoder(StoredOutput)


def named_items(items: Sequence[InputItem]) -> list[str]:
    """Ids of items of stored responses, as far as the input may mean some."""
    references = (item.id for item in items if item.type == Item.REFERENCE)
    answers = (item.approval_request_id for item in items if item.type == Item.APPROVAL_RESPONSE)
    return [identity for identity in (*references, *answers) if identity]


def resolve_references(stored: FoundItems, items: Sequence[InputItem]) -> Work[list[InputItem]]:
    """The items of an input, with those of the client's stored responses in the places of
    references. BadRequest for one that is not there, or comes twice: an input would be larger than
    the store."""
    found: list[InputItem] = []
    seen: set[str] = set()
    outputs: dict[str, dict[str, InputItem]] = {}
    for number, item in enumerate(items):
        found.append(item)
        if item.type != Item.REFERENCE:
            continue
        identity, field = item.id or "", f"input[{number}].id"
        if identity in seen:
            raise BadRequest(field, "the item is referred to already")
        seen.add(identity)
        response = stored.places.get(identity)
        if response is None:
            raise BadRequest(field, UNKNOWN.format(abbreviate(identity)))
        if response not in outputs:
            outputs[response] = read_output(stored.bodies[response])
            yield
        found[-1] = outputs[response][identity]
    return found


def read_output(body: bytes) -> dict[str, InputItem]:
    """The items of a stored response, by their ids."""
    items = _RESPONSE.decode(body).output
    return {item.id: msgspec.convert(item, InputItem, from_attributes=True) for item in items}
