"""The head of rows whose prompts are reasoning in steps, each of which is judged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from vivace.platforms.host import download
from vivace.platforms.rows import Spans
from vivace.protocol.tasks import EMBEDDING, Payload
from vivace.worker.pooling.vectors import ClassifyingModel, PoolingHead
from vivace.worker.rows import RowStates


@dataclass(frozen=True, slots=True)
class JudgedTokens:
    """Of one span, from position `start` on: ids[n], and what the head makes of each,
    numbers[n, labels] float32."""

    start: int
    ids: Tensor
    numbers: Tensor


def pooling_head(states: RowStates, model: object) -> PoolingHead | StepsHead:
    """What makes the answers to requests that draw no token."""
    judge = model if isinstance(model, ClassifyingModel) else None
    if judge is None or judge.step_token is None:
        return PoolingHead(states, judge)
    return StepsHead(states, judge, judge.step_token)


class StepsHead:
    """Numbers of each token that ends a step, for rows whose task is `Embed`.

    The head judges every token of a span, which costs little beside the layers, so no shape depends
    on what a device knows; which tokens end a step is seen on the host. Prompts come in chunks: a
    row keeps those that it has, and one that joins again behind a failed step goes on behind them.
    """

    def __init__(self, states: RowStates, model: ClassifyingModel, step_token: int) -> None:
        self.rows = states.embeds
        self._known = states.known
        self._tokens = states.columns.tokens
        self._model = model
        self._step_token = step_token
        self._kept: dict[int, tuple[JudgedTokens, ...]] = {}

    def read(self, spans: Spans, hidden: Tensor) -> Iterator[StepsSpan]:
        for span, row in enumerate(spans.rows.tolist()):
            if row in self.rows:
                yield self._judge(spans, span, row, hidden)

    def _judge(self, spans: Spans, span: int, row: int, hidden: Tensor) -> StepsSpan:
        before, count = int(spans.before[span]), int(spans.counts[span])
        states = hidden[int(spans.starts[span]) : int(spans.starts[span + 1])]
        judged = JudgedTokens(
            start=before,
            ids=self._tokens[row, before : before + count].clone(),
            numbers=self._model.classify(states.float()),
        )
        earlier = (part for part in self._kept.get(row, ()) if part.start < before)
        return StepsSpan(
            span=span,
            row=row,
            count=count,
            parts=(*earlier, judged),
            kept=self._kept,
            step_token=self._step_token if before + count == int(self._known[row]) else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsSpan:
    """`parts`: of the row, with this span's; `step_token`: None before the prompt's end."""

    span: int
    row: int
    count: int
    parts: tuple[JudgedTokens, ...]
    kept: dict[int, tuple[JudgedTokens, ...]]
    step_token: int | None

    def record(self) -> None:
        self.kept[self.row] = self.parts

    def read(self, advanced: int) -> Payload | None:
        """[steps, labels]"""
        if self.step_token is None or advanced < self.count:
            return None
        ids = np.concatenate([download(part.ids) for part in self.parts])
        numbers = np.concatenate([download(part.numbers) for part in self.parts])
        found = numbers[ids == self.step_token]
        return Payload(EMBEDDING, "float32", found.shape, found.tobytes())
