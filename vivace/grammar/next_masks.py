"""What may follow in each row, computed beside whatever the worker does between two draws."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

import numpy as np

from vivace.grammar.backend import GrammarMatcher, PlacedMatcher

NICE = 5
"""of the thread that is ahead: where steps want all cores it gets a quarter of one"""
Fill = Callable[[Sequence[PlacedMatcher], np.ndarray], None]


def give_way() -> None:
    if sys.platform == "linux":  # elsewhere that is the whole process
        with suppress(OSError):
            os.nice(NICE)


class NextMasks:
    """One mask for each row. `fill`: as `GrammarBackend.fill`. While it goes on nobody may touch
    the matchers: `wait` comes first.

    One thread does it ahead of time, beside the steps, which need all cores. What is left of it
    when the masks are wanted all threads do."""

    def __init__(self, fill: Fill) -> None:
        self._fill = fill
        self._thread = ThreadPoolExecutor(1, "masks", give_way)
        self._table = np.zeros((0, 0), np.int32)
        """[rows, words]"""
        self._current = np.zeros(0, np.bool_)
        """[rows]: the row's mask is there, or comes with what goes on"""
        self._begun: Future[None] | None = None
        self._left = deque[PlacedMatcher]()
        """of what goes on: nobody has begun with these"""

    def begin(self, matchers: Mapping[int, GrammarMatcher]) -> None:
        """Where these rows stand has changed, and nothing goes on. The first masks of all are
        filled when they are taken: by then it is known how wide they are."""
        rows = [row for row in matchers if row < len(self._current)]
        if not rows:
            return
        self._current[rows] = True
        self._left = deque((matchers[row], row) for row in rows)
        try:
            self._begun = self._thread.submit(self._fill_ahead)
        except RuntimeError:  # no thread can be started: they are filled when they are taken
            self._current[rows] = False
            self._thread = ThreadPoolExecutor(1, "masks", give_way)

    def _fill_ahead(self) -> None:
        for matcher, row in iter(self._take_left, None):
            matcher.fill(self._table[row])

    def _take_left(self) -> PlacedMatcher | None:
        with suppress(IndexError):  # nothing is left
            return self._left.popleft()
        return None

    def drop(self, row: int) -> None:
        """Another answer begins there."""
        if row < len(self._current):
            self._current[row] = False

    def wait(self) -> None:
        """Until nothing goes on; raises what went wrong: no mask counts then."""
        begun, self._begun = self._begun, None
        if begun is None:
            return
        current, self._current = self._current, np.zeros_like(self._current)
        try:
            self._fill(list(iter(self._take_left, None)), self._table)
        finally:
            if not begun.cancel():  # it has begun
                begun.result()
        self._current = current

    def take(
        self, matchers: Mapping[int, GrammarMatcher], rows: np.ndarray, words: int
    ) -> np.ndarray:
        """[m, words] int32 of rows[m], of which these are the matchers. Of rows behind each other
        these are the table's own, to be read before the next `begin`."""
        self.wait()
        self._grow(int(rows.max()) + 1, words)
        if missing := sorted(set(rows[~self._current[rows]].tolist())):
            self._fill([(matchers[row], row) for row in missing], self._table)
            self._current[missing] = True
        first = int(rows[0])
        if np.array_equal(rows, np.arange(first, first + len(rows))):
            return self._table[first : first + len(rows)]
        return self._table[rows]

    def _grow(self, rows: int, words: int) -> None:
        if self._table.shape[1] != words or rows > len(self._table):
            size = max(rows, 2 * len(self._table))
            self._table, self._current = np.zeros((size, words), np.int32), np.zeros(size, np.bool_)
