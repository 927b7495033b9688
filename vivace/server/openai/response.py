"""From requests to an OpenAI answer, streamed or whole: what both endpoints have in common."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Any, cast

import msgspec
from aiohttp import web

from vivace.frontend.fairness import Work, run_now
from vivace.frontend.request_output import RequestOutput
from vivace.frontend.tokenizer import Tokenizer
from vivace.protocol.messages import Finish, Request
from vivace.server.collect import NONE_SHOWN, complete, error_event, stream
from vivace.server.context import Context
from vivace.server.openai.logprobs import (
    encoded_chat_logprobs,
    encoded_completion_logprobs,
)
from vivace.server.openai.schema import (
    ChatAnswer,
    ChatChoice,
    Choice,
    CompletionAnswer,
    CompletionChoice,
    SamplingFields,
)
from vivace.server.openai.usage import UsageCounter
from vivace.server.responses import json_response
from vivace.server.sse import STREAM_FORM, Encoder

encode = msgspec.json.encode

TIMINGS = web.RequestKey("timings", dict[str, float])
"""Of a whole answer, in seconds (`RequestOutput`): for APIs that tell them"""


@dataclass(frozen=True, kw_only=True)
class ChunkContext:
    """What the events of one stream have in common."""

    rid: str
    kind: str
    created: int
    model: str
    tokenizer: Tokenizer
    usage: UsageCounter
    include_usage: bool = False
    continuous_usage: bool = False
    first_usage: bool = False
    """in the first event, too"""
    token_ids: bool = False
    logprobs: bool = False
    cached_details: bool = False
    service_tier: str | None = None

    @property
    def text_only(self) -> bool:
        """Events between the first and the last differ in their text only."""
        return not (self.continuous_usage or self.token_ids or self.logprobs)

    def head(self) -> bytes:
        """The event up to its choices."""
        fields = {"id": self.rid, "object": self.kind, "created": self.created, "model": self.model}
        if self.service_tier is not None:
            fields["service_tier"] = self.service_tier
        return b"data: " + encode(fields)[:-1] + b',"choices":['

    def tail(self, index: int, *, first: bool = False) -> bytes:
        """The event behind its choices."""
        if self.continuous_usage or (first and self.first_usage):
            return b'],"usage":' + encode(self.usage.choice_usage(index)) + b"}\n\n"
        return b'],"usage":null}\n\n' if self.include_usage else b"]}\n\n"

    def epilogue(self) -> bytes:
        """The events of the whole answer that end a stream: cached tokens, usage."""
        events = b""
        if self.cached_details:
            events += self.head() + b'],"sglext":' + encode(self.usage.sglext()) + b"}\n\n"
        if self.include_usage:
            events += self.head() + b'],"usage":' + encode(self.usage.usage()) + b"}\n\n"
        return events


def finish_fields(finish: Finish | None) -> bytes:
    """finish_reason and the matched_stop extension, with the leading comma."""
    if finish is None:
        return b',"finish_reason":null,"matched_stop":null'
    reason, matched = encode(finish.type), encode(finish.matched)
    return b',"finish_reason":%b,"matched_stop":%b' % (reason, matched)


class ChunkEncoder(ABC):
    """Encodes the outputs of one choice of a stream. What does not change is encoded once."""

    def __init__(
        self,
        context: ChunkContext,
        index: int,
        field: bytes,
        before: bytes = b"",
        after: bytes = b"",
    ) -> None:
        """`field` of a choice has what is new; text stands in it between `before` and `after`."""
        self._context = context
        self._index = index
        self._choice = context.head() + b'{"index":%d,"%b":' % (index, field)
        self._tail = b"" if context.continuous_usage else context.tail(index)
        self._prefix = self._choice + before
        self._suffix = after + b',"logprobs":null' + finish_fields(None) + b"}" + self._tail
        self._begun = False
        self._text_only = False

    def __call__(self, output: RequestOutput) -> bytes:
        if output.finish is None:
            data = self.encode_text(output.text, output.tokens, output.completion_tokens)
            if data is not None:
                return data
        return self._encode(output, run_now(self._logprobs(output)))

    def parts(self, output: RequestOutput) -> Work[list[bytes]] | None:
        """The events of an output with log-probabilities, which may be long; None for others."""
        return self._in_parts(output) if self._context.logprobs else None

    def _in_parts(self, output: RequestOutput) -> Work[list[bytes]]:
        logprobs = yield from self._logprobs(output)
        return [self._encode(output, logprobs)]

    def encode_text(self, text: str, _tokens: list[int], _count: int) -> bytes | None:
        """The event of mere text; None for the first output, and when events show more."""
        if not self._text_only:
            return None
        return b"".join((self._prefix, encode(text), self._suffix)) if text else b""

    def _encode(self, output: RequestOutput, logprobs: bytes) -> bytes:
        """Any output; the first, the last and those with details come here."""
        self._context.usage.update(self._index, output)
        self._text_only = self._context.text_only
        failed = error_event(output.finish)
        return self._events(output, logprobs) if failed is None else failed

    def _event(
        self,
        value: bytes,
        *,
        finish: Finish | None = None,
        logprobs: bytes = b"null",
        ids: bytes = b"",
        tail: bytes = b"",
    ) -> bytes:
        tail = tail or self._tail or self._context.tail(self._index)
        fields = b"".join((b',"logprobs":', logprobs, finish_fields(finish), ids, b"}"))
        return b"".join((self._choice, value, fields, tail))

    def _begin(self) -> bytes:
        """The first event of a chat stream."""
        if self._begun:
            return b""
        self._begun = True
        tail = self._context.tail(self._index, first=True)
        return self._event(b'{"role":"assistant","content":""}', tail=tail)

    @abstractmethod
    def _events(self, output: RequestOutput, logprobs: bytes) -> bytes:
        """The events of an output that is no failure."""

    @abstractmethod
    def _logprobs(self, output: RequestOutput) -> Work[bytes]:
        """JSON of the log-probabilities; pauses only where there is more to do."""


class ChatChunks(ChunkEncoder):
    """The events of one choice of a chat stream."""

    def __init__(self, context: ChunkContext, index: int) -> None:
        super().__init__(context, index, b"delta", b'{"content":', b"}")

    def _events(self, output: RequestOutput, logprobs: bytes) -> bytes:
        data, ids = self._begin(), b""
        if self._context.token_ids and output.tokens:
            ids = b',"token_ids":' + encode(output.tokens)
        if output.text or ids or logprobs != b"null":
            delta = b'{"content":' + encode(output.text) + b"}"
            data += self._event(delta, logprobs=logprobs, ids=ids)
        if output.finish is not None:
            data += self._event(b"{}", finish=output.finish)
        return data

    def _logprobs(self, output: RequestOutput) -> Work[bytes]:
        if not self._context.logprobs or not output.logprobs:
            return b"null"
        return bytes((yield from encoded_chat_logprobs(output.logprobs, self._context.tokenizer)))


class CompletionChunks(ChunkEncoder):
    """The events of one choice of a completion stream; `echo` is the prompt's text."""

    def __init__(
        self, context: ChunkContext, index: int, echo: str = "", prompt: bool = False
    ) -> None:
        """`prompt` adds the prompt's log-probabilities to the first event."""
        super().__init__(context, index, b"text")
        self._echo = echo
        self._prompt = prompt
        self._offset = 0

    def _events(self, output: RequestOutput, logprobs: bytes) -> bytes:
        text = output.text if self._begun else self._echo + output.text
        self._begun = True
        if not text and output.finish is None and logprobs == b"null" and not output.tokens:
            return b""
        ids = b',"token_ids":' + encode(output.tokens) if self._context.token_ids else b""
        return self._event(encode(text), finish=output.finish, logprobs=logprobs, ids=ids)

    def _logprobs(self, output: RequestOutput) -> Work[bytes]:
        prompt = (output.prompt_logprobs if self._prompt else None) or ()
        if not self._context.logprobs or not (prompt or output.logprobs):
            return b"null"
        entries = chain(prompt, output.logprobs or ())
        work = encoded_completion_logprobs(entries, self._context.tokenizer, self._offset)
        logprobs, self._offset = yield from work
        return bytes(logprobs)


@dataclass(frozen=True, kw_only=True)
class AnswerFormat:
    """What one endpoint's answers look like.

    `chunks` makes the encoder of the index-th choice of a stream, `choice` the index-th choice of a
    whole answer and `details` its log-probabilities, `answer` is what holds the choices. `kind` is
    the `object` of a stream's events. `parse` fills in what is found in the text of a whole answer,
    and says how many tokens are reasoning; `shown`: as in `start`.
    """

    kind: str
    logprobs: bool
    chunks: Callable[[ChunkContext, int], Encoder]
    choice: Callable[[int, RequestOutput], ChatChoice | CompletionChoice]
    details: Callable[[RequestOutput], Work[msgspec.Raw]]
    answer: type[ChatAnswer] | type[CompletionAnswer]
    service_tier: str | None = None
    parse: Callable[[ChatChoice | CompletionChoice, RequestOutput], Work[int | None]] | None = None
    shown: frozenset[int] = NONE_SHOWN


async def answer(
    context: Context,
    http: web.Request,
    params: SamplingFields,
    requests: list[Request],
    answer_format: AnswerFormat,
    *,
    rid: str,
    samples: int,
    tokenizer: Tokenizer,
) -> web.StreamResponse:
    """Run the requests and answer; `samples` of them share a prompt."""
    usage = UsageCounter(samples, context.settings.cache_report)
    created, model = int(time.time()), context.served.name
    if params.stream:
        chunk_context = stream_context(
            http, params, answer_format, rid, created, model, tokenizer, usage
        )
        encoders = [answer_format.chunks(chunk_context, index) for index in range(len(requests))]
        return await stream(
            context,
            http,
            requests,
            encoders,
            epilogue=chunk_context.epilogue,
            shown=answer_format.shown,
        )
    outputs = await complete(context, requests, shown=answer_format.shown)
    http[TIMINGS] = outputs[0].timings or {}
    for index, output in enumerate(outputs):
        usage.update(index, output)
    choices = await context.slicer.run(encoded_choices(answer_format, outputs, usage))
    whole = answer_format.answer(
        id=rid,
        created=created,
        model=model,
        choices=cast(Any, choices),
        usage=usage.usage(),
        metadata={"weight_version": context.served.weight_version},
    )
    if params.return_cached_tokens_details:
        whole.sglext = usage.sglext()
    if answer_format.service_tier is not None:
        whole.service_tier = answer_format.service_tier
    return json_response(whole)


def stream_context(
    http: web.Request,
    params: SamplingFields,
    answer_format: AnswerFormat,
    rid: str,
    created: int,
    model: str,
    tokenizer: Tokenizer,
    usage: UsageCounter,
) -> ChunkContext:
    """What the events of the answer to a request have in common."""
    options, form = params.stream_options, http.get(STREAM_FORM)
    return ChunkContext(
        rid=rid,
        kind=answer_format.kind,
        created=created,
        model=model,
        tokenizer=tokenizer,
        usage=usage,
        include_usage=bool(options and options.include_usage),
        continuous_usage=bool(options and options.continuous_usage_stats),
        first_usage=form is not None and form.first_usage,
        token_ids=params.return_token_ids,
        logprobs=answer_format.logprobs,
        cached_details=params.return_cached_tokens_details,
        service_tier=answer_format.service_tier,
    )


def encoded_choices(
    answer_format: AnswerFormat, outputs: list[RequestOutput], usage: UsageCounter
) -> Work[msgspec.Raw]:
    """The choices of a whole answer as JSON."""
    encoded: list[bytes] = []
    for index, output in enumerate(outputs):
        choice = answer_format.choice(index, output)
        if answer_format.parse is not None:
            usage.note_reasoning(index, (yield from answer_format.parse(choice, output)))
        if answer_format.logprobs:
            choice.logprobs = cast(Any, (yield from answer_format.details(output)))
        encoded.append(msgspec.json.encode(choice, enc_hook=str))
        yield
    return msgspec.Raw(b"[%b]" % b",".join(encoded))


def add_ids(
    choice: Choice, params: SamplingFields, output: RequestOutput, request: Request
) -> None:
    """The token ids that the request asks for."""
    if params.return_token_ids:
        choice.token_ids = output.tokens
    if params.return_token_ids or params.return_prompt_token_ids:
        choice.prompt_token_ids = request.tokens
