"""POST /v1/completions."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import chain

from aiohttp import web
from msgspec import Raw

from vivace.frontend.errors import BadRequest
from vivace.frontend.fairness import Work
from vivace.frontend.fields import refuse_unsupported
from vivace.frontend.fill_in_middle import MARKS, NO_TOKENS, middle_tokens
from vivace.frontend.request_output import RequestOutput
from vivace.frontend.tokenizer import SENTENCEPIECE, Tokenizer
from vivace.frontend.tokenizer_pool import text_named
from vivace.protocol.messages import Request
from vivace.requests.limits import IDS
from vivace.requests.prompts import PromptInput, entry_type, new_id, wanted_rank
from vivace.requests.response_format import body_constraint
from vivace.server.body import Body, BodyReader
from vivace.server.collect import prepare_requests
from vivace.server.context import Context
from vivace.server.openai.logprobs import encoded_completion_logprobs
from vivace.server.openai.params import (
    MAX_LOGPROBS,
    check_request,
    openai_names,
    prompt_cache_key,
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

READER = BodyReader(CompletionRequest)


@dataclass(frozen=True)
class Prompt:
    """`text` is None when the prompt came as ids. `ends`: where its answers end, too."""

    tokens: list[int]
    text: str | None
    ends: tuple[int, ...] = ()


async def completions(context: Context, http: web.Request, body: Body) -> web.StreamResponse:
    """Complete one or many prompts, n times each."""
    arrival = time.monotonic()
    return await answer_completions(context, http, body, await READER.read(context, body), arrival)


async def answer_completions(
    context: Context, http: web.Request, body: Body, params: CompletionRequest, arrival: float
) -> web.StreamResponse:
    """The same for prompts that came as some API's body (`vivace.server.apis`)."""
    check(context, params)
    tokenizer = context.tokenizer("prompt")
    with text_named("prompt"):
        if params.suffix:
            prompts = await fill_prompts(context, params)
        else:
            prompts = await read_prompts(context, params.prompt, "prompt")
    answer_id = new_id("cmpl")
    with openai_names():
        inputs = (prompt_input(params, prompts, index, answer_id) for index in range(len(prompts)))
        requests = await prepare_requests(
            context, http, body, params, inputs, stream=bool(params.stream), arrival=arrival
        )
    samples = len(requests) // len(prompts)
    rid = params.rid if isinstance(params.rid, str) else answer_id
    echoes = await context.slicer.run(echo_texts(params, prompts, samples, tokenizer))
    form = AnswerFormat(
        kind="text_completion",
        logprobs=params.logprobs is not None,
        chunks=lambda chunk_context, index: CompletionChunks(
            chunk_context, index, echoes[index], bool(params.echo)
        ),
        choice=lambda index, output: choice(params, index, output, echoes[index], requests[index]),
        details=lambda output: details(params, output, tokenizer),
        answer=CompletionAnswer,
    )
    return await answer(
        context, http, params, requests, form, rid=rid, samples=samples, tokenizer=tokenizer
    )


def check(context: Context, params: CompletionRequest) -> None:
    """Refuse what this endpoint cannot do."""
    check_request(context, params)
    refuse_unsupported(params, COMPLETION_REFUSED)
    if params.best_of is not None and params.best_of != (params.n or 1):
        raise BadRequest("best_of", "must be equal to n, or left out")
    if params.logprobs is not None and not 0 <= params.logprobs <= MAX_LOGPROBS:
        raise BadRequest("logprobs", f"must be between 0 and {MAX_LOGPROBS}")
    if params.suffix and params.echo and params.logprobs is not None:
        # They would be of all tokens around the gap, and the text is that before it.
        raise BadRequest("echo", "does not go with suffix and logprobs; leave one of them out")


async def read_prompts(
    context: Context, prompt: str | list, field: str, *, special: bool = True
) -> list[Prompt]:
    """One Prompt per prompt, in order; BadRequest when the list mixes kinds or is empty. `field`:
    where they stand in the request; `special`: texts begin with what every prompt begins with."""
    if isinstance(prompt, str):
        return [Prompt(await context.frontend.encode(prompt, special), prompt)]
    if not prompt:
        raise BadRequest(field, "must not be empty")
    max_prompts = context.settings.max_batch
    kind = entry_type(prompt, max(max_prompts, context.served.context) + 1)
    if kind is int:
        return [Prompt(prompt, None)]
    if len(prompt) > max_prompts:
        raise BadRequest(field, f"has {len(prompt)} entries; at most {max_prompts} are allowed")
    if kind is str:
        texts = [str(text) for text in prompt]
        found = [
            ids async for group in context.frontend.encode_all(texts, special) for ids in group
        ]
        return [Prompt(ids, text) for ids, text in zip(found, texts, strict=True)]
    if kind is list:
        return [Prompt(ids, None) for ids in prompt]
    raise BadRequest(field, "must be a string, strings, token ids, or lists of token ids")


async def fill_prompts(context: Context, params: CompletionRequest) -> list[Prompt]:
    """The same with `suffix` behind what is to be written. BadRequest for a model that does not
    fill in, and for prompts of ids."""
    form = middle_tokens(context.tokenizer("prompt"))
    if form is None:
        raise BadRequest("suffix", NO_TOKENS)
    prompts = await read_prompts(context, params.prompt, "prompt", special=False)
    if any(prompt.text is None for prompt in prompts):
        raise BadRequest("suffix", "needs a prompt that is text")
    special = await context.frontend.encode("")
    with text_named("suffix"):
        behind = await encode_behind(context, params.suffix or "")
    if len(prompts) * len(behind) > IDS:
        many = f"{len(behind)} tokens for each of {len(prompts)} prompts"
        raise BadRequest("suffix", f"has {many}; at most {IDS} together are allowed")
    return [
        Prompt(form.prompt(special, prompt.tokens, behind), prompt.text, form.ends)
        for prompt in prompts
    ]


async def encode_behind(context: Context, text: str) -> list[int]:
    """Token ids of what begins no text: SentencePiece would put a space before it, which models
    were not trained with (Meta's code and Mistral's encode it so, too)."""
    frontend, tokenizer = context.frontend, context.tokenizer("prompt")
    if tokenizer.token_table.decoding.kind == SENTENCEPIECE:
        for mark in MARKS:
            begin = tokenizer.encode(mark, add_special_tokens=False)
            ids = await frontend.encode(mark + text, add_special_tokens=False)
            if ids[: len(begin)] == begin:
                return ids[len(begin) :]
    return await frontend.encode(text, add_special_tokens=False)


def prompt_input(
    params: CompletionRequest, prompts: list[Prompt], index: int, answer_id: str
) -> PromptInput:
    """The index-th prompt with its settings."""
    logprobs = {
        "return_logprob": params.logprobs is not None,
        "logprob_start_len": 0 if params.echo else -1,
        "top_logprobs_num": params.logprobs,
    }
    return PromptInput(
        tokens=prompts[index].tokens,
        sampling=raw_sampling(params, params.max_tokens, body_constraint(params)),
        prompt_field="prompt" if len(prompts) == 1 else f"prompt[{index}]",
        rid=request_id(params, index, len(prompts), answer_id),
        logprobs=logprobs,
        priority=params.priority,
        dp_rank=wanted_rank(params),
        cache_key=prompt_cache_key(params, index, len(prompts)),
        ends=prompts[index].ends,
    )


def echo_texts(
    params: CompletionRequest, prompts: list[Prompt], samples: int, tokenizer: Tokenizer
) -> Work[list[str]]:
    """What every choice repeats of its prompt."""
    echoes: list[str] = []
    for prompt in prompts:
        echoes += [echo_text(params, prompt, tokenizer)] * samples
        yield
    return echoes


def echo_text(params: CompletionRequest, prompt: Prompt, tokenizer: Tokenizer) -> str:
    """The prompt's text when it is to be repeated, else nothing."""
    if not params.echo:
        return ""
    if prompt.text is not None:
        return prompt.text
    return tokenizer.decode(prompt.tokens, skip_special_tokens=params.skip_special_tokens)


def choice(
    params: CompletionRequest,
    index: int,
    output: RequestOutput,
    echo: str,
    request: Request,
) -> CompletionChoice:
    """One finished choice, without its log-probabilities."""
    finish = output.finish
    result = CompletionChoice(
        index=index,
        text=echo + output.text,
        finish_reason=finish.type if finish else None,
        matched_stop=finish.matched if finish else None,
    )
    add_ids(result, params, output, request)
    return result


def details(params: CompletionRequest, output: RequestOutput, tokenizer: Tokenizer) -> Work[Raw]:
    """Log-probabilities of the tokens that are shown, as JSON."""
    prompt = output.prompt_logprobs if params.echo else None
    entries = chain(prompt or (), output.logprobs or ())
    encoded, _ = yield from encoded_completion_logprobs(entries, tokenizer)
    return encoded
