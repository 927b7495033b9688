"""Facts about the served model and the state of the server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from aiohttp import web

from vivace.protocol.messages import EngineState
from vivace.protocol.tasks import Generate
from vivace.server.body import Body
from vivace.server.context import Context
from vivace.server.openai.params import is_served, not_found
from vivace.server.openai.schema import ModelCard, ModelList
from vivace.server.responses import json_response
from vivace.version import __version__


async def model_info(context: Context, _request: web.Request, _body: Body) -> web.Response:
    """What is served."""
    served = context.served
    return json_response(
        {
            **model_names(context),
            "is_generation": isinstance(served.task, Generate),
            "preferred_sampling_params": served.defaults or None,
            "weight_version": served.weight_version,
            "has_image_understanding": False,
            "has_audio_understanding": False,
            "chat_template_has_tools": context.syntax.tells_tools,
            "model_type": served.model_type,
            "architectures": list(served.architectures),
            "max_model_len": served.context,
            "vocab_size": served.vocabulary,
        }
    )


async def server_info(context: Context, _request: web.Request, _body: Body) -> web.Response:
    """Every setting (secrets removed), the scheduler's facts, the engine's state, the version."""
    states = await context.engine_states()
    return json_response(
        {
            **context.settings.public,
            **model_names(context),
            **scheduler_facts(context, list(states.values())),
            "internal_states": [
                internal_state(context, state, rank) for rank, state in states.items()
            ],
            "status": context.status,
            "version": __version__,
        }
    )


def model_names(context: Context) -> dict[str, Any]:
    """The names in effect, also where no flag gave them."""
    served = context.served
    return {
        "model_path": served.path,
        "tokenizer_path": served.tokenizer_path,
        "served_model_name": served.name,
    }


def scheduler_facts(context: Context, states: Sequence[EngineState]) -> dict[str, Any]:
    """What sizing decided; of `max_running_requests` as much as was asked for: with dp attention
    engines divide it, others have it each."""
    capacity, asked = context.frontend.capacity, context.settings.public
    facts: dict[str, Any] = {
        "max_total_num_tokens": states[0].total_tokens,
        "max_req_input_len": max(0, context.served.context - 1),
        "context_len": context.served.context,
    }
    if capacity is not None:
        shares = len(states) if asked.get("enable_dp_attention") else 1
        facts["max_running_requests"] = capacity.rows * shares
        facts["page_size"] = capacity.page_size
        facts["available_memory_bytes"] = capacity.available_bytes
        decided = asked.get("rewrites", [])
        facts["rewrites"] = [*decided, *msgspec.to_builtins(capacity.rewrites)]
    return facts


def internal_state(context: Context, state: EngineState, rank: int) -> dict[str, Any]:
    """One data-parallel rank: the engine's state under its own names, and under SGLang's.

    `audit` lists findings of the page audit: empty is right.
    """
    capacity = context.frontend.capacity
    memory = {
        "weight": 0.0,
        "kvcache": 0.0,
        "token_capacity": state.total_tokens,
        "graph": 0.0,
        **state.memory,
    }
    own = msgspec.to_builtins(state)
    for name in ("type", "metrics", "memory"):
        own.pop(name, None)
    return {
        "dp_rank": rank,
        **own,
        "memory_usage": memory,
        "effective_max_running_requests_per_dp": capacity.rows if capacity else None,
        "num_running_reqs": state.running,
        "num_queue_reqs": state.waiting,
        "num_used_tokens": state.used_tokens,
        "max_total_num_tokens": state.total_tokens,
    }


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
