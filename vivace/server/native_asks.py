"""From a /generate body to asks: text or ids, single or batch, one setting or one per prompt."""

from __future__ import annotations

import asyncio
from typing import Any

from vivace.frontend.errors import BadRequest
from vivace.server.body import refuse_unsupported
from vivace.server.context import Context
from vivace.server.jobs import Ask, cache_key
from vivace.server.schema import REFUSED, GenerateRequest


async def read_asks(context: Context, asked: GenerateRequest) -> tuple[list[Ask], bool]:
    """(one ask per prompt, whether the prompts came as a list)."""
    refuse_unsupported(asked, REFUSED)
    prompts, batch, field = await read_prompts(context, asked)
    count = len(prompts)
    asks = [
        ask(asked, prompts[i], i, count, f"{field}[{i}]" if batch else field) for i in range(count)
    ]
    return asks, batch


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
        found = await asyncio.gather(*(context.frontend.encode(text) for text in texts))
        return list(found), isinstance(asked.text, list), "text"
    ids: list[Any] = asked.input_ids or []
    if all(isinstance(token, int) for token in ids):
        return [ids], False, "input_ids"
    if not all(isinstance(row, list) for row in ids):
        raise BadRequest("input_ids", "must be token ids, or lists of token ids, not both")
    check_count(context, ids, "input_ids")
    return ids, True, "input_ids"


def check_count(context: Context, prompts: list[Any], field: str) -> None:
    most = context.settings.max_batch
    if not prompts:
        raise BadRequest(field, "must not be empty")
    if len(prompts) > most:
        raise BadRequest(field, f"holds {len(prompts)} prompts; at most {most} in one request")


def ask(asked: GenerateRequest, tokens: list[int], index: int, count: int, field: str) -> Ask:
    """The ask of one prompt, with its share of every per-prompt list."""

    def own(name: str) -> Any:
        return share(name, getattr(asked, name), index, count)

    several = isinstance(asked.sampling_params, list)
    rid = own("rid")
    return Ask(
        tokens=tokens,
        sampling=own("sampling_params"),
        sampling_field=f"sampling_params[{index}]" if several else "sampling_params",
        prompt_field=field,
        rid=rid if count == 1 or isinstance(asked.rid, list) or rid is None else f"{rid}-{index}",
        logprobs={
            "return_logprob": own("return_logprob"),
            "logprob_start_len": own("logprob_start_len"),
            "top_logprobs_num": own("top_logprobs_num"),
            "token_ids_logprob": chosen_ids(asked.token_ids_logprob, index, count),
        },
        priority=asked.priority,
        cache_key=cache_key(own("extra_key"), own("cache_salt")),
    )


def share(name: str, value: Any, index: int, count: int) -> Any:
    """The index-th entry of a list with one entry per prompt, or the value all prompts share."""
    if not isinstance(value, list):
        return value
    if len(value) != count:
        raise BadRequest(name, f"has {len(value)} entries for {count} prompts")
    return value[index]


def chosen_ids(value: list[Any] | None, index: int, count: int) -> list[int] | None:
    """`token_ids_logprob`: one list of ids for all prompts, or one (or null) per prompt."""
    if value is None or all(isinstance(token, int) for token in value):
        return value
    own = share("token_ids_logprob", value, index, count)
    if own is not None and not isinstance(own, list):
        raise BadRequest("token_ids_logprob", "must be ids, or one list of ids per prompt")
    return own
