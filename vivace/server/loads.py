"""GET /v1/loads: how busy each data-parallel rank is, for routers."""

from __future__ import annotations

import time
from typing import Any

from aiohttp import web

from vivace.frontend.errors import BadRequest
from vivace.protocol.control import EngineState
from vivace.server.body import Body
from vivace.server.context import Context
from vivace.server.engine_commands import engine_state
from vivace.server.errors import json_response

SECTIONS = ("core", "memory", "spec", "lora", "disagg", "queues", "all")


async def loads(context: Context, request: web.Request, _body: Body) -> web.Response:
    """Query: dp_rank, include (comma-separated sections), format (json)."""
    check_query(request)
    state = await engine_state(context)
    load = load_of(context, state)
    return json_response(
        {
            "timestamp": time.time(),
            "dp_rank_count": 1,
            "loads": [load],
            "aggregate": {
                "total_running_reqs": state.running,
                "total_waiting_reqs": state.waiting,
                "total_reqs": state.running + state.waiting,
                "avg_token_usage": load["token_usage"],
                "avg_throughput": state.last_gen_throughput,
            },
        }
    )


def check_query(request: web.Request) -> None:
    query = request.query
    if query.get("dp_rank", "0") != "0":
        raise BadRequest("dp_rank", "there is one data-parallel rank, 0")
    if query.get("format", "json") != "json":
        raise BadRequest("format", "only json; Prometheus text is at /metrics")
    for section in filter(None, query.get("include", "").split(",")):
        if section not in SECTIONS:
            raise BadRequest("include", f"sections are {', '.join(SECTIONS)}")


def load_of(context: Context, state: EngineState) -> dict[str, Any]:
    usage = state.used_tokens / state.total_tokens if state.total_tokens else 0.0
    capacity = context.frontend.capacity
    return {
        "dp_rank": 0,
        "num_running_reqs": state.running,
        "num_waiting_reqs": state.waiting,
        "num_total_reqs": state.running + state.waiting,
        "num_used_tokens": state.used_tokens,
        "max_total_num_tokens": state.total_tokens,
        "token_usage": usage,
        "gen_throughput": state.last_gen_throughput,
        "max_running_requests": capacity.rows if capacity else None,
        "memory": state.memory,
    }
