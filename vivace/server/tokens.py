"""/tokenize and /detokenize."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import msgspec
from aiohttp import web

from vivace.frontend.errors import BadRequest
from vivace.frontend.fairness import Work, run_now
from vivace.frontend.fields import refuse_unsupported
from vivace.frontend.tokenizer import Tokenizer
from vivace.frontend.tokenizer_pool import text_named
from vivace.requests.limits import PROMPTS
from vivace.requests.prompts import entry_type
from vivace.requests.tools import offered_tools
from vivace.server.body import Body, BodyReader
from vivace.server.context import Context
from vivace.server.openai.chat import chat_text
from vivace.server.openai.params import check_model
from vivace.server.responses import encode_list, json_response
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
    "tools",
)

TOKENIZE = BodyReader(TokenizeRequest)
DETOKENIZE = BodyReader(DetokenizeRequest)

RUN = 4096
"""Ids that are worked on without a pause."""
MAX_IDS = 1 << 19
"""In the answer of one /tokenize."""
MAX_CHARACTERS = 16 << 20
"""In the answer of one /detokenize."""


async def tokenize(context: Context, _request: web.Request, body: Body) -> web.Response:
    """Ids of a prompt, of many prompts, or of a conversation."""
    params = await TOKENIZE.read(context, body)
    check_model(context, params.model)
    if (params.prompt is None) == (params.messages is None):
        raise BadRequest("prompt", "give exactly one of prompt and messages")
    if params.prompt is not None:
        refuse_unsupported(params, dict.fromkeys(OF_CONVERSATIONS, "goes with messages only"))
    context.tokenizer("prompt")
    if params.prompt is None:
        ids = await chat_ids(context, params)
        return answer(await context.slicer.run(encode_list(ids, RUN)), len(ids), context)
    several = isinstance(params.prompt, list)
    texts = params.prompt if isinstance(params.prompt, list) else [params.prompt]
    with text_named("prompt"):
        rows, counts = await encode_texts(context, texts, params.add_special_tokens)
    if several:
        return answer(msgspec.Raw(b"[%b]" % b",".join(rows)), counts, context)
    return answer(msgspec.Raw(rows[0]), counts[0], context)


async def chat_ids(context: Context, params: TokenizeRequest) -> list[int]:
    """Ids of a conversation."""
    opens = params.add_generation_prompt
    text = await chat_text(
        context,
        params.messages or [],
        params,
        offered_tools(params),
        add_generation_prompt=True if opens is None else opens,
    )
    with text_named("messages"):
        return await context.frontend.encode(text, add_special_tokens=False)


async def encode_texts(
    context: Context, texts: list[str], special: bool
) -> tuple[list[bytes], list[int]]:
    """The ids of every text as JSON, and their number; as JSON they need the least memory."""
    rows: list[bytes] = []
    counts: list[int] = []
    room = MAX_IDS
    async for group in context.frontend.encode_all(texts, special, max_tokens=MAX_IDS):
        for ids in group:
            room -= len(ids)
            if room < 0:
                raise BadRequest("prompt", f"has more than {MAX_IDS} tokens; send it in parts")
            counts.append(len(ids))
            rows.append(bytes(await context.slicer.run(encode_list(ids, RUN))))
    return rows, counts


def answer(tokens: msgspec.Raw, count: int | list[int], context: Context) -> web.Response:
    """`tokens` as JSON."""
    longest = context.served.context
    return json_response(
        TokenizeResponse(tokens=cast(Any, tokens), count=count, max_model_len=longest)
    )


async def detokenize(context: Context, _request: web.Request, body: Body) -> web.Response:
    """Text of ids, or texts of lists of ids."""
    params = await DETOKENIZE.read(context, body)
    check_model(context, params.model)
    tokenizer = context.tokenizer("tokens")
    kind = entry_type(params.tokens, PROMPTS + 1)
    if kind is list and len(params.tokens) > PROMPTS:
        count = len(params.tokens)
        raise BadRequest("tokens", f"has {count} entries; at most {PROMPTS} are allowed")
    work = decode_rows(tokenizer, params, context.served.vocabulary, nested=kind is list)
    if tokenizer.decodes_in_runs:
        texts = await context.slicer.run(work)
    else:
        texts = await asyncio.to_thread(run_now, work)
    if kind is not list:
        return json_response(DetokenizeResponse(text=texts[0]))
    shown = await context.slicer.run(encode_list(texts))
    return json_response(DetokenizeResponse(text=cast(Any, shown)))


def decode_rows(
    tokenizer: Tokenizer, params: DetokenizeRequest, vocabulary: int, *, nested: bool
) -> Work[list[str]]:
    """The text of every row; BadRequest for what is no id, and when the texts grow too large."""
    rows: list[Any] = params.tokens if nested else [params.tokens]
    texts: list[str] = []
    room = MAX_CHARACTERS
    for number, row in enumerate(rows):
        field = f"tokens[{number}]" if nested else "tokens"
        if not isinstance(row, list):
            raise BadRequest("tokens", "must be token ids, or lists of token ids, not both")
        for start in range(0, len(row), RUN):
            checked_ids(row[start : start + RUN], vocabulary, field, start)
            yield
        parts: list[str] = []
        for part in tokenizer.decode_in_runs(row, RUN, params.skip_special_tokens):
            parts.append(part)
            room -= len(part)
            if room < 0:
                limit = f"the text has more than {MAX_CHARACTERS} characters"
                raise BadRequest("tokens", f"{limit}; send the ids in parts")
            yield
        texts.append("".join(parts))
    return texts


def checked_ids(ids: list[Any], vocabulary: int, field: str, start: int = 0) -> list[int]:
    """The ids if they are all inside the vocabulary; BadRequest names the first that is not, as
    one of a list that begins `start` entries earlier."""
    if ids and (set(map(type, ids)) != {int} or min(ids) < 0 or max(ids) >= vocabulary):
        for position, token in enumerate(ids, start):
            if type(token) is not int or not 0 <= token < vocabulary:
                raise BadRequest(
                    f"{field}[{position}]",
                    f"must be a token id of the vocabulary (0 to {vocabulary - 1})",
                )
    return ids
