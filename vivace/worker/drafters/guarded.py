"""A drafter that fails costs drafts, and nothing else."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from vivace.platforms.host import upload
from vivace.platforms.rows import RowColumns, Spans
from vivace.protocol.step import StepPlan
from vivace.protocol.workers import AddCorpus, RemoveCorpus
from vivace.worker.drafter import Drafter
from vivace.worker.drafters.place import DrafterPlace
from vivace.worker.step_input import StepInput

logger = logging.getLogger("vivace.worker")

T = TypeVar("T")
FAILED = "the drafter failed: there are no drafts until the engine restarts"


class GuardedDrafter:
    """Proposes what `drafter` does until that raises; from then on nothing is proposed until the
    engine starts again.

    Only where a worker drafts `alone`: ranks that propose different tokens compute different ones,
    so what one of them raises is raised.
    """

    def __init__(
        self,
        drafter: Drafter,
        vocabulary: int | None = None,
        *,
        width: int | None = None,
        alone: bool = True,
    ) -> None:
        """`vocabulary`: what it writes is made ids of so many, since others would be read as places
        of memory; None: it writes no others. `width`: drafts of a row, at most its own"""
        self.width = drafter.width if width is None else width
        self.trees, self.reports_ready = drafter.trees, drafter.reports_ready
        self.reads_tokens = drafter.reads_tokens
        self.layers, self._drafter, self._vocabulary = drafter.layers, drafter, vocabulary
        self.nbytes, self.row_numbers = 0, drafter.row_numbers
        self.undivided = drafter.undivided
        self._failed, self._alone = False, alone

    @property
    def text_bytes(self) -> int:
        return self._show(lambda: self._drafter.text_bytes, 0)

    def attach(self, place: DrafterPlace) -> None:
        if self._vocabulary is None:  # without its own layers it is of no use
            self._drafter.attach(place)
        else:
            self._run(lambda: self._drafter.attach(place), None)
        self.nbytes = self._show(lambda: self._drafter.nbytes, 0)

    def update(self, plan: StepPlan) -> None:
        self._run(lambda: self._drafter.update(plan), None)

    def propose(self, columns: RowColumns, rows: np.ndarray, counts: np.ndarray) -> None:
        self._run(lambda: self._drafter.propose(columns, rows, counts), None)
        if self._vocabulary is not None and len(rows):
            tokens, places = columns.tokens, upload(rows, columns.tokens.device)[:, None]
            ahead = torch.arange(int(counts.max()), device=tokens.device)
            at = (columns.known[places] + ahead).clamp_(max=tokens.shape[1] - 1)
            tokens[places, at] = tokens[places, at].clamp_(0, self._vocabulary - 1)

    def follow(self, step: StepInput, spans: Spans, hidden: Tensor, taps: Sequence[Tensor]) -> None:
        self._run(lambda: self._drafter.follow(step, spans, hidden, taps), None)

    def learn(self, row: int, tokens: list[int]) -> None:
        self._run(lambda: self._drafter.learn(row, tokens), None)

    def ready(self, rows: list[int]) -> list[int]:
        nothing = [0] * len(rows)
        return self._run(lambda: self._count_ready(rows), nothing)

    def _count_ready(self, rows: list[int]) -> list[int]:
        found = self._drafter.ready(rows)
        if found and len(found) != len(rows):
            raise ValueError(f"it is ready with {len(found)} numbers for {len(rows)} rows")
        return [min(max(int(count), 0), self.width) for count in found]

    def drafts_to_send(self, rows: list[int]) -> list[list[int]]:
        return self._run(lambda: self._drafter.drafts_to_send(rows), [])

    def add_corpus(self, corpus: AddCorpus) -> str:
        return self._change(lambda: self._drafter.add_corpus(corpus))

    def remove_corpus(self, corpus: RemoveCorpus) -> str:
        return self._change(lambda: self._drafter.remove_corpus(corpus))

    @property
    def corpora(self) -> dict[str, int]:
        return self._show(lambda: self._drafter.corpora, {})

    def _change(self, call: Callable[[], str]) -> str:
        """What fails changes nothing, so it goes on without."""
        if self._failed:
            return FAILED
        try:
            return call()
        except Exception as error:
            if not self._alone:
                raise
            logger.exception("a corpus was not taken")
            return f"{type(error).__name__}: {error}"

    def _run(self, call: Callable[[], T], otherwise: T) -> T:
        return otherwise if self._failed else self._show(call, otherwise)

    def _show(self, call: Callable[[], T], otherwise: T) -> T:
        """Also of one that has failed."""
        try:
            return call()
        except Exception:
            if not self._alone:
                raise
            if not self._failed:
                logger.exception("%s", FAILED)
            self._failed = True
            return otherwise
