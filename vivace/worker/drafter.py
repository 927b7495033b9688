"""What may follow: tokens that a worker computes and verifies in the step that draws the first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
from torch import Tensor

from vivace.platforms.cache import CacheLayer
from vivace.platforms.rows import RowColumns, Spans
from vivace.protocol.step import StepPlan
from vivace.protocol.workers import NO_TEXTS, AddCorpus, RemoveCorpus
from vivace.worker.step_input import StepInput

if TYPE_CHECKING:
    from vivace.worker.drafters.place import DrafterPlace


class Drafter(Protocol):
    """Proposes tokens that may follow what rows know. Whatever it proposes, the tokens of an answer
    stay the same, unless acceptance is relaxed: a draft stays where it is what is drawn there."""

    width: int
    """drafts that a span may have"""
    reads_tokens: bool
    """it proposes from what the host knows of its rows, so steps in flight are waited for"""
    reports_ready: bool
    """after every step `ready` says how many drafts there are"""
    trees: bool
    """it writes `columns.parents`, too, where there are any"""
    layers: Sequence[CacheLayer]
    """its own, whose KV lies in the pages of the model's"""
    row_numbers: int
    """of the type of activations, that it keeps of each row from `attach` on"""
    nbytes: int
    """of captured passes and their buffers"""
    undivided: str
    """why each rank has all of it; empty: ranks divide it, or there is one"""

    def attach(self, place: DrafterPlace) -> None:
        """Rows and memory are there; before everything else."""
        ...

    @property
    def text_bytes(self) -> int:
        """of texts that it proposes from"""
        ...

    def update(self, plan: StepPlan) -> None:
        """Rows that leave and join."""
        ...

    def propose(self, columns: RowColumns, rows: np.ndarray, counts: np.ndarray) -> None:
        """Write `counts[i]` ids of the vocabulary, up to `width`, to `columns.tokens[rows[i]]`,
        from `columns.known[rows[i]]` on. Both [S] int64."""
        ...

    def follow(self, step: StepInput, spans: Spans, hidden: Tensor, taps: Sequence[Tensor]) -> None:
        """A step was recorded, of which the target's hidden[T, n] are these, and `taps` what it
        had between layers; of a tree's tokens those that stay stand as in a chain. Compute what
        later proposals need of it."""
        ...

    def learn(self, row: int, tokens: list[int]) -> None:
        """The row has drawn these; only told where it `reads_tokens`."""
        ...

    def ready(self, rows: list[int]) -> list[int]:
        """How many drafts there are for the next span of each; nothing: as many as it may have.
        Rows that get none anyway are not asked for."""
        ...

    def drafts_to_send(self, rows: list[int]) -> list[list[int]]:
        """These, to the other stages of a pipeline; nothing: there are none."""
        ...

    def add_corpus(self, corpus: AddCorpus) -> str:
        """Propose from this text, too. Returns why it does not."""
        ...

    def remove_corpus(self, corpus: RemoveCorpus) -> str:
        """Propose from it no more. Returns why that is impossible."""
        ...

    @property
    def corpora(self) -> dict[str, int]:
        """Those that were added, with their tokens."""
        ...


class NoDrafter:
    width = text_bytes = row_numbers = nbytes = 0
    reads_tokens = reports_ready = trees = False
    undivided = ""
    layers: Sequence[CacheLayer] = ()

    @property
    def corpora(self) -> dict[str, int]:
        return {}

    def attach(self, place: DrafterPlace) -> None:
        """It has no layers."""

    def update(self, plan: StepPlan) -> None:
        """Rows do not matter."""

    def propose(self, columns: RowColumns, rows: np.ndarray, counts: np.ndarray) -> None:
        """Nothing is asked for."""

    def follow(self, step: StepInput, spans: Spans, hidden: Tensor, taps: Sequence[Tensor]) -> None:
        """Nothing is needed."""

    def learn(self, row: int, tokens: list[int]) -> None:
        """Nothing is told."""

    def ready(self, rows: list[int]) -> list[int]:
        return []

    def drafts_to_send(self, rows: list[int]) -> list[list[int]]:
        return []

    def add_corpus(self, corpus: AddCorpus) -> str:
        return NO_TEXTS

    def remove_corpus(self, corpus: RemoveCorpus) -> str:
        return NO_TEXTS


NO_DRAFTS = NoDrafter()
