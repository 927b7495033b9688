"""GET /v1/models and /v1/models/{model}."""

from __future__ import annotations

from aiohttp import web

from vivace.server.body import Body
from vivace.server.context import Context
from vivace.server.errors import json_response
from vivace.server.openai.params import is_served, not_found
from vivace.server.openai.schema import ModelCard, ModelList


async def list_models(context: Context, _request: web.Request, _body: Body) -> web.Response:
    """The one served model."""
    return json_response(ModelList(data=[card(context)]))


async def show_model(context: Context, request: web.Request, _body: Body) -> web.Response:
    """The served model by its name, or 404."""
    model = request.match_info["model"]
    if not is_served(context, model):
        raise not_found(context, model)
    return json_response(card(context))


def card(context: Context) -> ModelCard:
    served = context.served
    return ModelCard(
        id=served.name,
        created=int(context.started),
        root=served.path,
        max_model_len=served.context,
    )
