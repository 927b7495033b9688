"""POST /generate, SGLang's own API."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import msgspec
from aiohttp import web

from vivace.frontend.errors import BadRequest
from vivace.frontend.fairness import Work
from vivace.frontend.fields import refuse_unsupported
from vivace.frontend.request_output import RequestOutput
from vivace.frontend.sglang_output import SGLangOutput
from vivace.protocol.messages import Request
from vivace.protocol.tasks import HIDDEN
from vivace.requests.prompts import PromptInput, entry_type, prompt_inputs
from vivace.requests.schema import HARMLESS, REFUSED, GenerateRequest
from vivace.requests.thinking import limit_thinking, read_thinking_limit
from vivace.server.body import Body, BodyReader
from vivace.server.collect import complete, error_event, prepare_requests, stream
from vivace.server.context import Context
from vivace.server.event_bytes import event
from vivace.server.responses import EncodedList, batches, json_parts

encode = msgspec.json.encode


class AnswerLists:
    """The lists of one answer's meta_info, as far as they have come."""

    def __init__(self, answer: SGLangOutput, *, hidden_states: bool) -> None:
        self._rows = answer.logprob_rows
        self._states = answer.hidden_state_rows
        self._lists = {
            f"{side}_{name}": EncodedList()
            for side in ("input", "output")
            for name in answer.logprob_rows([])
        }
        self._hidden_states = (EncodedList(), EncodedList()) if hidden_states else None
        """of the prompt, and of each token"""

    def add(self, output: RequestOutput) -> Work[None]:
        """Pauses only where there is more to do."""
        sides = (("input", output.prompt_logprobs), ("output", output.logprobs))
        news = ((side, batch) for side, rows in sides for batch in batches(rows or ()))
        for number, (side, batch) in enumerate(news):
            if number:
                yield
            for name, rows in self._rows(batch).items():
                self._lists[f"{side}_{name}"].extend(rows)
        if self._hidden_states is not None:
            states = self._states(output.hidden_states or [])
            for encoded, rows in zip(self._hidden_states, states, strict=True):
                for batch in batches(rows):
                    encoded.extend(batch)
                    yield

    def parts(self, body: dict[str, Any], *, hidden_states: bool = True) -> list[bytes]:
        """JSON of a body with these lists in its meta_info, to be written one after the other.
        Without `hidden_states`, which are long, not these."""
        rest = dict(body)
        meta = encode(rest.pop("meta_info"), enc_hook=str)
        parts = [encode(rest, enc_hook=str)[:-1] + b',"meta_info":' + meta[:-1]]
        for name, entries in self._lists.items():
            parts += [b',"%b":' % name.encode(), *entries.parts()]
        if hidden_states and self._hidden_states is not None:
            prompt, tokens = self._hidden_states
            first = [b"[", *prompt.parts()] if prompt else [b"["]
            rest = tokens.parts()[1:]
            comma = [b","] if prompt and tokens else []
            parts += [b',"hidden_states":', *first, *comma, *rest]
        parts.append(b"}}")
        return parts


TEXT = b'data: {"text":'
IDS = b',"output_ids":'
COUNT = "completion_tokens"
"""The field of meta_info that changes with every event."""


class GenerateEvents:
    """Encodes the outputs of one sequence; with `disjoint` an event shows only its own output."""

    def __init__(
        self, request: Request, answer: SGLangOutput, *, disjoint: bool, prompt_ids: bool
    ) -> None:
        """`answer` is the same sequence as whole answers; it decides what an event holds."""
        self._request = request
        self._answer = answer
        self._disjoint = disjoint
        self._prompt_ids = prompt_ids
        self._hidden_states = request.task == HIDDEN
        self._plain = request.logprobs is None and not self._hidden_states
        self._lists = AnswerLists(answer, hidden_states=self._hidden_states)
        """of the whole answer"""
        self._prompt = b""
        self._learned = False
        self._retractions = 0
        self._cached = 0
        self._text = b""
        self._ids = b""
        self._meta = b""
        self._tail = b""

    def parts(self, output: RequestOutput) -> Work[list[bytes]] | None:
        """The event of an output with log-probabilities or hidden states, which may be long; None
        for others."""
        if self._plain or error_event(output.finish) is not None:
            return None
        return self._with_lists(output)

    def _with_lists(self, output: RequestOutput) -> Work[list[bytes]]:
        lists = self._lists
        if self._disjoint:
            lists = AnswerLists(self._answer, hidden_states=self._hidden_states)
        yield from lists.add(output)
        body = self._answer.event(output, lists=False)
        if self._prompt_ids:
            body["meta_info"]["prompt_token_ids"] = self._encoded_prompt()
        shows_states = self._disjoint or output.finish is not None
        return [b"data: ", *lists.parts(body, hidden_states=shows_states), b"\n\n"]

    def _encoded_prompt(self) -> msgspec.Raw:
        """Once for all events."""
        if not self._prompt:
            self._prompt = encode(self._request.tokens)
        return msgspec.Raw(self._prompt)

    def __call__(self, output: RequestOutput) -> bytes:
        if self._differs_in_text_only(output):
            return self._encode_text(output.text, output.tokens, output.completion_tokens)
        failed = error_event(output.finish)
        if failed is not None:
            return failed
        body = self._answer.event(output)
        if self._prompt_ids:
            body["meta_info"]["prompt_token_ids"] = self._encoded_prompt()
        if output.finish is None:
            self._learn(body, output)
        return event(encode(body))

    def encode_text(self, text: str, tokens: list[int], count: int) -> bytes | None:
        """The event of mere text; None before the first output was encoded."""
        return self._encode_text(text, tokens, count) if self._learned else None

    def _differs_in_text_only(self, output: RequestOutput) -> bool:
        return (
            self._learned
            and output.finish is None
            and output.retractions == self._retractions
            and output.cached_tokens == self._cached
        )

    def _encode_text(self, text: str, tokens: list[int], count: int) -> bytes:
        data, ids = encode(text), encode(tokens)
        if not self._disjoint:
            self._answer.extend(text, tokens)
            self._text += data[1:-1]
            if tokens:
                self._ids += b"," + ids[1:-1] if self._ids else ids[1:-1]
            data, ids = b'"%b"' % self._text, b"[%b]" % self._ids
        return b"".join((TEXT, data, IDS, ids, self._meta, b"%d" % count, self._tail))

    def _learn(self, body: dict[str, Any], output: RequestOutput) -> None:
        """Take from an event what those after it repeat: all but text, ids and their count."""
        rest = {key: value for key, value in body.items() if key not in ("text", "output_ids")}
        meta = dict(rest.pop("meta_info"))
        del meta[COUNT]
        self._meta = b',"meta_info":' + encode(meta)[:-1] + b',"%b":' % COUNT.encode()
        self._tail = b"}" + (b"," + encode(rest)[1:] if rest else b"}") + b"\n\n"
        self._text = encode(body["text"])[1:-1]
        self._ids = encode(body["output_ids"])[1:-1]
        self._retractions = output.retractions
        self._cached = output.cached_tokens
        self._learned = True


async def read_inputs(
    context: Context, params: GenerateRequest
) -> tuple[Iterator[PromptInput], bool]:
    """(the prompts with what is wanted of each, whether the prompts came as a list)."""
    refuse_unsupported(params, REFUSED, HARMLESS)
    prompts, batch, field = await read_prompts(context, params)
    inputs = prompt_inputs(params, prompts, batch, field)
    if (limit := read_thinking_limit(params)) is not None:
        inputs = limit_thinking(inputs, limit, context.syntax)
    return inputs, batch


class PromptFields(Protocol):
    """What /generate and /encode say of prompts."""

    text: str | list[str] | None
    input_ids: list[Any] | None


async def read_prompts(context: Context, params: PromptFields) -> tuple[list[list[int]], bool, str]:
    """(ids of every prompt, whether they came as a list, the field they came in)."""
    if (params.text is None) == (params.input_ids is None):
        raise BadRequest("text", "give exactly one of text and input_ids")
    if params.text is not None:
        context.tokenizer("text")
        texts = params.text if isinstance(params.text, list) else [params.text]
        check_count(context, texts, "text")
        found = [ids async for group in context.frontend.encode_all(texts) for ids in group]
        return found, isinstance(params.text, list), "text"
    ids: list[Any] = params.input_ids or []
    kind = entry_type(ids, context.served.context + 1)
    if kind is int or not ids:
        return [ids], False, "input_ids"
    if kind is not list:
        raise BadRequest("input_ids", "must be token ids, or lists of token ids, not both")
    check_count(context, ids, "input_ids")
    return ids, True, "input_ids"


def check_count(context: Context, prompts: list[Any], field: str) -> None:
    limit = context.settings.max_batch
    if not prompts:
        raise BadRequest(field, "must not be empty")
    if len(prompts) > limit:
        raise BadRequest(field, f"holds {len(prompts)} prompts; at most {limit} in one request")


READER = BodyReader(GenerateRequest)


async def generate(context: Context, http: web.Request, body: Body) -> web.StreamResponse:
    """One answer, or a list of them when the prompts came as a list or n > 1."""
    arrival = time.monotonic()
    return await answer_generate(context, http, body, await READER.read(context, body), arrival)


async def answer_generate(
    context: Context,
    http: web.Request,
    body: Body,
    params: GenerateRequest,
    arrival: float,
    wrap: Callable[[list[bytes]], list[bytes]] = list,
) -> web.StreamResponse:
    """The same for prompts that came as some API's body; `wrap` puts the JSON of a whole answer
    into that API's object."""
    inputs, batch = await read_inputs(context, params)
    text, quiet = params.text if isinstance(params.text, str) else None, params.no_logs
    requests = await prepare_requests(
        context,
        http,
        body,
        params,
        inputs,
        stream=params.stream,
        arrival=arrival,
        text=text,
        quiet=quiet,
    )
    several = batch or len(requests) > 1
    answers = [
        create_answer(context, params, request, index if several else None)
        for index, request in enumerate(requests)
    ]
    if params.stream:
        encoders = [
            GenerateEvents(
                request,
                answer,
                disjoint=context.settings.stream_output,
                prompt_ids=params.return_prompt_token_ids,
            )
            for request, answer in zip(requests, answers, strict=True)
        ]
        return await stream(context, http, requests, encoders, quiet=quiet)
    outputs = await complete(context, requests, quiet=quiet)
    parts = await context.slicer.run(encode_results(params, requests, answers, outputs))
    return await json_parts(http, wrap(json_list(parts) if several else parts[0]))


def create_answer(
    context: Context, params: GenerateRequest, request: Request, index: int | None
) -> SGLangOutput:
    """Where the outputs of a request become SGLang's result."""
    with_text = params.return_text_in_logprobs
    return SGLangOutput(
        request,
        weight_version=context.served.weight_version,
        index=index,
        token_text=context.tokenizer("return_text_in_logprobs").token_text if with_text else None,
        disjoint=params.stream and context.settings.stream_output,
    )


def json_list(results: list[list[bytes]]) -> list[bytes]:
    """A JSON list of what is JSON in parts."""
    parts = [b"["]
    for number, result in enumerate(results):
        parts += [b",", *result] if number else result
    return [*parts, b"]"]


def encode_results(
    params: GenerateRequest,
    requests: list[Request],
    answers: list[SGLangOutput],
    outputs: list[RequestOutput],
) -> Work[list[list[bytes]]]:
    """Each result as JSON in parts, with what only some requests want."""
    parts: list[list[bytes]] = []
    for request, answer, output in zip(requests, answers, outputs, strict=True):
        answer.add(output)
        lists = AnswerLists(answer, hidden_states=request.task == HIDDEN)
        yield from lists.add(output)
        body = answer.body(lists=False)
        if params.return_prompt_token_ids:
            body["meta_info"]["prompt_token_ids"] = request.tokens
        parts.append(lists.parts(body))
        yield
    return parts
