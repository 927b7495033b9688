"""The index of n-gram drafts in the library of kernels: kernels/ngram.cpp.

It gets ids that are larger by a secret number, which change nothing in what it finds. Otherwise a
text could be made whose n-grams all lie side by side in its tables: 30,000 tokens of one took 4 s.
"""

from __future__ import annotations

import ctypes
import secrets
import weakref
from array import array
from collections.abc import Sequence
from functools import cache

import numpy as np

from vivace.platforms.cpu.library import load_library
from vivace.platforms.ngrams import SPACE_BYTES, NgramProposals, NgramSettings

MOST_SECRET = 1 << 30
"""twice this is what an id may be there; vocabularies have fewer"""

CORPUS_PART = 1 << 14
"""tokens: about 10 ms beside a million"""


class NativeNgramIndex:
    def __init__(self, settings: NgramSettings) -> None:
        """Raises NoKernels, StaleKernels, MemoryError."""
        self._width = settings.width
        self._secret = secrets.randbelow(MOST_SECRET)
        self._library = load_ngrams()
        given = np.array(
            [
                settings.width,
                settings.shortest,
                settings.longest,
                settings.depth,
                settings.capacity,
                settings.by_frequency,
                settings.budget,
            ],
            np.int64,
        )
        self._index = self._library.vv_ngram_open(given.ctypes.data)
        if not self._index:
            raise MemoryError("no memory for an index of n-grams")
        self._make_room(1)
        weakref.finalize(self, self._library.vv_ngram_close, self._index)

    @property
    def nodes(self) -> int:
        return self._library.vv_ngram_nodes(self._index)

    @property
    def nbytes(self) -> int:
        return self._library.vv_ngram_bytes(self._index)

    def join(self, row: int, space: bytes, tokens: list[int], known: int) -> None:
        if len(space) != SPACE_BYTES:
            raise ValueError(f"ngrams: a space of {len(space)} bytes, not {SPACE_BYTES}")
        text = self._hide(tokens)  # which the call reads
        ids, count = text.ctypes.data, text.size
        self._check(self._library.vv_ngram_join(self._index, row, space, ids, count, max(0, known)))

    def leave(self, row: int) -> None:
        self._check(self._library.vv_ngram_leave(self._index, row))

    def learn(self, rows: list[int], counts: list[int], tokens: list[int]) -> None:
        if len(rows) != len(counts) or min(counts, default=0) < 0 or sum(counts) != len(tokens):
            raise ValueError("ngrams: counts are not those of the rows' tokens")
        numbers, sizes, ids = array("q", rows), array("q", counts), self._hide(tokens)
        places = numbers.buffer_info()[0], sizes.buffer_info()[0], ids.ctypes.data
        self._check(self._library.vv_ngram_learn(self._index, len(rows), *places))

    def propose(self, rows: list[int]) -> NgramProposals:
        if len(rows) > len(self._counts):
            self._make_room(len(rows))
        numbers, width = array("q", rows), self._width
        self._check(
            self._library.vv_ngram_propose(
                self._index, len(rows), numbers.buffer_info()[0], *self._places
            )
        )
        starts, counts = range(0, len(rows) * width, width), self._counts[: len(rows)]
        drafts = self._show(self._drafts[: len(rows) * width])
        return NgramProposals(
            [drafts[start : start + count] for start, count in zip(starts, counts, strict=True)],
            self._lengths[: len(rows)].tolist(),
        )

    def branch(
        self, row: int, drafts: list[int], most: int, least: int
    ) -> tuple[list[int], list[int]]:
        given = len(drafts)
        if given > self._width:
            raise ValueError(f"ngrams: {given} drafts, the index has {self._width}")
        ids, parents = np.zeros(self._width, np.int32), np.arange(-1, self._width - 1, dtype="i4")
        ids[:given], count = self._hide(drafts), array("q", [given])
        places = ids.ctypes.data, parents.ctypes.data, count.buffer_info()[0]
        self._check(self._library.vv_ngram_branch(self._index, row, *places, most, least))
        return self._show(ids[: count[0]]), parents[: count[0]].tolist()

    def _make_room(self, rows: int) -> None:
        """For what that many rows are proposed."""
        self._drafts = np.zeros(rows * self._width, np.int32)
        self._counts, self._lengths = array("q", bytes(8 * rows)), array("q", bytes(8 * rows))
        results = (one.buffer_info()[0] for one in (self._counts, self._lengths))
        self._places = self._drafts.ctypes.data, *results

    def _hide(self, tokens: Sequence[int]) -> np.ndarray:
        """int32"""
        return np.array(tokens, np.int32) + np.int32(self._secret)

    def _show(self, ids: np.ndarray) -> list[int]:
        return (ids - self._secret).tolist()

    corpus_part = CORPUS_PART

    def add_corpus(self, tokens: np.ndarray) -> None:
        ids = np.where(tokens < 0, tokens, tokens + self._secret).astype(np.int32)
        self._check(self._library.vv_ngram_add_corpus(self._index, ids.ctypes.data, ids.size))

    def remove_corpus(self, place: int) -> None:
        self._check(self._library.vv_ngram_remove_corpus(self._index, place))

    @staticmethod
    def _check(status: int) -> None:
        if status:
            raise MemoryError("no memory for the n-grams of a text")


@cache
def load_ngrams() -> ctypes.CDLL:
    """Raises NoKernels, StaleKernels."""
    library = load_library()
    word, pointer = ctypes.c_int64, ctypes.c_void_p
    for name, result, arguments in (
        ("vv_ngram_open", pointer, (pointer,)),
        ("vv_ngram_close", None, (pointer,)),
        ("vv_ngram_join", word, (pointer, word, ctypes.c_char_p, pointer, word, word)),
        ("vv_ngram_leave", word, (pointer, word)),
        ("vv_ngram_learn", word, (pointer, word, pointer, pointer, pointer)),
        ("vv_ngram_propose", word, (pointer, word, pointer, pointer, pointer, pointer)),
        ("vv_ngram_branch", word, (pointer, word, pointer, pointer, pointer, word, word)),
        ("vv_ngram_add_corpus", word, (pointer, pointer, word)),
        ("vv_ngram_remove_corpus", word, (pointer, word)),
        ("vv_ngram_nodes", word, (pointer,)),
        ("vv_ngram_bytes", word, (pointer,)),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
