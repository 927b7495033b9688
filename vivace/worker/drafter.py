"""What may follow: tokens that a worker computes and verifies in the step that draws the first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from vivace.worker.rows import RowStates


class Drafter(Protocol):
    """Proposes tokens that may follow what rows know. Whatever it proposes, the tokens of an answer
    stay the same: a draft stays exactly where it is the token that is drawn there."""

    width: int
    """drafts that a span may have"""

    def propose(self, states: RowStates, rows: np.ndarray, counts: np.ndarray) -> None:
        """Write `counts[i]` ids of the vocabulary, up to `width`, to `states.tokens[rows[i]]`,
        from `states.known[rows[i]]` on. Both [S] int64."""
        ...


class NoDrafter:
    width = 0

    def propose(self, states: RowStates, rows: np.ndarray, counts: np.ndarray) -> None:
        """Nothing is asked for."""


NO_DRAFTS = NoDrafter()


class ScriptedDrafter:
    """The reference: `script(known tokens, count)` says what is proposed."""

    def __init__(self, width: int, script: Callable[[list[int], int], Sequence[int]]) -> None:
        self.width = width
        self._script = script

    def propose(self, states: RowStates, rows: np.ndarray, counts: np.ndarray) -> None:
        for row, count in zip(rows.tolist(), counts.tolist(), strict=True):
            known = int(states.known[row])
            drafts = self._script(states.tokens[row, :known].tolist(), count)
            states.tokens[row, known : known + count] = drafts
