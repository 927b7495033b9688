"""From prompts to requests, and from requests to whole answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from vivace.frontend.errors import BadRequest
from vivace.frontend.piece import Piece
from vivace.frontend.validation import build_logprobs, build_sampling, check_prompt, samples
from vivace.protocol.output import FINISH_ABORT, Finish
from vivace.protocol.request import Request
from vivace.server.context import Context
from vivace.server.errors import Refusal, error_body
from vivace.server.sse import event


@dataclass(frozen=True, kw_only=True)
class Ask:
    """One prompt and what is asked of it.

    `sampling` has SGLang's names; `logprobs` are keywords of `build_logprobs`; `sampling_field`
    and `prompt_field` say where in the request they stand, for error messages.
    """

    tokens: list[int]
    sampling: Mapping[str, Any] | None
    sampling_field: str = "sampling_params"
    prompt_field: str = "prompt"
    rid: str | None = None
    logprobs: Mapping[str, Any] = field(default_factory=dict)
    priority: int | None = None
    cache_key: str = ""


def expand(context: Context, asks: list[Ask], *, stream: bool, arrival: float) -> list[Request]:
    """n requests per prompt, prompt by prompt; BadRequest when they are too many."""
    limit = context.settings.max_batch
    requests: list[Request] = []
    for ask in asks:
        requests += requests_of(context, ask, stream=stream, arrival=arrival)
        if len(requests) > limit:
            raise BadRequest("n", f"prompts times n must be at most {limit} in one request")
    if len({request.rid for request in requests}) < len(requests):
        raise BadRequest("rid", "every prompt of a batch needs an id of its own")
    return requests


def requests_of(context: Context, ask: Ask, *, stream: bool, arrival: float) -> list[Request]:
    """The n requests of one prompt."""
    served = context.served
    room = 0 if (ask.sampling or {}).get("max_new_tokens", 1) == 0 else 1
    tokens = check_prompt(ask.tokens, served, field=ask.prompt_field, room=room)
    sampling, n = build_sampling(ask.sampling, served, len(tokens), field_prefix=ask.sampling_field)
    logprobs = build_logprobs(served, len(tokens), **ask.logprobs)
    return [
        context.frontend.request(
            tokens,
            one,
            rid=ask.rid if n == 1 or ask.rid is None else f"{ask.rid}-{index}",
            logprobs=logprobs,
            priority=ask.priority,
            cache_key=ask.cache_key,
            stream=stream,
            arrival=arrival,
        )
        for index, one in enumerate(samples(sampling, n))
    ]


def cache_key(extra_key: str | None, cache_salt: str | None) -> str:
    """One key of the two fields that isolate the prefix cache; different pairs never collide."""
    if not extra_key and not cache_salt:
        return ""
    salt = cache_salt or ""
    return f"{len(salt)}:{salt}{extra_key or ''}"


def refusal_of(finish: Finish | None) -> Refusal | None:
    """The HTTP error a finish stands for; None for a normal end (a client's abort included)."""
    if finish is None or finish.type != FINISH_ABORT or finish.status is None:
        return None
    message = finish.message or "the request was aborted"
    return Refusal(finish.status, message, retry_after=finish.retry_after)


def failure(finish: Finish | None) -> bytes | None:
    """The event of a request that failed after its stream had begun; None for a normal end."""
    refusal = refusal_of(finish)
    if refusal is None:
        return None
    body = error_body(refusal.status, refusal.message, code=refusal.code)
    return event(msgspec.json.encode(body))


class Gathering:
    """Collects the pieces of several requests; done when all ended or one failed."""

    def __init__(self, count: int) -> None:
        self.pieces: list[list[Piece]] = [[] for _ in range(count)]
        self._open = count
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def sink(self, index: int) -> GatheringSink:
        return GatheringSink(self, index)

    def take(self, index: int, piece: Piece) -> None:
        """Book one piece."""
        self.pieces[index].append(piece)
        if piece.finish is None or self.done.done():
            return
        self._open -= 1
        refusal = refusal_of(piece.finish)
        if refusal is not None:
            self.done.set_exception(refusal)
        elif not self._open:
            self.done.set_result(None)


class GatheringSink:
    """The frontend's Sink of one request of a Gathering."""

    def __init__(self, gathering: Gathering, index: int) -> None:
        self._gathering = gathering
        self._index = index

    def push(self, piece: Piece) -> None:
        self._gathering.take(self._index, piece)


def join(pieces: list[Piece]) -> Piece:
    """All pieces of a request as one."""
    if len(pieces) == 1:
        return pieces[0]
    return msgspec.structs.replace(
        pieces[-1],
        text="".join(piece.text for piece in pieces),
        tokens=[token for piece in pieces for token in piece.tokens],
        logprobs=_chain([piece.logprobs for piece in pieces]),
        prompt_logprobs=_chain([piece.prompt_logprobs for piece in pieces]),
    )


def _chain(lists: list[list | None]) -> list | None:
    present = [items for items in lists if items is not None]
    return [item for items in present for item in items] if present else None


async def complete(
    context: Context, requests: list[Request], *, quiet: bool = False
) -> list[Piece]:
    """Run requests to their ends; Refusal when one fails, and the others are cancelled then."""
    gathering = Gathering(len(requests))
    try:
        for index, request in enumerate(requests):
            context.frontend.start(request, gathering.sink(index))
        await gathering.done
    except BaseException:
        context.frontend.cancel([request.key for request in requests])
        raise
    answers = [join(pieces) for pieces in gathering.pieces]
    if not quiet:
        now = time.monotonic()
        for request, answer in zip(requests, answers, strict=True):
            context.request_log.finished(request, answer, now - request.arrival)
    return answers
