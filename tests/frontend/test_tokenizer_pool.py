"""Long texts: what tokenizing one may hold, when it ends, and that it says what the whole says."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from vivace.config.child_process import child_environment
from vivace.frontend import tokenizer_pool
from vivace.frontend.errors import BadRequest
from vivace.frontend.tokenizer_pool import LONG_CHARACTERS, TokenizerPool

DASHES = 64


@dataclass
class Model:
    context: int = 1000
    allow_auto_truncate: bool = False


@dataclass
class Tokenizer:
    """64 dashes are a token; so is every other character. `counts`: tokens per call."""

    counts: list[int] = field(default_factory=list)

    def encode(self, text: str, special: bool = True) -> list[int]:
        long, rest = divmod(text.count("-"), DASHES)
        ids = [0] * special + [1] * long + [2] * (rest + len(text) - text.count("-"))
        self.counts.append(len(ids))
        return ids


def encode(tokenizer: Any, text: str, limit: int) -> list[int]:
    async def main() -> list[int]:
        pool, served = TokenizerPool(1), Model()
        try:
            return await pool.encode(tokenizer, text, True, served, limit)  # type: ignore[arg-type]
        finally:
            pool.close()

    return asyncio.run(main())


@pytest.mark.parametrize("beginning", [0, 500_000, 2_000_000])
def test_a_text_that_becomes_dense_takes_no_more_than_a_short_one(
    beginning: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer_pool, "MAX_TOKEN_CHARACTERS", 1 << 20)
    tokenizer, limit = Tokenizer(), 100_000
    with pytest.raises(BadRequest, match="100000"):
        encode(tokenizer, "-" * beginning + "7" * 8_000_000, limit)
    assert max(tokenizer.counts) <= limit * 9 // 8 + LONG_CHARACTERS
    assert sum(tokenizer.counts) <= 3 * limit + 2 * LONG_CHARACTERS


def test_memory_goes_back_after_each_long_text() -> None:
    released: list[None] = []

    async def main() -> None:
        pool, served = TokenizerPool(1, lambda: released.append(None)), Model(context=100_000)
        for length in (100, 5000, LONG_CHARACTERS + 1, 1 << 20):
            await pool.encode(Tokenizer(), "-" * length, True, served)  # type: ignore[arg-type]
        pool.close()

    asyncio.run(main())
    assert len(released) == 2


def test_who_leaves_has_no_more_of_it_tokenized(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_pool, "MAX_TOKEN_CHARACTERS", 1 << 20)
    tokenizer = Tokenizer()

    async def main() -> None:
        pool, served = TokenizerPool(1), Model()
        text = "-" * 8_000_000
        work = pool.encode(tokenizer, text, True, served, 300_000)  # type: ignore[arg-type]
        task = asyncio.create_task(work)
        while not tokenizer.counts:
            await asyncio.sleep(0.001)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        done = len(tokenizer.counts)
        await asyncio.sleep(0.1)
        assert len(tokenizer.counts) <= done + 1
        pool.close()

    asyncio.run(main())
    assert len(tokenizer.counts) < 8_000_000 // LONG_CHARACTERS


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.tuples(st.sampled_from("-7"), st.integers(0, 900)), max_size=8),
    st.integers(1, 1500),
)
@example([("-", 193), ("7", 128), ("-", 192)], 135)  # fewer tokens than its pieces: not cut
def test_the_answer_is_that_of_the_whole_text(runs: list[tuple[str, int]], limit: int) -> None:
    text = "".join(character * count for character, count in runs)
    whole = Tokenizer().encode(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizer_pool, "INLINE_CHARACTERS", 8)
        patch.setattr(tokenizer_pool, "LONG_CHARACTERS", 256)
        try:
            found = encode(Tokenizer(), text, limit)
        except BadRequest:
            assert len(whole) > limit
        else:
            assert found == whole and (len(whole) <= limit or len(text) <= 256)


def test_a_server_tokenizes_in_no_threads_but_its_own() -> None:
    """Where the system allows few (pids limit), the library's own would end a request in a panic:
    the connection was closed without an answer."""
    code = """
import os
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
core = Tokenizer(WordLevel({"a": 0}, unk_token="a"))
assert core.encode_batch_fast(["a"])[0].ids == [0]
print(len(os.listdir("/proc/self/task")))
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, env=child_environment(), capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "1\n", done.stderr


def test_threads_that_cannot_be_had_are_told_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by the first long text: it would be an error of ours, and those after it would wait for
    ever."""
    before = threading.active_count()
    pool = TokenizerPool(3)
    assert threading.active_count() == before + 3
    pool.close()

    def refuse(*_: Any) -> None:
        raise RuntimeError("thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="thread"):
        TokenizerPool(3)
