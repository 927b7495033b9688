"""GET /v1/models and /v1/models/{model}, which OpenAI's and Anthropic's clients ask alike."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
from aiohttp import web

from vivace.server import model_info
from vivace.server.body import Body
from vivace.server.context import Context
from vivace.server.openai.params import is_served, not_found
from vivace.server.responses import json_response

VERSION = "anthropic-version"
"""The header that says whose client asks: theirs send it always, others never."""


class AnthropicModel(msgspec.Struct, kw_only=True):
    """The served model."""

    id: str
    display_name: str
    created_at: str
    type: str = "model"


class AnthropicModelList(msgspec.Struct, kw_only=True):
    data: list[AnthropicModel]
    first_id: str
    last_id: str
    has_more: bool = False


async def list_models(context: Context, request: web.Request, body: Body) -> web.Response:
    """The one served model."""
    if VERSION not in request.headers:
        return await model_info.list_models(context, request, body)
    card = anthropic_model(context)
    return json_response(AnthropicModelList(data=[card], first_id=card.id, last_id=card.id))


async def show_model(context: Context, request: web.Request, body: Body) -> web.Response:
    """The served model by its name, or 404."""
    if VERSION not in request.headers:
        return await model_info.show_model(context, request, body)
    model = request.match_info["model"]
    if not is_served(context, model):
        raise not_found(context, model)
    return json_response(anthropic_model(context))


def anthropic_model(context: Context) -> AnthropicModel:
    begun = datetime.fromtimestamp(int(context.started), UTC)
    name = context.served.name
    return AnthropicModel(
        id=name, display_name=name, created_at=begun.isoformat().replace("+00:00", "Z")
    )
