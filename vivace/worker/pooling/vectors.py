"""The head of rows that want a vector of their prompt."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from vivace.platforms.host import download
from vivace.platforms.rows import Spans
from vivace.protocol.tasks import CLS, EMBEDDING, LAST, MEAN, Embed, Payload
from vivace.worker.rows import RowStates


@runtime_checkable
class ClassifyingModel(Protocol):
    """A model that makes something else of hidden states than vectors or tokens."""

    @property
    def step_token(self) -> int | None:
        """What ends a step of reasoning, where the model judges each; None: it judges a text."""
        ...

    def classify(self, states: Tensor) -> Tensor:
        """states[..., hidden] float32 -> [..., labels] float32"""
        ...


class PoolingHead:
    """One vector of a prompt, for rows whose task is `Embed`; of a model that judges texts the
    numbers of its labels.

    Prompts come in chunks, so a row keeps what the next chunk needs: the first state, or the sum
    of all. A sum is made token by token in float64, so it is the same however a prompt was cut,
    wherever the device adds in order. A row that joins again behind a failed step goes on with what
    it has, as computed positions do; one that starts from the beginning starts anew.
    """

    def __init__(self, states: RowStates, model: ClassifyingModel | None = None) -> None:
        self._model = model
        self.rows = states.embeds
        self._known = states.known
        self._kept: Tensor | None = None
        """[rows, hidden] float64, once there is such a row"""

    def read(self, spans: Spans, hidden: Tensor) -> Iterator[PooledSpan]:
        if self._kept is None:
            shape = (len(self._known), hidden.shape[1])
            self._kept = torch.zeros(shape, dtype=torch.float64, device=hidden.device)
        for span, row in enumerate(spans.rows.tolist()):
            if (task := self.rows.get(row)) is not None:
                yield self._pool(spans, span, task, hidden, self._kept[row])

    def _pool(
        self, spans: Spans, span: int, task: Embed, hidden: Tensor, kept: Tensor
    ) -> PooledSpan:
        """`kept`: the row's column"""
        before, count = int(spans.before[span]), int(spans.counts[span])
        states = hidden[int(spans.starts[span]) : int(spans.starts[span + 1])]
        pooled = POOL[task.pooling](states, kept if before else None)
        last = before + count == int(self._known[spans.rows[span]])
        vector = finish_vector(pooled, before + count, task) if last else None
        if vector is not None and self._model is not None:
            vector = self._model.classify(vector)
        return PooledSpan(span, count, pooled, kept, vector)


@dataclass(frozen=True, slots=True)
class PooledSpan:
    """`pooled` [hidden] float64 so far, which `kept` is to become; `vector` [dimensions] float32 of
    a whole prompt."""

    span: int
    count: int
    pooled: Tensor
    kept: Tensor
    vector: Tensor | None

    def record(self) -> None:
        self.kept.copy_(self.pooled)

    def read(self, advanced: int) -> Payload | None:
        if self.vector is None or advanced < self.count:
            return None
        data = download(self.vector).tobytes()
        return Payload(EMBEDDING, "float32", tuple(self.vector.shape), data)


def pool_last(states: Tensor, _kept: Tensor | None) -> Tensor:
    return states[-1].double()


def pool_first(states: Tensor, kept: Tensor | None) -> Tensor:
    return states[0].double() if kept is None else kept.clone()


def pool_sum(states: Tensor, kept: Tensor | None) -> Tensor:
    total = states.new_zeros(1, states.shape[1], dtype=torch.float64)
    if kept is not None:
        total[0] = kept
    places = torch.zeros(len(states), dtype=torch.int64, device=states.device)
    return total.index_add_(0, places, states.double())[0]


POOL: dict[str, Callable[[Tensor, Tensor | None], Tensor]] = {
    LAST: pool_last,
    MEAN: pool_sum,
    CLS: pool_first,
}
"""(states [n, hidden] of a chunk, what the row kept of those before) -> [hidden] float64"""


def finish_vector(pooled: Tensor, tokens: int, task: Embed) -> Tensor:
    """[dimensions] float32 of what `tokens` tokens gave."""
    vector = pooled / tokens if task.pooling == MEAN else pooled
    if task.dimensions:
        vector = vector[: task.dimensions]
    if task.normalize:
        vector = torch.nn.functional.normalize(vector, dim=0)
    return vector.float()
