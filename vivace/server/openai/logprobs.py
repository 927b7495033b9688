"""Log-probabilities in the two forms OpenAI's clients know."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Raw
from msgspec.json import encode

from vivace.frontend.fairness import Work
from vivace.frontend.tokenizer import Tokenizer
from vivace.protocol.messages import TokenLogprob
from vivace.server.openai.schema import (
    ChatLogprobs,
    CompletionLogprobs,
    ContentLogprob,
    TopLogprob,
)
from vivace.server.responses import EncodedList, batches

LOWEST = -9999.0
"""Stands for minus infinity, which JSON cannot say."""


def chat_logprobs(entries: Sequence[TokenLogprob], tokenizer: Tokenizer) -> ChatLogprobs:
    """content[{token, logprob, bytes, top_logprobs}], one per token."""
    return ChatLogprobs(content=[content_logprob(entry, tokenizer) for entry in entries])


def content_logprob(entry: TokenLogprob, tokenizer: Tokenizer) -> ContentLogprob:
    return ContentLogprob(
        token=tokenizer.token_text(entry.token),
        logprob=finite(entry.logprob),
        bytes=list(tokenizer.token_bytes(entry.token)),
        top_logprobs=[
            TopLogprob(
                token=tokenizer.token_text(token),
                logprob=finite(logprob),
                bytes=list(tokenizer.token_bytes(token)),
            )
            for logprob, token in entry.top or ()
        ],
    )


def encoded_chat_logprobs(entries: Sequence[TokenLogprob], tokenizer: Tokenizer) -> Work[Raw]:
    """`chat_logprobs` as JSON, in slices."""
    content = EncodedList()
    for number, batch in enumerate(batches(entries)):
        if number:
            yield
        content.extend([content_logprob(entry, tokenizer) for entry in batch])
    return Raw(b'{"content":%b,"refusal":null}' % b"".join(content.parts()))


def encoded_completion_logprobs(
    entries: Iterable[TokenLogprob], tokenizer: Tokenizer, offset: int = 0
) -> Work[tuple[Raw, int]]:
    """`completion_logprobs` as JSON, in slices; and the offset behind the last token."""
    lists = {name: EncodedList() for name in CompletionLogprobs.__struct_fields__}
    for number, batch in enumerate(batches(entries)):
        if number:
            yield
        some = completion_logprobs(batch, tokenizer, offset)
        offset = some.text_offset[-1] + len(some.tokens[-1])
        for name, column in lists.items():
            column.extend(getattr(some, name))
    columns = {name: Raw(b"".join(column.parts())) for name, column in lists.items()}
    return Raw(encode(columns)), offset


def completion_logprobs(
    entries: Sequence[TokenLogprob], tokenizer: Tokenizer, offset: int
) -> CompletionLogprobs:
    """Parallel lists; `offset` is where the first token's text starts in the choice's text."""
    texts = [tokenizer.token_text(entry.token) for entry in entries]
    offsets: list[int] = []
    for text in texts:
        offsets.append(offset)
        offset += len(text)
    return CompletionLogprobs(
        tokens=texts,
        token_logprobs=[
            None if entry.logprob is None else finite(entry.logprob) for entry in entries
        ],
        top_logprobs=[top_texts(entry, tokenizer) for entry in entries],
        text_offset=offsets,
    )


def top_texts(entry: TokenLogprob, tokenizer: Tokenizer) -> dict[str, float] | None:
    """Text -> logprob of the alternatives; the likeliest wins where two ids share a text.

    None where there are none: the first prompt token, or `logprobs: 0`.
    """
    if not entry.top:
        return None
    best: dict[str, float] = {}
    for logprob, token in entry.top:
        best.setdefault(tokenizer.token_text(token), finite(logprob))
    return best


def finite(logprob: float | None) -> float:
    return LOWEST if logprob is None or logprob < LOWEST else logprob
