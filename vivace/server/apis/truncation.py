"""Conversations that lose their beginning where they are longer than what the model reads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from vivace.frontend.errors import CONTEXT_EXCEEDED, BadRequest, OverLimit
from vivace.frontend.tokenizer_pool import text_named
from vivace.requests.schema import Message
from vivace.requests.tools import OfferedTools, offered_tools
from vivace.server.apis.chat_messages import ChatMessages
from vivace.server.context import Context
from vivace.server.openai import chat
from vivace.server.openai.schema import ChatRequest

INSTRUCTIONS = ("system", "developer")
ANSWER_SHARE = 8
"""The part of the context that is left to an answer, unless its limit is lower, where something is
left out."""


async def truncate(context: Context, request: ChatRequest, found: ChatMessages) -> None:
    """Leave out the oldest turns, as few as it takes. Instructions in front stay, and the last turn
    of the user with all behind it: if that is too long, the request is refused as any other."""
    chat.check(context, request)
    offered = offered_tools(request)
    size = context.served.context
    if await fits(context, request, found.messages, offered, size - 1):
        return
    kept = leading_instructions(found.messages)
    starts = [i for i, one in enumerate(found.messages) if one.role == "user" and i > kept]
    share = max(size // ANSWER_SHARE, 1)
    room = size - min(request.max_completion_tokens or share, share)

    async def last_fit(turns: int) -> bool:
        messages = without(found.messages, kept, starts[-turns])
        return await fits(context, request, messages, offered, room)

    if starts:
        first = starts[-await most_turns(last_fit, len(starts))]
        found.messages[:] = without(found.messages, kept, first)
        found.places[:] = found.places[:kept] + found.places[first:]


async def most_turns(last_fit: Callable[[int], Awaitable[bool]], turns: int) -> int:
    """How many of the last ones fit; one is there anyway. Few are tried first: what is tried costs
    what the context can hold then, however long the conversation is."""
    low, high = 1, 2
    while high <= turns and await last_fit(high):
        low, high = high, 2 * high
    high = min(high, turns + 1)
    while high - low > 1:
        middle = (low + high) // 2
        if await last_fit(middle):
            low = middle
        else:
            high = middle
    return low


async def fits(
    context: Context,
    request: ChatRequest,
    messages: list[Message],
    offered: OfferedTools,
    room: int,
) -> bool:
    """Of what is far too long nobody counts the tokens, or renders it to its end."""
    try:
        return await prompt_tokens(context, request, messages, offered) <= room
    except OverLimit:
        return False
    except BadRequest as error:
        if error.code != CONTEXT_EXCEEDED:
            raise
        return False


def leading_instructions(messages: list[Message]) -> int:
    return next(
        (i for i, one in enumerate(messages) if one.role not in INSTRUCTIONS), len(messages)
    )


def without(messages: list[Message], start: int, end: int) -> list[Message]:
    return messages[:start] + messages[end:]


async def prompt_tokens(
    context: Context, request: ChatRequest, messages: list[Message], offered: OfferedTools
) -> int:
    text = await chat.chat_text(context, messages, request, offered)
    with text_named("messages"):
        return len(await context.frontend.encode(text, add_special_tokens=False))
