"""A script that proposes trees."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from vivace.platforms.host import upload
from vivace.platforms.rows import RowColumns
from vivace.worker.drafter import NoDrafter
from vivace.worker.drafters.scripted import ScriptedDrafter


class ScriptedTreeDrafter(NoDrafter):
    """Trees: `script(known tokens, count)` says (tokens, parents)."""

    trees = True

    def __init__(
        self, width: int, script: Callable[[list[int], int], tuple[list[int], list[int]]]
    ) -> None:
        self.width = width
        self._script = script
        self._parents: list[int] = []

    def propose(self, columns: RowColumns, rows: np.ndarray, counts: np.ndarray) -> None:
        tokens = ScriptedDrafter(self.width, self._propose_tokens)
        for row, count in zip(rows, counts, strict=True):
            tokens.propose(columns, row[None], count[None])
            if columns.parents is not None:
                ids = upload(np.array(self._parents, np.int32), columns.tokens.device)
                columns.parents[int(row), : int(count)] = ids

    def _propose_tokens(self, known: list[int], count: int) -> list[int]:
        tokens, self._parents = self._script(known, count)
        return tokens
