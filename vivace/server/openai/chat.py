"""POST /v1/chat/completions."""

from __future__ import annotations

import time
from typing import Any, Protocol

from aiohttp import web

from vivace.frontend.errors import BadRequest
from vivace.frontend.fields import refuse_unsupported
from vivace.frontend.request_output import RequestOutput
from vivace.frontend.tokenizer_pool import text_named
from vivace.protocol.constraints import Constraint
from vivace.protocol.messages import Request
from vivace.requests.answer_rules import answer_rules
from vivace.requests.prompts import PromptInput, new_id, template_messages, wanted_rank
from vivace.requests.response_format import body_constraint
from vivace.requests.schema import Message
from vivace.requests.tools import OfferedTools, offered_tools
from vivace.server.body import Body, BodyReader
from vivace.server.collect import prepare_requests
from vivace.server.context import Context
from vivace.server.openai.logprobs import encoded_chat_logprobs
from vivace.server.openai.params import (
    MAX_LOGPROBS,
    check_request,
    openai_names,
    prompt_cache_key,
    raw_sampling,
    request_id,
)
from vivace.server.openai.parsed import ChatParsing
from vivace.server.openai.response import AnswerFormat, ChatChunks, add_ids, answer
from vivace.server.openai.schema import (
    CHAT_HARMLESS,
    CHAT_REFUSED,
    SERVED_TIER,
    AnswerMessage,
    ChatAnswer,
    ChatChoice,
    ChatRequest,
)

READER = BodyReader(ChatRequest)
NO_EFFORT = "none"
"""`reasoning_effort` of those who want no reasoning"""
NO_THINKING = {"enable_thinking": False, "thinking": False}
"""what templates call it: Qwen's, DeepSeek's"""


async def chat_completions(context: Context, http: web.Request, body: Body) -> web.StreamResponse:
    """Answer a conversation, n times."""
    arrival = time.monotonic()
    return await answer_chat(context, http, body, await READER.read(context, body), arrival)


async def answer_chat(
    context: Context, http: web.Request, body: Body, params: ChatRequest, arrival: float
) -> web.StreamResponse:
    """The same for a conversation that came as some API's body (`vivace.server.apis`)."""
    check(context, params)
    tokenizer = context.tokenizer("messages")
    offered = offered_tools(params)
    text = await chat_text(context, params.messages, params, offered)
    work = answer_rules(context.syntax, params, offered, text, body_constraint(params))
    rules = await context.slicer.run(work)
    parsing = ChatParsing(rules) if rules.parses else None
    with text_named("messages"):
        tokens = await context.frontend.encode(text, add_special_tokens=False)
    rid = request_id(params, 0, 1, new_id("chatcmpl"))
    with openai_names(limit_field(params)):
        inputs, stream = [prompt_input(params, tokens, rid, rules.constraint)], bool(params.stream)
        requests = await prepare_requests(
            context, http, body, params, inputs, stream=stream, arrival=arrival, text=text
        )
    form = AnswerFormat(
        kind="chat.completion.chunk",
        logprobs=bool(params.logprobs),
        chunks=parsing.chunks if parsing is not None else ChatChunks,
        choice=lambda index, output: choice(params, index, output, requests[index]),
        details=lambda output: encoded_chat_logprobs(output.logprobs or (), tokenizer),
        answer=ChatAnswer,
        service_tier=SERVED_TIER if params.service_tier else None,
        parse=parsing.parse if parsing is not None else None,
        shown=rules.shown if parsing is not None else frozenset(),
    )
    return await answer(
        context, http, params, requests, form, rid=rid, samples=len(requests), tokenizer=tokenizer
    )


def check(context: Context, params: ChatRequest) -> None:
    """Refuse what this endpoint cannot do."""
    check_request(context, params)
    refuse_unsupported(params, CHAT_REFUSED, CHAT_HARMLESS)
    if params.web_search_options is not None:  # an empty object asks for a search
        raise BadRequest("web_search_options", CHAT_REFUSED["web_search_options"])
    if params.top_logprobs is not None:
        if not 0 <= params.top_logprobs <= MAX_LOGPROBS:
            raise BadRequest("top_logprobs", f"must be between 0 and {MAX_LOGPROBS}")
        if params.top_logprobs and not params.logprobs:
            raise BadRequest("top_logprobs", "needs logprobs to be true")


def limit_field(params: ChatRequest) -> str:
    """Which of the two fields counts."""
    return "max_tokens" if params.max_completion_tokens is None else "max_completion_tokens"


def prompt_input(
    params: ChatRequest, tokens: list[int], rid: str, constraint: Constraint | None
) -> PromptInput:
    limit: int | None = getattr(params, limit_field(params))
    return PromptInput(
        tokens=tokens,
        sampling=raw_sampling(params, limit, constraint),
        rid=rid,
        prompt_field="messages",
        logprobs={"return_logprob": params.logprobs, "top_logprobs_num": params.top_logprobs},
        priority=params.priority,
        dp_rank=wanted_rank(params),
        cache_key=prompt_cache_key(params, 0, 1),
    )


def choice(params: ChatRequest, index: int, output: RequestOutput, request: Request) -> ChatChoice:
    """One finished choice, without its log-probabilities."""
    finish = output.finish
    result = ChatChoice(
        index=index,
        message=AnswerMessage(content=output.text),
        finish_reason=finish.type if finish else None,
        matched_stop=finish.matched if finish else None,
    )
    add_ids(result, params, output, request)
    result.response_token_ids = result.token_ids
    return result


class ChatFields(Protocol):
    """What /v1/chat/completions and /tokenize have in common."""

    continue_final_message: bool
    chat_template_kwargs: dict[str, Any] | None
    reasoning_effort: str | None


async def chat_text(
    context: Context,
    messages: list[Message],
    params: ChatFields,
    offered: OfferedTools,
    *,
    add_generation_prompt: bool = True,
) -> str:
    """Render messages, and the tools that are `offered`, with the model's chat template; BadRequest
    on what it cannot take."""
    template = context.tokenizer("messages").chat
    if template is None:
        raise BadRequest(
            "messages",
            "the model has no chat template; use /v1/completions or start with --chat-template",
        )
    if not messages:
        raise BadRequest("messages", "must not be empty")
    keywords = dict(params.chat_template_kwargs or {})
    for name in ("add_generation_prompt", "continue_final_message", "tools", "messages"):
        if name in keywords:
            raise BadRequest(f"chat_template_kwargs.{name}", "is set by the server")
    if offered.described:
        context.warn_of_tools()
    if params.reasoning_effort is not None:
        keywords.setdefault("reasoning_effort", params.reasoning_effort)
    if params.reasoning_effort == NO_EFFORT:
        keywords = {**NO_THINKING, **keywords}
    return await template.render_async(
        await context.slicer.run(template_messages(messages)),
        add_generation_prompt=add_generation_prompt,
        continue_final_message=params.continue_final_message,
        variables=keywords,
        tools=offered.described,
    )
