"""What may follow in each row, computed beside whatever the worker does between two draws."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from vivace.grammar.backend import GrammarMatcher, PlacedMatcher

Fill = Callable[[Sequence[PlacedMatcher], np.ndarray], None]


class NextMasks:
    """One mask for each row. `fill`: as `GrammarBackend.fill`. While it goes on nobody may touch
    the matchers: `wait` comes first."""

    def __init__(self, fill: Fill) -> None:
        self._fill = fill
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="masks")
        self._table = np.zeros((0, 0), np.int32)
        """[rows, words]"""
        self._current = np.zeros(0, np.bool_)
        """[rows]: the row's mask is there, or comes with what goes on"""
        self._begun: Future[None] | None = None

    def begin(self, matchers: Mapping[int, GrammarMatcher]) -> None:
        """Where these rows stand has changed, and nothing goes on. The first masks of all are
        filled when they are taken: by then it is known how wide they are."""
        rows = [row for row in matchers if row < len(self._current)]
        if rows:
            self._current[rows] = True
            placed = [(matchers[row], row) for row in rows]
            self._begun = self._thread.submit(self._fill, placed, self._table)

    def drop(self, row: int) -> None:
        """Another answer begins there."""
        if row < len(self._current):
            self._current[row] = False

    def wait(self) -> None:
        """Until nothing goes on; raises what went wrong."""
        begun, self._begun = self._begun, None
        if begun is not None:
            begun.result()

    def take(
        self, matchers: Mapping[int, GrammarMatcher], rows: np.ndarray, words: int
    ) -> np.ndarray:
        """[m, words] int32 of rows[m], of which these are the matchers. Of rows behind each other
        these are the table's own, to be read before the next `begin`."""
        self.wait()
        self._grow(int(rows.max()) + 1, words)
        if not self._current[rows].all():
            missing: list[int] = np.unique(rows[~self._current[rows]]).tolist()
            self._fill([(matchers[row], row) for row in missing], self._table)
            self._current[missing] = True
        first = int(rows[0])
        if np.array_equal(rows, np.arange(first, first + len(rows))):
            return self._table[first : first + len(rows)]
        return self._table[rows]

    def _grow(self, rows: int, words: int) -> None:
        if self._table.shape[1] == words and rows <= len(self._table):
            return
        table = np.zeros((max(rows, 2 * len(self._table)), words), np.int32)
        current = np.zeros(len(table), np.bool_)
        if self._table.shape[1] == words:
            table[: len(self._table)] = self._table
            current[: len(self._current)] = self._current
        self._table, self._current = table, current
