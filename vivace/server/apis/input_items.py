"""What a response was asked with: kept as items, and listed."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

import msgspec
from aiohttp import web

from vivace.frontend.errors import BadRequest
from vivace.frontend.fairness import Work
from vivace.frontend.fields import abbreviate
from vivace.server.access import CLIENT
from vivace.server.apis.response_items import PREFIXES, Item
from vivace.server.apis.responses_schema import InputItem, ResponsesRequest
from vivace.server.body import Body
from vivace.server.context import Context
from vivace.server.responses import json_response
from vivace.server.store_messages import Get

MOST = 100
USUAL = "20"
ORDERS = ("asc", "desc")


class InputItemList(msgspec.Struct, kw_only=True):
    """Answer of /v1/responses/{response_id}/input_items: a page."""

    data: list[Any]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: str = "list"


class NamedItem(msgspec.Struct):
    """What is read of an item."""

    id: str


def encode_input(params: ResponsesRequest) -> Work[bytes]:
    """The input as a JSON list of items, each with an id."""
    items = params.input
    if isinstance(items, str):
        items = [InputItem(role="user", content=items)]
    found: list[bytes] = []
    for item in items:
        found.append(msgspec.json.encode(as_listed(item)))
        yield
    return b"[" + b",".join(found) + b"]"


def as_listed(item: InputItem) -> dict[str, Any]:
    fields = {k: v for k, v in msgspec.to_builtins(item).items() if v is not None}
    kind = fields.setdefault("type", Item.MESSAGE)
    if "id" not in fields:
        prefix = PREFIXES[Item(kind)] if kind in PREFIXES else "item"
        fields["id"] = f"{prefix}_{secrets.token_hex(12)}"
    if kind == Item.MESSAGE and isinstance(item.content, str):
        part = "output_text" if item.role == "assistant" else "input_text"
        fields["content"] = [{"type": part, "text": item.content}]
    return fields


async def list_input(context: Context, http: web.Request, _body: Body) -> web.Response:
    """What a stored response was asked with, the last item first unless `order` is asc; or 404."""
    most, order = read_limit(http.query), http.query.get("order", "desc")
    if order not in ORDERS:
        raise BadRequest("order", f"must be one of {', '.join(ORDERS)}")
    entry = await context.responses.ask(Get(http[CLIENT], http.match_info["response_id"]))
    items = msgspec.json.decode(entry.inputs or b"[]", type=list[msgspec.Raw])
    named = [(msgspec.json.decode(item, type=NamedItem).id, item) for item in items]
    if order == "desc":
        named.reverse()
    start = 0
    if (after := http.query.get("after")) is not None:
        start = 1 + next((i for i, (name, _) in enumerate(named) if name == after), len(named))
        if start > len(named):
            raise BadRequest("after", f"the input has no item {abbreviate(after)!r}")
    page = named[start : start + most]
    answer = InputItemList(
        data=[item for _, item in page],
        first_id=page[0][0] if page else None,
        last_id=page[-1][0] if page else None,
        has_more=start + most < len(named),
    )
    return json_response(answer)


def read_limit(query: Mapping[str, str]) -> int:
    text = query.get("limit", USUAL)
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and 1 <= int(text) <= MOST):
        raise BadRequest("limit", f"must be a number between 1 and {MOST}")
    return int(text)
