"""Tokenising beside the event loop: short texts at once, others in threads, so that no text delays
a stream or another text, and the work of a client that has left ends soon."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

from vivace.frontend.errors import BadRequest
from vivace.frontend.served import ServedModel
from vivace.frontend.tokenizer import Tokenizer
from vivace.frontend.validation import too_long

T = TypeVar("T")

INLINE_CHARACTERS = 512
"""Longer texts are tokenised in a thread."""
LONG_CHARACTERS = 64 << 10
"""Longer texts wait for each other, so that there is always a thread for the others."""
GROUP_CHARACTERS = 16 << 10
"""Of texts that are tokenised in one go; that much goes on when a client has left."""
LONGEST_TOKEN = 256
"""Characters; bounds from below how many tokens a text has."""


class TokenizerPool:
    """Threads that tokenise for one frontend."""

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="tokenizer")
        self._long = asyncio.Lock()

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def encode(
        self,
        tokenizer: Tokenizer,
        text: str,
        special: bool,
        served: ServedModel,
        most: int | None = None,
    ) -> list[int]:
        """Token ids of a text. BadRequest when it is no Unicode, or has more than `most` tokens;
        None = when it cannot fit the context."""
        text = bounded(text, served)
        if len(text) <= INLINE_CHARACTERS:
            return tokenizer.encode(text, special)
        if len(text) <= LONG_CHARACTERS:
            return await self._run(tokenizer.encode, text, special)
        limit = 2 * served.context if most is None else most
        ids = await self._encode_beginning(tokenizer, text, special, limit)
        if len(ids) <= limit or (served.allow_auto_truncate and most is None):
            return ids
        if most is None:
            raise too_long("text", f"at least {len(ids)}", served)
        raise BadRequest("text", f"has at least {len(ids)} tokens; at most {most} are allowed")

    async def _encode_beginning(
        self, tokenizer: Tokenizer, text: str, special: bool, limit: int
    ) -> list[int]:
        """Ids of the text, or of so much of it that they are more than `limit`: to tokenise all of
        a text that is far too long would cost minutes."""
        window = max(limit, LONG_CHARACTERS)
        while True:
            ids = await self._run_long(tokenizer.encode, text[:window], special)
            if window >= len(text) or len(ids) > limit:
                return ids
            window *= 4  # most texts that fit have fewer tokens than characters

    async def encode_all(
        self,
        tokenizer: Tokenizer,
        texts: Sequence[str],
        special: bool,
        served: ServedModel,
        most: int | None = None,
    ) -> AsyncIterator[list[list[int]]]:
        """Token ids of many texts in their order, some texts at a time; see `encode`."""
        for group in groups(texts):
            if len(group) == 1:
                yield [await self.encode(tokenizer, group[0], special, served, most)]
            else:
                yield await self._run(encode_each, tokenizer, group, special)

    async def _run_long(self, work: Callable[..., T], *args: Any) -> T:
        """`_run`, one at a time; whoever comes next waits for the thread, not for the caller, who
        may leave."""
        await self._long.acquire()
        loop = asyncio.get_running_loop()

        def done(_: object) -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._long.release)

        job = self._pool.submit(work, *args)
        job.add_done_callback(done)
        return await asyncio.wrap_future(job)

    async def _run(self, work: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work, *args)


def encode_each(tokenizer: Tokenizer, texts: list[str], special: bool) -> list[list[int]]:
    """Token ids of texts, on this thread alone."""
    return [tokenizer.encode(text, special) for text in texts]


def groups(texts: Sequence[str]) -> Iterator[list[str]]:
    """Neighbours of together at most GROUP_CHARACTERS; a longer text stands alone."""
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


def bounded(text: str, served: ServedModel) -> str:
    """The text, or what can fit the context of it; BadRequest when it cannot fit."""
    most = served.context * LONGEST_TOKEN
    if len(text) <= most:
        return text
    if not served.allow_auto_truncate:
        raise too_long("text", f"at least {len(text) // LONGEST_TOKEN}", served)
    return text[:most]
