"""Asking the engine how it is."""

from __future__ import annotations

from vivace.frontend.errors import EngineUnavailable
from vivace.protocol.control import EngineState, FlushCache, GetState, Reply
from vivace.server.context import Context
from vivace.server.errors import HTTPError


async def engine_state(context: Context) -> EngineState:
    """The engine's state; Refusal 503 when it does not answer."""
    reply = await command(context, GetState())
    if reply.state is None:
        raise HTTPError(503, f"the engine gave no state: {reply.message}", retry_after=1.0)
    return reply.state


async def command(context: Context, body: FlushCache | GetState) -> Reply:
    """One control command; Refusal 503 when the engine is down or does not answer in time."""
    context.require_progress()
    try:
        return await context.frontend.control(body, timeout=context.settings.control_timeout)
    except (EngineUnavailable, TimeoutError) as error:
        raise HTTPError(503, f"the engine did not answer: {error}", retry_after=1.0) from None
