"""Tokenizing beside the event loop: short texts at once, others in threads, so that no text delays
a stream or another text, and the work of a client that has left ends soon."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from threading import Event
from typing import Any, TypeVar

from vivace.frontend.errors import BadRequest
from vivace.frontend.fairness import CURRENT_CLIENT, FairQueue, QueueFull
from vivace.frontend.served_model import ServedModel
from vivace.frontend.tokenizer import Tokenizer
from vivace.frontend.validation import too_long

T = TypeVar("T")

INLINE_CHARACTERS = 512
"""Longer texts are tokenized in a thread."""
LONG_CHARACTERS = 64 << 10
"""Longer texts wait for each other, so that there is always a thread for the others."""
GROUP_CHARACTERS = 16 << 10
"""Of texts that are tokenized in one go; that much goes on when a client has left."""
MAX_TOKEN_CHARACTERS = 256
"""Characters; bounds from below how many tokens a text has."""


class TokenizerPool:
    """Threads that tokenize for one frontend."""

    def __init__(self, threads: int, release: Callable[[], None] = lambda: None) -> None:
        """`release` gives freed memory back to the system: a long text leaves much in its thread.

        Raises RuntimeError when the system starts no more threads: later a text would wait for
        them without end."""
        self._release = release
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="tokenizer")
        started = Event()
        try:
            for _ in range(threads):
                self._pool.submit(started.wait)
        finally:
            started.set()
        self._short = FairExecutor(
            self._pool, threads, max_entries=4096, max_per_client=1024, max_size=64 << 20
        )
        self._long = FairExecutor(
            self._pool, 1, max_entries=256, max_per_client=64, max_size=128 << 20
        )

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def encode(
        self,
        tokenizer: Tokenizer,
        text: str,
        special: bool,
        served: ServedModel,
        max_tokens: int | None = None,
    ) -> list[int]:
        """Token ids of a text. BadRequest when it is no Unicode, or has more than `max_tokens`;
        None = when it cannot fit the context."""
        text = bounded(text, served, max_tokens)
        if len(text) <= INLINE_CHARACTERS:
            return tokenizer.encode(text, special)
        if len(text) <= LONG_CHARACTERS:
            return await self._short.run(len(text), tokenizer.encode, text, special)
        limit = 2 * served.context if max_tokens is None else max_tokens
        ids = await self._encode_beginning(tokenizer, text, special, limit)
        if len(ids) <= limit or (served.allow_auto_truncate and max_tokens is None):
            return ids
        if max_tokens is None:
            raise too_long("text", f"at least {len(ids)}", served)
        raise too_many(len(ids), max_tokens)

    async def _encode_beginning(
        self, tokenizer: Tokenizer, text: str, special: bool, limit: int
    ) -> list[int]:
        """Ids of the text, or of so much of it that they are more than `limit`: to tokenize all of
        a text that is far too long would cost minutes, and 300 bytes a token meanwhile."""
        end = len(text)
        if end > max(limit, LONG_CHARACTERS):
            end = await self._beginning(tokenizer, text, limit)
        ids = await self._long.run(end, self._encode_long, tokenizer, text[:end], special)
        if end == len(text) or len(ids) > limit:
            return ids
        # The pieces had many tokens more than the same text without cuts.
        return await self._long.run(len(text), self._encode_long, tokenizer, text, special)

    def _encode_long(self, tokenizer: Tokenizer, text: str, special: bool) -> list[int]:
        try:
            return tokenizer.encode(text, special)
        finally:
            self._release()

    async def _beginning(self, tokenizer: Tokenizer, text: str, limit: int) -> int:
        """How much of the text has more than `limit` tokens, in characters; all when none has.

        It is counted in pieces, so that little is held and little goes on when the client has left.
        """
        enough = limit + limit // 8  # as a cut may make a token more
        count = 0
        for start in range(0, len(text), LONG_CHARACTERS):
            piece = text[start : start + LONG_CHARACTERS]
            count += len(await self._long.run(len(piece), tokenizer.encode, piece, False))
            if count > enough:
                return start + len(piece)
        return len(text)

    async def encode_all(
        self,
        tokenizer: Tokenizer,
        texts: Sequence[str],
        special: bool,
        served: ServedModel,
        max_tokens: int | None = None,
    ) -> AsyncIterator[list[list[int]]]:
        """Token ids of many texts in their order, some texts at a time; see `encode`."""
        for group in groups(texts):
            if len(group) == 1:
                yield [await self.encode(tokenizer, group[0], special, served, max_tokens)]
            else:
                size = sum(map(len, group))
                yield await self._short.run(size, encode_each, tokenizer, group, special)


class FairExecutor:
    """Some threads' time, for which clients take turns. At most `max_entries` pieces of work wait,
    `max_per_client` of one client, of together at most `max_size` characters."""

    def __init__(
        self,
        pool: ThreadPoolExecutor,
        places: int,
        *,
        max_entries: int,
        max_per_client: int,
        max_size: int,
    ) -> None:
        self._pool = pool
        self._places = places
        self._limits = max_entries, max_per_client, max_size
        self._loop: asyncio.AbstractEventLoop | None = None

    async def run(self, size: int, work: Callable[..., T], *args: Any) -> T:
        """The result of `work`, in a thread, when it is the client's turn. BadRequest 503 when too
        much waits."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._open(loop)
        place: asyncio.Future[None] = loop.create_future()
        try:
            entry = self._waiting.add(CURRENT_CLIENT.get(), size, place)
        except QueueFull:
            raise busy() from None
        self._next()
        try:
            await place
        except asyncio.CancelledError:
            self._waiting.remove(entry)
            if place.done() and not place.cancelled() and place.exception() is None:
                self._release(loop)
            raise
        job = self._pool.submit(work, *args)
        job.add_done_callback(lambda _: self._done(loop))
        return await asyncio.wrap_future(job)

    def _open(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._free = self._places
        self._waiting: FairQueue[asyncio.Future[None]] = FairQueue(
            *self._limits, GROUP_CHARACTERS, refuse
        )

    def _next(self) -> None:
        while self._free and (entry := self._waiting.next()) is not None:
            if not entry.item.done():  # cancelled in this turn of the loop
                self._free -= 1
                entry.item.set_result(None)

    def _done(self, loop: asyncio.AbstractEventLoop) -> None:
        """In the thread: it is free, whether or not the caller has left."""
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(self._release, loop)

    def _release(self, loop: asyncio.AbstractEventLoop) -> None:
        if loop is self._loop:
            self._free += 1
            self._next()


def refuse(place: asyncio.Future[None]) -> None:
    if not place.done():
        place.set_exception(busy())


def busy() -> BadRequest:
    return BadRequest("text", "too many texts wait to be tokenized", 503, retry_after=1)


@contextmanager
def text_named(field: str) -> Iterator[None]:
    """What is wrong with a `text` inside is reported for `field`, which the client sent it in."""
    try:
        yield
    except BadRequest as error:
        if error.field != "text":
            raise
        raise error.of_field(field) from None


def encode_each(tokenizer: Tokenizer, texts: list[str], special: bool) -> list[list[int]]:
    """Token ids of texts, on this thread alone."""
    return [tokenizer.encode(text, special) for text in texts]


def groups(texts: Sequence[str]) -> Iterator[list[str]]:
    """Neighbors of together at most GROUP_CHARACTERS; a longer text stands alone."""
    group: list[str] = []
    size = 0
    for text in texts:
        if group and size + len(text) > GROUP_CHARACTERS:
            yield group
            group, size = [], 0
        group.append(text)
        size += len(text) + 1
    if group:
        yield group


def too_many(least: int, allowed: int) -> BadRequest:
    return BadRequest("text", f"has at least {least} tokens; at most {allowed} are allowed")


def bounded(text: str, served: ServedModel, max_tokens: int | None) -> str:
    """The text, or what can fit the context of it; BadRequest when it cannot fit, or has more than
    `max_tokens`, whatever the context."""
    limit = (max_tokens or served.context) * MAX_TOKEN_CHARACTERS
    if len(text) <= limit:
        return text
    if max_tokens is not None:
        raise too_many(len(text) // MAX_TOKEN_CHARACTERS, max_tokens)
    if not served.allow_auto_truncate:
        raise too_long("text", f"at least {len(text) // MAX_TOKEN_CHARACTERS}", served)
    return text[:limit]
