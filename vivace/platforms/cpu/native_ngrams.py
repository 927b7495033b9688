"""The index of n-gram drafts in the library of kernels: kernels/ngram.cpp."""

from __future__ import annotations

import ctypes
import weakref
from array import array
from functools import cache

import numpy as np

from vivace.platforms.cpu.library import load_library
from vivace.platforms.ngrams import SPACE_BYTES, NgramProposals, NgramSettings


class NativeNgramIndex:
    def __init__(self, settings: NgramSettings) -> None:
        """Raises NoKernels, StaleKernels, MemoryError."""
        self._width = settings.width
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
        text = array("i", tokens)  # which the call reads
        ids, count = text.buffer_info()
        self._check(self._library.vv_ngram_join(self._index, row, space, ids, count, max(0, known)))

    def leave(self, row: int) -> None:
        self._check(self._library.vv_ngram_leave(self._index, row))

    def learn(self, rows: list[int], counts: list[int], tokens: list[int]) -> None:
        if len(rows) != len(counts) or min(counts, default=0) < 0 or sum(counts) != len(tokens):
            raise ValueError("ngrams: counts are not those of the rows' tokens")
        numbers, sizes, ids = array("q", rows), array("q", counts), array("i", tokens)
        places = (one.buffer_info()[0] for one in (numbers, sizes, ids))
        self._check(self._library.vv_ngram_learn(self._index, len(rows), *places))

    def propose(self, rows: list[int]) -> NgramProposals:
        if len(rows) > len(self._counts):
            self._make_room(len(rows))
        numbers, width, drafts = array("q", rows), self._width, self._drafts
        self._check(
            self._library.vv_ngram_propose(
                self._index, len(rows), numbers.buffer_info()[0], *self._places
            )
        )
        starts, counts = range(0, len(rows) * width, width), self._counts[: len(rows)]
        return NgramProposals(
            [
                drafts[start : start + count].tolist()
                for start, count in zip(starts, counts, strict=True)
            ],
            self._lengths[: len(rows)].tolist(),
        )

    def branch(
        self, row: int, drafts: list[int], most: int, least: int
    ) -> tuple[list[int], list[int]]:
        given, spare = len(drafts), bytes(4 * max(0, self._width - len(drafts)))
        if given > self._width:
            raise ValueError(f"ngrams: {given} drafts, the index has {self._width}")
        ids, parents = array("i", drafts), array("i", range(-1, given - 1))
        count = array("q", [given])
        for one in (ids, parents):
            one.frombytes(spare)
        places = (one.buffer_info()[0] for one in (ids, parents, count))
        self._check(self._library.vv_ngram_branch(self._index, row, *places, most, least))
        return ids[: count[0]].tolist(), parents[: count[0]].tolist()

    def _make_room(self, rows: int) -> None:
        """For what that many rows are proposed."""
        self._drafts = array("i", bytes(4 * rows * self._width))
        self._counts, self._lengths = array("q", bytes(8 * rows)), array("q", bytes(8 * rows))
        results = self._drafts, self._counts, self._lengths
        self._places = tuple(one.buffer_info()[0] for one in results)

    def add_corpus(self, tokens: np.ndarray) -> None:
        ids = np.ascontiguousarray(tokens, np.int32)
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
