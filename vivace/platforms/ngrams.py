"""Where suffixes of texts occurred before, and what stood behind them: the index of n-gram drafts.

It is the host's on every device. Everything in it follows from the calls alone, so ranks that make
the same ones get the same answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

SPACE_BYTES = 16
PROMPT_PATHS = 4096
"""that a row that joins or leaves brings to the shared tree at once"""
STEP_PATHS = 64
"""beside those of a step's own tokens, of what a prompt has left"""
MOST_CHILDREN = 64
"""the latest continuations, among which the most frequent one is looked for"""


@dataclass(frozen=True, kw_only=True)
class NgramSettings:
    width: int
    """drafts of a row"""
    shortest: int = 1
    longest: int = 12
    """tokens of a suffix that is looked for; at most 64"""
    depth: int = 18
    """tokens of a path of the shared tree"""
    capacity: int = 10_000_000
    """nodes of the shared tree"""
    by_frequency: bool = False
    """of several continuations the most frequent one, otherwise the latest"""
    budget: int = 64
    """drafts that may come from a corpus"""


@dataclass(frozen=True)
class NgramProposals:
    drafts: list[list[int]]
    """of each row, up to the width"""
    lengths: list[int]
    """of the suffixes that they followed; 0: none occurred"""


class NgramIndex(Protocol):
    """Of each row the longest suffix that occurred before: in the row's own text, in a tree of what
    all rows of its space said, in a corpus. Of matches as long the row's own comes first (with
    `by_frequency` the tree, which has its text, too), then the tree's. Raises MemoryError."""

    @property
    def nodes(self) -> int:
        """of the shared tree"""
        ...

    @property
    def nbytes(self) -> int:
        """of everything; the reference estimates"""
        ...

    def join(self, row: int, space: bytes, tokens: list[int], known: int) -> None:
        """`space`: SPACE_BYTES that name whose texts it shares; `known`: how many tokens, from the
        first one on, another row of the space brought already."""
        ...

    def leave(self, row: int) -> None:
        """Its own text goes; what it brought to the tree stays."""
        ...

    def learn(self, rows: list[int], counts: list[int], tokens: list[int]) -> None:
        """counts[i] more tokens of rows[i], all one behind the other; other rows are passed by."""
        ...

    def propose(self, rows: list[int]) -> NgramProposals: ...

    def branch(
        self, row: int, drafts: list[int], most: int, least: int
    ) -> tuple[list[int], list[int]]:
        """(drafts, the one before each, -1: none): a tree of up to `width` drafts, of which these
        are the first way. Others come from the shared tree, those near its root first: of what
        stood behind the longest suffix at each draft the latest ones (with `by_frequency` the most
        frequent ones), `most` together at the root, one fewer at each depth, but `least`."""
        ...

    @property
    def corpus_part(self) -> int:
        """tokens that it takes at once without a pause that anybody notices"""
        ...

    def add_corpus(self, tokens: np.ndarray) -> None:
        """A text for all spaces: int32, documents apart by -1. Several are as one."""
        ...

    def remove_corpus(self, place: int) -> None:
        """Of those that were added and are still there the place-th."""
        ...
