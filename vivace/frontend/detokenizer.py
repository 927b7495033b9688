"""Text of one answer, token by token, and the stop strings in it.

What `push` and `flush` return, joined, equals `Tokenizer.decode` of all the tokens: an incomplete
UTF-8 character is held back until its last byte came, or until the answer ends.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from vivace.frontend.tokenizer import OTHER, TokenBytes, Tokenizer
from vivace.protocol.messages import Request
from vivace.protocol.tasks import Embed


@dataclass(frozen=True, slots=True)
class StopHit:
    """`text` is what may still be shown (the stop string itself only with `keep`)."""

    text: str
    matched: str


class StopStrings:
    """Watches a text for the first stop string that becomes complete; ties go to the longest.

    The answer does not depend on how the text is cut into chunks. Text that could be the
    beginning of a stop string is held back, unless `keep` (no_stop_trim) shows matches anyway.
    Cost: nothing per character while no stop string has begun, else one Knuth-Morris-Pratt step
    per character and stop string.
    """

    __slots__ = ("_failures", "_firsts", "_held", "_keep", "_states", "_stops")

    def __init__(self, stops: Sequence[str], *, keep: bool = False) -> None:
        self._stops = list(stops)
        self._failures = [_failure_table(stop) for stop in stops]
        self._states = [0] * len(self._stops)
        self._firsts = frozenset(stop[0] for stop in stops)
        self._held = ""
        self._keep = keep

    def push(self, text: str) -> str | StopHit:
        """New text in; text that is safe to show out, or the hit that ends the answer."""
        if not any(self._states) and self._firsts.isdisjoint(text):
            return text
        for index, char in enumerate(text):
            matched = self._step(char)
            if matched is not None:
                return self._hit(self._held + text[: index + 1], matched)
        return self._release(self._held + text)

    def flush(self) -> str:
        """The answer ended otherwise: what was held back is ordinary text."""
        held, self._held = self._held, ""
        return held

    def _step(self, char: str) -> str | None:
        longest: str | None = None
        for which, stop in enumerate(self._stops):
            state, failures = self._states[which], self._failures[which]
            while state and stop[state] != char:
                state = failures[state - 1]
            if stop[state] == char:
                state += 1
            if state == len(stop):
                longest = stop if longest is None or len(stop) > len(longest) else longest
                state = failures[state - 1]
            self._states[which] = state
        return longest

    def _hit(self, seen: str, matched: str) -> StopHit:
        self._held = ""
        return StopHit(seen if self._keep else seen[: len(seen) - len(matched)], matched)

    def _release(self, buffer: str) -> str:
        hold = 0 if self._keep else max(self._states)
        self._held = buffer[len(buffer) - hold :]
        return buffer[: len(buffer) - hold]


def _failure_table(pattern: str) -> list[int]:
    """Per position: length of the longest proper prefix that is also a suffix there."""
    table = [0] * len(pattern)
    length = 0
    for index in range(1, len(pattern)):
        while length and pattern[index] != pattern[length]:
            length = table[length - 1]
        if pattern[index] == pattern[length]:
            length += 1
        table[index] = length
    return table


_Decoder = codecs.getincrementaldecoder("utf-8")


class Detokenizer(Protocol):
    def push(self, tokens: Sequence[int]) -> str: ...

    def flush(self) -> str: ...


def detokenizer(
    tokenizer: Tokenizer,
    prompt: Sequence[int] = (),
    *,
    skip_special_tokens: bool = True,
    spaces_between_special_tokens: bool = True,
    shown: frozenset[int] = frozenset(),
) -> Detokenizer:
    """A detokenizer for the answer to `prompt`. `shown`: special tokens that are never skipped.

    Behind a prompt with visible text the leading space of the first token belongs to the answer;
    at the very start of a text SentencePiece models do not show it.
    """
    hidden = tokenizer.special_ids if skip_special_tokens else frozenset()
    if tokenizer.token_table.decoding.kind == OTHER:
        return WindowDetokenizer(
            tokenizer, skip_special_tokens, spaces_between_special_tokens, shown
        )
    strips = tokenizer.token_table.decoding.strips_start and not any(
        token not in hidden for token in reversed(prompt)
    )
    table = tokenizer.token_table
    return ByteDetokenizer(table, skip=skip_special_tokens, strip_start=strips, shown=shown)


def answer_detokenizer(
    request: Request, tokenizer: Tokenizer | None, shown: frozenset[int]
) -> Detokenizer | None:
    """None: the answer has no text."""
    if tokenizer is None or isinstance(request.task, Embed):
        return None
    return detokenizer(
        tokenizer,
        request.tokens,
        skip_special_tokens=request.sampling.skip_special_tokens,
        spaces_between_special_tokens=request.sampling.spaces_between_special_tokens,
        shown=shown,
    )


class ByteDetokenizer:
    """For byte-level and SentencePiece vocabularies: one table look-up for most tokens."""

    __slots__ = ("_bytes", "_clean", "_decoder", "_hidden", "_strip", "_texts")

    def __init__(
        self,
        token_table: TokenBytes,
        *,
        skip: bool,
        strip_start: bool,
        shown: frozenset[int] = frozenset(),
    ) -> None:
        self._bytes = token_table.bytes
        self._hidden, self._texts = (
            token_table.skipping(shown) if skip else (frozenset[int](), token_table.texts)
        )
        self._strip = strip_start
        self._decoder: codecs.IncrementalDecoder | None = None
        self._clean = True  # no part of a character is held back

    def push(self, tokens: Sequence[int]) -> str:
        if self._clean:
            if len(tokens) == 1:
                text = self._texts[tokens[0]]
            else:
                texts = self._texts
                parts = [texts[token] for token in tokens]
                text = None if None in parts else "".join(parts)  # type: ignore[arg-type]
            if text is not None:
                return self._without_start(text) if self._strip else text
        return self._push_bytes(tokens)

    def _push_bytes(self, tokens: Sequence[int]) -> str:
        if self._decoder is None:
            self._decoder = _Decoder("replace")
        table, hidden = self._bytes, self._hidden
        data = b"".join([table[token] for token in tokens if token not in hidden])
        text = self._decoder.decode(data)
        self._clean = not self._decoder.getstate()[0]
        return self._without_start(text) if self._strip else text

    def _without_start(self, text: str) -> str:
        if text:
            self._strip = False
        return text[1:] if text.startswith(" ") else text

    def flush(self) -> str:
        """What was held back, with U+FFFD for a character that never became whole."""
        if self._clean or self._decoder is None:
            return ""
        self._clean = True
        text = self._decoder.decode(b"", True)
        return self._without_start(text) if self._strip else text


MOST_WAITS = 16
"""pushes in a row whose text is held back; behind them all but the last tokens are garbage"""
LAST_TOKENS = 4
"""of which one character may consist"""


class WindowDetokenizer:
    """For unusual decoders: decodes a short window twice and returns the difference."""

    __slots__ = (
        "_hidden",
        "_read",
        "_skip",
        "_spaces",
        "_start",
        "_tokenizer",
        "_tokens",
        "_waits",
    )

    def __init__(
        self,
        tokenizer: Tokenizer,
        skip: bool,
        spaces: bool,
        shown: frozenset[int] = frozenset(),
    ) -> None:
        self._hidden = tokenizer.special_ids - shown if skip and shown else frozenset[int]()
        skip = skip and not shown
        self._tokenizer = tokenizer
        self._skip = skip
        self._spaces = spaces
        self._tokens: list[int] = []
        self._start = 0
        self._read = 0
        self._waits = 0

    def push(self, tokens: Sequence[int]) -> str:
        self._tokens.extend(token for token in tokens if token not in self._hidden)
        before = self._decode(self._tokens[self._start : self._read])
        now = self._decode(self._tokens[self._start :])
        end = len(self._tokens)
        if len(now) <= len(before) or now.endswith("\ufffd"):
            self._waits += 1
            if self._waits <= MOST_WAITS:
                return ""
            end = max(self._read, end - LAST_TOKENS)
            now = self._decode(self._tokens[self._start : end])
        self._start, self._read, self._waits = self._read, end, 0
        return now[len(before) :]

    def flush(self) -> str:
        before = self._decode(self._tokens[self._start : self._read])
        now = self._decode(self._tokens[self._start :])
        self._start = self._read = len(self._tokens)
        return now[len(before) :]

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, self._skip, self._spaces)
