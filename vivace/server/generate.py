"""POST /generate, SGLang's own API."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import msgspec
from aiohttp import web

from vivace.frontend.errors import BadRequest
from vivace.frontend.fields import refuse_unsupported
from vivace.frontend.pace import Work
from vivace.frontend.request_output import RequestOutput
from vivace.frontend.sglang_output import SGLangOutput
from vivace.protocol.request import Request
from vivace.requests.prompts import PromptInput, asks_of, kind_of_entries
from vivace.requests.schema import HARMLESS, REFUSED, GenerateRequest
from vivace.server.access import CLIENT
from vivace.server.body import Body, Reader
from vivace.server.collect import complete, expand, failure, stream
from vivace.server.context import Context
from vivace.server.responses import EncodedList, batches, json_parts
from vivace.server.sse import event

encode = msgspec.json.encode


class NativeLogprobs:
    """The lists of one answer's meta_info, as far as they have come."""

    def __init__(self, answer: SGLangOutput) -> None:
        self._rows = answer.logprob_rows
        self._lists = {
            f"{side}_{name}": EncodedList()
            for side in ("input", "output")
            for name in answer.logprob_rows([])
        }

    def add(self, piece: RequestOutput) -> Work[None]:
        """Pauses only where there is more to do."""
        sides = (("input", piece.prompt_logprobs), ("output", piece.logprobs))
        news = ((side, batch) for side, rows in sides for batch in batches(rows or ()))
        for number, (side, batch) in enumerate(news):
            if number:
                yield
            for name, rows in self._rows(batch).items():
                self._lists[f"{side}_{name}"].extend(rows)

    def shown_in(self, body: dict[str, Any]) -> list[bytes]:
        """JSON of a body with these lists in its meta_info, to be written one after the other."""
        rest = dict(body)
        meta = encode(rest.pop("meta_info"), enc_hook=str)
        parts = [encode(rest, enc_hook=str)[:-1] + b',"meta_info":' + meta[:-1]]
        for name, entries in self._lists.items():
            parts += [b',"%b":' % name.encode(), *entries.parts()]
        parts.append(b"}}")
        return parts


encode = msgspec.json.encode

TEXT = b'data: {"text":'
IDS = b',"output_ids":'
COUNT = "completion_tokens"
"""The field of meta_info that changes with every event."""


class GenerateEvents:
    """Encodes the pieces of one sequence; with `disjoint` an event shows only its own piece."""

    def __init__(
        self, request: Request, answer: SGLangOutput, *, disjoint: bool, prompt_ids: bool
    ) -> None:
        """`answer` is the same sequence as whole answers; it decides what an event holds."""
        self._request = request
        self._answer = answer
        self._disjoint = disjoint
        self._prompt_ids = prompt_ids
        self._plain = request.logprobs is None
        self._logprobs = NativeLogprobs(answer)
        """of the whole answer"""
        self._prompt = b""
        self._learned = False
        self._retractions = 0
        self._cached = 0
        self._text = b""
        self._ids = b""
        self._meta = b""
        self._tail = b""

    def parts(self, piece: RequestOutput) -> Work[list[bytes]] | None:
        """The event of a piece with log-probabilities, which may be long; None for others."""
        if self._plain or failure(piece.finish) is not None:
            return None
        return self._with_logprobs(piece)

    def _with_logprobs(self, piece: RequestOutput) -> Work[list[bytes]]:
        logprobs = NativeLogprobs(self._answer) if self._disjoint else self._logprobs
        yield from logprobs.add(piece)
        body = self._answer.event(piece, logprobs=False)
        if self._prompt_ids:
            body["meta_info"]["prompt_token_ids"] = self._encoded_prompt()
        return [b"data: ", *logprobs.shown_in(body), b"\n\n"]

    def _encoded_prompt(self) -> msgspec.Raw:
        """Once for all events."""
        if not self._prompt:
            self._prompt = encode(self._request.tokens)
        return msgspec.Raw(self._prompt)

    def __call__(self, piece: RequestOutput) -> bytes:
        if self._differs_in_text_only(piece):
            return self._encode_text(piece.text, piece.tokens, piece.completion_tokens)
        failed = failure(piece.finish)
        if failed is not None:
            return failed
        body = self._answer.event(piece)
        if self._prompt_ids:
            body["meta_info"]["prompt_token_ids"] = self._encoded_prompt()
        if piece.finish is None:
            self._learn(body, piece)
        return event(encode(body))

    def encode_text(self, text: str, tokens: list[int], count: int) -> bytes | None:
        """The event of mere text; None before the first piece has shown what all have in common."""
        return self._encode_text(text, tokens, count) if self._learned else None

    def _differs_in_text_only(self, piece: RequestOutput) -> bool:
        return (
            self._learned
            and piece.finish is None
            and piece.retractions == self._retractions
            and piece.cached_tokens == self._cached
        )

    def _encode_text(self, text: str, tokens: list[int], count: int) -> bytes:
        shown, ids = encode(text), encode(tokens)
        if not self._disjoint:
            self._answer.extend(text, tokens)
            self._text += shown[1:-1]
            if tokens:
                self._ids += b"," + ids[1:-1] if self._ids else ids[1:-1]
            shown, ids = b'"%b"' % self._text, b"[%b]" % self._ids
        return b"".join((TEXT, shown, IDS, ids, self._meta, b"%d" % count, self._tail))

    def _learn(self, body: dict[str, Any], piece: RequestOutput) -> None:
        """Take from an event what those after it repeat: all but text, ids and their count."""
        rest = {key: value for key, value in body.items() if key not in ("text", "output_ids")}
        meta = dict(rest.pop("meta_info"))
        del meta[COUNT]
        self._meta = b',"meta_info":' + encode(meta)[:-1] + b',"%b":' % COUNT.encode()
        self._tail = b"}" + (b"," + encode(rest)[1:] if rest else b"}") + b"\n\n"
        self._text = encode(body["text"])[1:-1]
        self._ids = encode(body["output_ids"])[1:-1]
        self._retractions = piece.retractions
        self._cached = piece.cached_tokens
        self._learned = True


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


READER = Reader(GenerateRequest)


async def generate(context: Context, http: web.Request, body: Body) -> web.StreamResponse:
    """One answer, or a list of them when the prompts came as a list or n > 1."""
    arrival = time.monotonic()
    asked = await READER.read(context, body)
    asks, batch = await read_asks(context, asked)
    requests = await expand(
        context, asks, stream=asked.stream, arrival=arrival, client=http[CLIENT]
    )
    body.release()
    several = batch or len(requests) > 1
    quiet = asked.no_logs
    if not quiet:
        text = asked.text if isinstance(asked.text, str) else None
        context.request_log.received(http.path, requests, asked, text)
    answers = [
        answer_of(context, asked, request, index if several else None)
        for index, request in enumerate(requests)
    ]
    if asked.stream:
        encoders = [
            GenerateEvents(
                request,
                answer,
                disjoint=context.settings.stream_output,
                prompt_ids=asked.return_prompt_token_ids,
            )
            for request, answer in zip(requests, answers, strict=True)
        ]
        return await stream(context, http, requests, encoders, quiet=quiet)
    pieces = await complete(context, requests, quiet=quiet)
    shown = await context.pace.run(finished(asked, requests, answers, pieces))
    return await json_parts(http, list_of(shown) if several else shown[0])


def answer_of(
    context: Context, asked: GenerateRequest, request: Request, index: int | None
) -> SGLangOutput:
    """Where the pieces of a request become SGLang's result."""
    with_text = asked.return_text_in_logprobs
    return SGLangOutput(
        request,
        weight_version=context.served.weight_version,
        index=index,
        token_text=context.tokenizer("return_text_in_logprobs").token_text if with_text else None,
        disjoint=asked.stream and context.settings.stream_output,
    )


def list_of(results: list[list[bytes]]) -> list[bytes]:
    """A JSON list of what is JSON in parts."""
    parts = [b"["]
    for number, result in enumerate(results):
        parts += [b",", *result] if number else result
    return [*parts, b"]"]


def finished(
    asked: GenerateRequest,
    requests: list[Request],
    answers: list[SGLangOutput],
    pieces: list[RequestOutput],
) -> Work[list[list[bytes]]]:
    """Each result as JSON in parts, with what only some requests ask for."""
    shown: list[list[bytes]] = []
    for request, answer, piece in zip(requests, answers, pieces, strict=True):
        answer.add(piece)
        logprobs = NativeLogprobs(answer)
        yield from logprobs.add(piece)
        body = answer.body(logprobs=False)
        if asked.return_prompt_token_ids:
            body["meta_info"]["prompt_token_ids"] = request.tokens
        shown.append(logprobs.shown_in(body))
        yield
    return shown
