"""Drafts from what a request has said before: the tokens behind the last occurrence of its longest
suffix (prompt lookup; Saxena 2023)."""

from __future__ import annotations

import numpy as np

from vivace.platforms.host import upload
from vivace.platforms.rows import RowColumns
from vivace.protocol.step import StepPlan
from vivace.worker.drafter import NoDrafter

LONGEST = 12
"""tokens of a suffix that is looked for"""


class NgramDrafter(NoDrafter):
    reads_tokens = True

    def __init__(self, width: int, longest: int = LONGEST, shortest: int = 1) -> None:
        self.width = width
        self._lengths = range(longest, shortest - 1, -1)
        self._known: dict[int, list[int]] = {}
        """row -> its tokens"""
        self._ends: dict[int, dict[tuple[int, ...], int]] = {}
        """row -> n-gram -> where the last one ended"""
        self._drafts: dict[int, list[int]] = {}

    def update(self, plan: StepPlan) -> None:
        for row in plan.leaves:
            self._known.pop(row, None)
            self._ends.pop(row, None)
            self._drafts.pop(row, None)
        for join in plan.joins:
            self._known[join.row], self._ends[join.row] = [], {}
            self.learn(join.row, join.tokens)

    def learn(self, row: int, tokens: list[int]) -> None:
        known, ends = self._known[row], self._ends[row]
        for token in tokens:
            known.append(token)
            size = len(known)
            found = None
            for length in self._lengths:
                if length < size:
                    gram = tuple(known[size - length :])
                    if found is None:
                        found = ends.get(gram)
                    ends[gram] = size
            self._drafts[row] = [] if found is None else known[found : found + self.width]

    def ready(self, rows: list[int]) -> list[int]:
        return [len(self._drafts.get(row, ())) for row in rows]

    def propose(self, columns: RowColumns, rows: np.ndarray, counts: np.ndarray) -> None:
        places, tokens = list[int](), list[int]()
        lengths = [len(self._known[row]) for row in rows.tolist()]
        for row, known, count in zip(rows.tolist(), lengths, counts.tolist(), strict=True):
            drafts = self._drafts.get(row, [])[:count]
            tokens += drafts + [0] * (count - len(drafts))
            first = row * columns.tokens.shape[1] + known
            places += range(first, first + count)
        device = columns.tokens.device
        values = upload(np.array(tokens, np.int32), device)
        columns.tokens.view(-1).index_copy_(0, upload(np.array(places, np.int64), device), values)
