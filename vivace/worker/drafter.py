"""What may follow: tokens that a worker computes and verifies in the step that draws the first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from vivace.platforms.host import download, upload
from vivace.platforms.rows import RowColumns


class Drafter(Protocol):
    """Proposes tokens that may follow what rows know. Whatever it proposes, the tokens of an answer
    stay the same: a draft stays exactly where it is the token that is drawn there."""

    width: int
    """drafts that a span may have"""

    def propose(self, columns: RowColumns, rows: np.ndarray, counts: np.ndarray) -> None:
        """Write `counts[i]` ids of the vocabulary, up to `width`, to `columns.tokens[rows[i]]`,
        from `columns.known[rows[i]]` on. Both [S] int64."""
        ...


class NoDrafter:
    width = 0

    def propose(self, columns: RowColumns, rows: np.ndarray, counts: np.ndarray) -> None:
        """Nothing is asked for."""


NO_DRAFTS = NoDrafter()


class ScriptedDrafter:
    """The reference: `script(known tokens, count)` says what is proposed. It waits for the device:
    the script is the host's."""

    def __init__(self, width: int, script: Callable[[list[int], int], Sequence[int]]) -> None:
        self.width = width
        self._script = script

    def propose(self, columns: RowColumns, rows: np.ndarray, counts: np.ndarray) -> None:
        lengths = download(columns.known)
        for row, count in zip(rows.tolist(), counts.tolist(), strict=True):
            known = int(lengths[row])
            drafts = self._script(download(columns.tokens[row, :known]).tolist(), count)
            ids = upload(np.array(drafts, np.int32), columns.tokens.device)
            columns.tokens[row, known : known + count] = ids
