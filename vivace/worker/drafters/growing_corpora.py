"""Texts that n-gram drafts come from, as they come into the index and leave it: a part in each
step, since to sort a long text at once would pause every stream."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vivace.platforms.ngrams import NgramIndex

MOST_PARTS = 64
"""of a text, or twice as many that end with documents: to take one out the index passes all"""
BOUNDARY = -1
"""stands behind each document"""


@dataclass
class GrowingCorpus:
    name: str
    size: int
    """tokens, with ends of documents"""
    waiting: np.ndarray
    """int32: those that are not in the index yet"""
    parts: int = 0
    """in the index, one behind the other"""
    leaves: bool = False


class GrowingCorpora:
    """In the order in which they came, which is that of their parts in the index."""

    def __init__(self, index: NgramIndex, overlap: int) -> None:
        """`overlap`: tokens that drafts may need behind the first one of what they follow"""
        self._index = index
        self._overlap = overlap
        self._corpora: list[GrowingCorpus] = []
        self.names: dict[str, int] = {}
        """those that do not leave, with their tokens, ends of documents not counted"""

    @property
    def tokens(self) -> int:
        """of all that are not gone, with ends of documents"""
        return sum(one.size for one in self._corpora)

    def add(self, name: str, tokens: np.ndarray) -> None:
        self._corpora.append(GrowingCorpus(name, len(tokens), tokens))
        self.names[name] = int((tokens >= 0).sum())

    def remove(self, name: str) -> None:
        del self.names[name]
        for one in self._corpora:
            one.leaves |= one.name == name

    def step(self) -> bool:
        """Take a part out or put one in; False where nothing is left to do."""
        changing = [one for one in self._corpora if one.leaves or len(one.waiting)]
        if not changing:
            return False
        leaving = next((one for one in changing if one.leaves), None)
        if leaving is None:
            self._put_in(changing[0])
        else:
            self._take_out(leaving)
        return True

    def _put_in(self, one: GrowingCorpus) -> None:
        """Up to the end of a document, or where one goes on with what drafts need of the next
        part."""
        tokens, end = one.waiting, max(self._index.corpus_part, -(-one.size // MOST_PARTS))
        if end < len(tokens) and len(ends := np.flatnonzero(tokens[:end] == BOUNDARY)):
            end = int(ends[-1]) + 1
        known = end if tokens[:end][-1] == BOUNDARY else end + self._overlap
        self._index.add_corpus(tokens[:known])
        one.waiting, one.parts = tokens[end:].copy(), one.parts + 1

    def _take_out(self, one: GrowingCorpus) -> None:
        """The last part."""
        if one.parts:
            before = self._corpora[: self._corpora.index(one)]
            self._index.remove_corpus(sum(each.parts for each in before) + one.parts - 1)
            one.parts -= 1
        if not one.parts:
            self._corpora.remove(one)
