"""Pieces -> events of /generate. Between the first and the last event only text, ids and a few
counts change, so the rest is encoded once and text and ids are escaped once per piece."""

from __future__ import annotations

from typing import Any

import msgspec

from vivace.frontend.native import NativeAnswer
from vivace.frontend.piece import Piece
from vivace.protocol.request import Request
from vivace.server.jobs import failure
from vivace.server.sse import event

encode = msgspec.json.encode

COUNTS = {
    "num_retractions": "retractions",
    "completion_tokens": "completion_tokens",
    "cached_tokens": "cached_tokens",
}
"""Fields of meta_info that change with every piece, and where pieces have them."""


class NativeEvents:
    """Encodes the pieces of one sequence; with `disjoint` an event shows only its own piece."""

    def __init__(
        self, request: Request, answer: NativeAnswer, *, disjoint: bool, prompt_ids: bool
    ) -> None:
        """`answer` is the same sequence as whole answers; it decides what an event holds."""
        self._request = request
        self._answer = answer
        self._disjoint = disjoint
        self._prompt_ids = prompt_ids
        self._quick = False
        self._plain = request.logprobs is None
        self._text = b""
        self._ids = b""
        self._meta = b""
        self._tail = b""

    def __call__(self, piece: Piece) -> bytes:
        if self._quick and piece.finish is None:
            self._answer.add(piece)
            return self._quick_event(piece)
        failed = failure(piece.finish)
        if failed is not None:
            return failed
        body = self._answer.event(piece)
        if self._prompt_ids:
            body["meta_info"]["prompt_token_ids"] = self._request.tokens
        if self._plain and not self._quick:
            self._learn(body, piece)
        return event(encode(body))

    def _quick_event(self, piece: Piece) -> bytes:
        text = encode(piece.text)[1:-1]
        ids = encode(piece.tokens)[1:-1]
        if not self._disjoint:
            self._text += text
            self._ids = b"%b,%b" % (self._ids, ids) if self._ids and ids else self._ids + ids
            text, ids = self._text, self._ids
        meta = self._meta % (piece.retractions, piece.completion_tokens, piece.cached_tokens)
        return b'data: {"text":"%b","output_ids":[%b],"meta_info":%b%b' % (
            text,
            ids,
            meta,
            self._tail,
        )

    def _learn(self, body: dict[str, Any], piece: Piece) -> None:
        """Take from the first event what all later ones repeat."""
        rest = {key: value for key, value in body.items() if key not in ("text", "output_ids")}
        meta = {key: value for key, value in rest.pop("meta_info").items() if key not in COUNTS}
        fixed = encode(meta)[:-1].replace(b"%", b"%%")
        self._meta = fixed + b"".join(b',"%b":%%d' % name.encode() for name in COUNTS) + b"}"
        self._tail = (b"," + encode(rest)[1:] if rest else b"}") + b"\n\n"
        self._text = encode(piece.text)[1:-1]
        self._ids = encode(piece.tokens)[1:-1]
        self._quick = piece.finish is None
