"""/tokenize and /detokenize."""

from __future__ import annotations

import asyncio

from aiohttp import web

from vivace.frontend.errors import BadRequest
from vivace.server.body import Reader, refuse_unsupported
from vivace.server.chat_prompt import chat_text
from vivace.server.context import Context
from vivace.server.errors import json_response
from vivace.server.ids import checked_ids
from vivace.server.openai.asking import check_model, check_tools
from vivace.server.schema import (
    DetokenizeRequest,
    DetokenizeResponse,
    TokenizeRequest,
    TokenizeResponse,
)

OF_CONVERSATIONS = (
    "add_generation_prompt",
    "continue_final_message",
    "reasoning_effort",
    "chat_template_kwargs",
)

TOKENIZE = Reader(TokenizeRequest)
DETOKENIZE = Reader(DetokenizeRequest)


async def tokenize(context: Context, _request: web.Request, body: bytes) -> web.Response:
    """Ids of a prompt, of many prompts, or of a conversation."""
    asked = TOKENIZE.read(context, body)
    check_model(context, asked.model)
    check_tools(asked)
    if (asked.prompt is None) == (asked.messages is None):
        raise BadRequest("prompt", "give exactly one of prompt and messages")
    if asked.prompt is not None:
        refuse_unsupported(asked, dict.fromkeys(OF_CONVERSATIONS, "goes with messages only"))
    context.tokenizer("prompt")
    if isinstance(asked.prompt, list):
        found = await asyncio.gather(*(encode(context, asked, text) for text in asked.prompt))
        return answer(context, list(found), [len(ids) for ids in found])
    if asked.prompt is not None:
        ids = await encode(context, asked, asked.prompt)
    else:
        opens = asked.add_generation_prompt
        text = chat_text(
            context,
            asked.messages or [],
            asked,
            add_generation_prompt=True if opens is None else opens,
        )
        ids = await context.frontend.encode(text, add_special_tokens=False)
    return answer(context, list(ids), len(ids))


async def encode(context: Context, asked: TokenizeRequest, text: str) -> list[int]:
    return await context.frontend.encode(text, add_special_tokens=asked.add_special_tokens)


def answer(
    context: Context, tokens: list[int] | list[list[int]], count: int | list[int]
) -> web.Response:
    return json_response(
        TokenizeResponse(
            tokens=list(tokens),
            count=count,
            max_model_len=context.served.context,
        )
    )


async def detokenize(context: Context, _request: web.Request, body: bytes) -> web.Response:
    """Text of ids, or texts of lists of ids; decoded in a thread, so streams do not wait."""
    asked = DETOKENIZE.read(context, body)
    check_model(context, asked.model)
    tokenizer = context.tokenizer("tokens")
    tokens = asked.tokens
    nested = [row for row in tokens if isinstance(row, list)]
    if nested and len(nested) != len(tokens):
        raise BadRequest("tokens", "must be token ids, or lists of token ids, not both")
    if not nested:
        flat = checked_ids(tokens, context.served.vocabulary, "tokens")
        text = await asyncio.to_thread(tokenizer.decode, flat, asked.skip_special_tokens)
        return json_response(DetokenizeResponse(text=text))
    rows = [
        checked_ids(row, context.served.vocabulary, f"tokens[{i}]") for i, row in enumerate(nested)
    ]

    def decode_rows() -> list[str]:
        return [tokenizer.decode(row, asked.skip_special_tokens) for row in rows]

    return json_response(DetokenizeResponse(text=await asyncio.to_thread(decode_rows)))
