"""POST /v1/completions."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import chain

from aiohttp import web
from msgspec import Raw

from vivace.frontend.errors import BadRequest
from vivace.frontend.fields import refuse_unsupported
from vivace.frontend.pace import Work
from vivace.frontend.request_output import RequestOutput
from vivace.frontend.tokenizer import Tokenizer
from vivace.protocol.request import Request
from vivace.requests.prompts import kind_of_entries, new_id
from vivace.server.access import CLIENT
from vivace.server.body import Body, Reader
from vivace.server.collect import PromptInput, expand
from vivace.server.context import Context
from vivace.server.openai.logprobs import encoded_completion_logprobs
from vivace.server.openai.params import (
    MOST_LOGPROBS,
    cache_key_of,
    check_request,
    openai_names,
    raw_sampling,
    request_id,
)
from vivace.server.openai.response import AnswerFormat, CompletionChunks, add_ids, answer
from vivace.server.openai.schema import (
    COMPLETION_REFUSED,
    CompletionAnswer,
    CompletionChoice,
    CompletionRequest,
)

READER = Reader(CompletionRequest)


@dataclass(frozen=True)
class Prompt:
    """`text` is None when the prompt came as ids."""

    tokens: list[int]
    text: str | None


async def completions(context: Context, http: web.Request, body: Body) -> web.StreamResponse:
    """Complete one or many prompts, n times each."""
    arrival = time.monotonic()
    asked = await READER.read(context, body)
    check(context, asked)
    tokenizer = context.tokenizer("prompt")
    prompts = await read_prompts(context, asked.prompt)
    answer_id = new_id("cmpl")
    with openai_names():
        asks = (ask(asked, prompts, i, answer_id) for i in range(len(prompts)))
        requests = await expand(
            context, asks, stream=bool(asked.stream), arrival=arrival, client=http[CLIENT]
        )
    body.release()
    context.request_log.received(http.path, requests, asked)
    samples = len(requests) // len(prompts)
    rid = asked.rid if isinstance(asked.rid, str) else answer_id
    echoes = await context.pace.run(echo_texts(asked, prompts, samples, tokenizer))
    form = AnswerFormat(
        kind="text_completion",
        logprobs=asked.logprobs is not None,
        chunks=lambda shape, i: CompletionChunks(shape, i, echoes[i], bool(asked.echo)),
        choice=lambda i, piece: choice(asked, i, piece, echoes[i], requests[i]),
        details=lambda piece: details(asked, piece, tokenizer),
        answer=CompletionAnswer,
    )
    return await answer(
        context, http, asked, requests, form, rid=rid, samples=samples, tokenizer=tokenizer
    )


def check(context: Context, asked: CompletionRequest) -> None:
    """Refuse what this endpoint cannot do."""
    check_request(context, asked)
    refuse_unsupported(asked, COMPLETION_REFUSED)
    if asked.best_of is not None and asked.best_of != (asked.n or 1):
        raise BadRequest("best_of", "must be equal to n, or left out")
    if asked.logprobs is not None and not 0 <= asked.logprobs <= MOST_LOGPROBS:
        raise BadRequest("logprobs", f"must be between 0 and {MOST_LOGPROBS}")


async def read_prompts(context: Context, prompt: str | list) -> list[Prompt]:
    """One Prompt per prompt, in order; BadRequest when the list mixes kinds or is empty."""
    if isinstance(prompt, str):
        return [Prompt(await context.frontend.encode(prompt), prompt)]
    if not prompt:
        raise BadRequest("prompt", "must not be empty")
    most = context.settings.max_batch
    kind = kind_of_entries(prompt, max(most, context.served.context) + 1)
    if kind is int:
        return [Prompt(prompt, None)]
    if len(prompt) > most:
        raise BadRequest("prompt", f"has {len(prompt)} entries; at most {most} are allowed")
    if kind is str:
        texts = [str(text) for text in prompt]
        found = [ids async for group in context.frontend.encode_all(texts) for ids in group]
        return [Prompt(ids, text) for ids, text in zip(found, texts, strict=True)]
    if kind is list:
        return [Prompt(ids, None) for ids in prompt]
    raise BadRequest("prompt", "must be a string, strings, token ids, or lists of token ids")


def ask(asked: CompletionRequest, prompts: list[Prompt], index: int, answer_id: str) -> PromptInput:
    """The ask of the index-th prompt."""
    logprobs = {
        "return_logprob": asked.logprobs is not None,
        "logprob_start_len": 0 if asked.echo else -1,
        "top_logprobs_num": asked.logprobs,
    }
    return PromptInput(
        tokens=prompts[index].tokens,
        sampling=raw_sampling(asked, asked.max_tokens),
        prompt_field="prompt" if len(prompts) == 1 else f"prompt[{index}]",
        rid=request_id(asked, index, len(prompts), answer_id),
        logprobs=logprobs,
        priority=asked.priority,
        cache_key=cache_key_of(asked, index, len(prompts)),
    )


def echo_texts(
    asked: CompletionRequest, prompts: list[Prompt], samples: int, tokenizer: Tokenizer
) -> Work[list[str]]:
    """What every choice repeats of its prompt."""
    echoes: list[str] = []
    for prompt in prompts:
        echoes += [echo_text(asked, prompt, tokenizer)] * samples
        yield
    return echoes


def echo_text(asked: CompletionRequest, prompt: Prompt, tokenizer: Tokenizer) -> str:
    """The prompt's text when it is to be repeated, else nothing."""
    if not asked.echo:
        return ""
    if prompt.text is not None:
        return prompt.text
    return tokenizer.decode(prompt.tokens, skip_special_tokens=asked.skip_special_tokens)


def choice(
    asked: CompletionRequest,
    index: int,
    piece: RequestOutput,
    echo: str,
    request: Request,
) -> CompletionChoice:
    """One finished choice, without its log-probabilities."""
    finish = piece.finish
    result = CompletionChoice(
        index=index,
        text=echo + piece.text,
        finish_reason=finish.type if finish else None,
        matched_stop=finish.matched if finish else None,
    )
    add_ids(result, asked, piece, request)
    return result


def details(asked: CompletionRequest, piece: RequestOutput, tokenizer: Tokenizer) -> Work[Raw]:
    """Log-probabilities of the tokens that are shown, as JSON."""
    prompt = piece.prompt_logprobs if asked.echo else None
    entries = chain(prompt or (), piece.logprobs or ())
    encoded, _ = yield from encoded_completion_logprobs(entries, tokenizer)
    return encoded
