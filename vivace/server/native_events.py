"""Pieces -> events of /generate. Between the first and the last event only text, ids and their
count change, so the rest is encoded once and text and ids are escaped once per piece."""

from __future__ import annotations

from typing import Any

import msgspec

from vivace.frontend.request_output import RequestOutput
from vivace.frontend.sglang_output import SGLangOutput
from vivace.protocol.request import Request
from vivace.server.collect import failure
from vivace.server.native_logprobs import NativeLogprobs
from vivace.server.pace import Work
from vivace.server.sse import event

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
            return self._quick(piece.text, piece.tokens, piece.completion_tokens)
        failed = failure(piece.finish)
        if failed is not None:
            return failed
        body = self._answer.event(piece)
        if self._prompt_ids:
            body["meta_info"]["prompt_token_ids"] = self._encoded_prompt()
        if piece.finish is None:
            self._learn(body, piece)
        return event(encode(body))

    def quick(self, text: str, tokens: list[int], count: int) -> bytes | None:
        """The event of mere text; None before the first piece has shown what all have in common."""
        return self._quick(text, tokens, count) if self._learned else None

    def _differs_in_text_only(self, piece: RequestOutput) -> bool:
        return (
            self._learned
            and piece.finish is None
            and piece.retractions == self._retractions
            and piece.cached_tokens == self._cached
        )

    def _quick(self, text: str, tokens: list[int], count: int) -> bytes:
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
