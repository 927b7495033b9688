"""Pieces -> events of OpenAI streams. What does not change is encoded once per stream."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

import msgspec

from vivace.frontend.request_output import RequestOutput
from vivace.frontend.tokenizer import Tokenizer
from vivace.protocol.output import Finish
from vivace.server.collect import failure
from vivace.server.openai.logprobs import (
    encoded_chat_logprobs,
    encoded_completion_logprobs,
)
from vivace.server.openai.usage import Tally, sglext
from vivace.server.pace import Work, whole

encode = msgspec.json.encode


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What the events of one stream have in common."""

    rid: str
    kind: str
    created: int
    model: str
    tokenizer: Tokenizer
    tally: Tally
    include_usage: bool = False
    continuous_usage: bool = False
    token_ids: bool = False
    logprobs: bool = False
    cached_details: bool = False
    service_tier: str | None = None

    @property
    def plain(self) -> bool:
        """Events between the first and the last differ in their text only."""
        return not (self.continuous_usage or self.token_ids or self.logprobs)

    def head(self) -> bytes:
        """The event up to its choices."""
        fields = {"id": self.rid, "object": self.kind, "created": self.created, "model": self.model}
        if self.service_tier is not None:
            fields["service_tier"] = self.service_tier
        return b"data: " + encode(fields)[:-1] + b',"choices":['

    def tail(self, index: int) -> bytes:
        """The event behind its choices."""
        if self.continuous_usage:
            return b'],"usage":' + encode(self.tally.usage_of(index)) + b"}\n\n"
        return b'],"usage":null}\n\n' if self.include_usage else b"]}\n\n"

    def epilogue(self) -> bytes:
        """The events of the whole answer that end a stream: cached tokens, usage."""
        events = b""
        if self.cached_details:
            events += self.head() + b'],"sglext":' + encode(sglext(self.tally)) + b"}\n\n"
        if self.include_usage:
            events += self.head() + b'],"usage":' + encode(self.tally.usage()) + b"}\n\n"
        return events


def finish_fields(finish: Finish | None) -> bytes:
    """finish_reason and the matched_stop extension, with the leading comma."""
    if finish is None:
        return b',"finish_reason":null,"matched_stop":null'
    reason, matched = encode(finish.type), encode(finish.matched)
    return b',"finish_reason":%b,"matched_stop":%b' % (reason, matched)


class ChatChunks:
    """Encodes the pieces of one choice of a chat stream."""

    def __init__(self, shape: Shape, index: int) -> None:
        self._shape = shape
        self._index = index
        self._choice = shape.head() + b'{"index":%d,"delta":' % index
        self._prefix = self._choice + b'{"content":'
        self._suffix = b'},"logprobs":null' + finish_fields(None) + b"}"
        self._tail = b"" if shape.continuous_usage else shape.tail(index)
        self._suffix += self._tail
        self._begun = False
        self._quick = False

    def __call__(self, piece: RequestOutput) -> bytes:
        if piece.finish is None:
            data = self.quick(piece.text, piece.tokens, piece.completion_tokens)
            if data is not None:
                return data
        return self._general(piece, whole(self._logprobs(piece)))

    def parts(self, piece: RequestOutput) -> Work[list[bytes]] | None:
        """The events of a piece with log-probabilities, which may be long; None for others."""
        return self._in_parts(piece) if self._shape.logprobs else None

    def _in_parts(self, piece: RequestOutput) -> Work[list[bytes]]:
        logprobs = yield from self._logprobs(piece)
        return [self._general(piece, logprobs)]

    def quick(self, text: str, _tokens: list[int], _count: int) -> bytes | None:
        """The event of mere text; None before the first piece, and when events show more."""
        if not self._quick:
            return None
        return b"".join((self._prefix, encode(text), self._suffix)) if text else b""

    def _general(self, piece: RequestOutput, logprobs: bytes) -> bytes:
        """Any piece; the first, the last and those with details come here."""
        self._shape.tally.note(self._index, piece)
        self._quick = self._shape.plain
        failed = failure(piece.finish)
        if failed is not None:
            return failed
        data = b"" if self._begun else self._event(b'{"role":"assistant","content":""}')
        self._begun = True
        ids = b""
        if self._shape.token_ids and piece.tokens:
            ids = b',"token_ids":' + encode(piece.tokens)
        if piece.text or ids or logprobs != b"null":
            delta = b'{"content":' + encode(piece.text) + b"}"
            data += self._event(delta, logprobs=logprobs, ids=ids)
        if piece.finish is not None:
            data += self._event(b"{}", finish=piece.finish)
        return data

    def _logprobs(self, piece: RequestOutput) -> Work[bytes]:
        """JSON of the log-probabilities; pauses only where there is more to do."""
        if not self._shape.logprobs or not piece.logprobs:
            return b"null"
        return bytes((yield from encoded_chat_logprobs(piece.logprobs, self._shape.tokenizer)))

    def _event(
        self,
        delta: bytes,
        *,
        finish: Finish | None = None,
        logprobs: bytes = b"null",
        ids: bytes = b"",
    ) -> bytes:
        tail = self._tail or self._shape.tail(self._index)
        fields = b"".join((b',"logprobs":', logprobs, finish_fields(finish), ids, b"}"))
        return b"".join((self._choice, delta, fields, tail))


class CompletionChunks:
    """Encodes the pieces of one choice of a completion stream; `echo` is the prompt's text."""

    def __init__(self, shape: Shape, index: int, echo: str = "", prompt: bool = False) -> None:
        """`prompt` adds the prompt's log-probabilities to the first event."""
        self._shape = shape
        self._index = index
        self._echo = echo
        self._prompt = prompt
        self._choice = shape.head() + b'{"index":%d,"text":' % index
        self._suffix = b',"logprobs":null' + finish_fields(None) + b"}"
        self._tail = b"" if shape.continuous_usage else shape.tail(index)
        self._suffix += self._tail
        self._begun = False
        self._quick = False
        self._offset = 0

    def __call__(self, piece: RequestOutput) -> bytes:
        if piece.finish is None:
            data = self.quick(piece.text, piece.tokens, piece.completion_tokens)
            if data is not None:
                return data
        return self._general(piece, whole(self._logprobs(piece)))

    def parts(self, piece: RequestOutput) -> Work[list[bytes]] | None:
        """The event of a piece with log-probabilities, which may be long; None for others."""
        return self._in_parts(piece) if self._shape.logprobs else None

    def _in_parts(self, piece: RequestOutput) -> Work[list[bytes]]:
        logprobs = yield from self._logprobs(piece)
        return [self._general(piece, logprobs)]

    def quick(self, text: str, _tokens: list[int], _count: int) -> bytes | None:
        """The event of mere text; None before the first piece, and when events show more."""
        if not self._quick:
            return None
        return b"".join((self._choice, encode(text), self._suffix)) if text else b""

    def _general(self, piece: RequestOutput, logprobs: bytes) -> bytes:
        """Any piece; the first, the last and those with details come here."""
        self._shape.tally.note(self._index, piece)
        self._quick = self._shape.plain
        failed = failure(piece.finish)
        if failed is not None:
            return failed
        text = piece.text if self._begun else self._echo + piece.text
        self._begun = True
        if not text and piece.finish is None and logprobs == b"null" and not piece.tokens:
            return b""
        ids = b""
        if self._shape.token_ids:
            ids = b',"token_ids":' + encode(piece.tokens)
        tail = self._tail or self._shape.tail(self._index)
        fields = b"".join((b',"logprobs":', logprobs, finish_fields(piece.finish), ids, b"}"))
        return b"".join((self._choice, encode(text), fields, tail))

    def _logprobs(self, piece: RequestOutput) -> Work[bytes]:
        """JSON of the log-probabilities; pauses only where there is more to do."""
        prompt = (piece.prompt_logprobs if self._prompt else None) or ()
        if not self._shape.logprobs or not (prompt or piece.logprobs):
            return b"null"
        entries = chain(prompt, piece.logprobs or ())
        work = encoded_completion_logprobs(entries, self._shape.tokenizer, self._offset)
        logprobs, self._offset = yield from work
        return bytes(logprobs)
