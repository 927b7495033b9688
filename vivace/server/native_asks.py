"""From a /generate body to asks: text or ids, single or in a batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vivace.frontend.errors import BadRequest
from vivace.server.context import Context
from vivace.server.fields import refuse_unsupported
from vivace.server.ids import kind_of_entries
from vivace.server.prompts import PromptInput, asks_of
from vivace.server.schema import HARMLESS, REFUSED, GenerateRequest


async def read_asks(context: Context, asked: GenerateRequest) -> tuple[Iterator[PromptInput], bool]:
    """(one ask per prompt, whether the prompts came as a list)."""
    refuse_unsupported(asked, REFUSED, HARMLESS)
    prompts, batch, field = await read_prompts(context, asked)
    return asks_of(asked, prompts, batch, field), batch


async def read_prompts(
    context: Context, asked: GenerateRequest
) -> tuple[list[list[int]], bool, str]:
    """(ids of every prompt, whether they came as a list, the field they came in)."""
    if (asked.text is None) == (asked.input_ids is None):
        raise BadRequest("text", "give exactly one of text and input_ids")
    if asked.text is not None:
        context.tokenizer("text")
        texts = asked.text if isinstance(asked.text, list) else [asked.text]
        check_count(context, texts, "text")
        found = [ids async for group in context.frontend.encode_all(texts) for ids in group]
        return found, isinstance(asked.text, list), "text"
    ids: list[Any] = asked.input_ids or []
    kind = kind_of_entries(ids, context.served.context + 1)
    if kind is int or not ids:
        return [ids], False, "input_ids"
    if kind is not list:
        raise BadRequest("input_ids", "must be token ids, or lists of token ids, not both")
    check_count(context, ids, "input_ids")
    return ids, True, "input_ids"


def check_count(context: Context, prompts: list[Any], field: str) -> None:
    most = context.settings.max_batch
    if not prompts:
        raise BadRequest(field, "must not be empty")
    if len(prompts) > most:
        raise BadRequest(field, f"holds {len(prompts)} prompts; at most {most} in one request")
