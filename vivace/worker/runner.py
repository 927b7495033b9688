"""Running the model over a step's buffers: eagerly, or replayed from a capture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from vivace.platforms.attention import AttentionBackend
from vivace.platforms.platform import GraphRecorder, StepGraph
from vivace.worker.inputs import StepInput, StepInputs


class RunnableModel(Protocol):
    """What of a model a runner calls (`models.causal_lm.Model` is one)."""

    def forward(self, step: StepInput) -> Tensor:
        """-> hidden[T, hidden], after the final norm"""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden[n, hidden] -> [n, vocabulary] float32"""
        ...


class Runner(Protocol):
    """Computes hidden states; `captured` tells whether the last step was a replay."""

    captured: bool
    nbytes: int
    """of captures and their buffers"""

    def forward(self, step: StepInput) -> Tensor:
        """-> hidden[T, hidden]"""
        ...


class EagerRunner:
    """Calls the model, op by op. Works for every step; a capturing runner falls back on it."""

    captured = False
    nbytes = 0

    def __init__(self, model: RunnableModel, attention: AttentionBackend) -> None:
        self._model = model
        self._attention = attention

    def forward(self, step: StepInput) -> Tensor:
        self._attention.plan(step)
        return self._model.forward(step)


@dataclass(frozen=True, slots=True)
class CapturedStep:
    """A decode step of up to `rows` rows."""

    rows: int
    graph: StepGraph
    hidden: Tensor
    """[rows, n]: where the result is after a replay"""


class CapturedRunner:
    """Replays decode steps; prompts, and more rows than were captured, run eagerly.

    `exact`: a capture serves its own number of rows only (--disable-cuda-graph-padding).
    """

    def __init__(
        self,
        eager: EagerRunner,
        attention: AttentionBackend,
        steps: Sequence[CapturedStep],
        *,
        nbytes: int,
        exact: bool = False,
    ) -> None:
        self._eager = eager
        self.nbytes = nbytes
        self._attention = attention
        self._steps = sorted(steps, key=lambda step: step.rows)
        self._exact = exact
        self.captured = False

    def forward(self, step: StepInput) -> Tensor:
        found = self._fitting(len(step.counts)) if step.host.decode else None
        self.captured = found is not None
        if found is None:
            return self._eager.forward(step)
        self._attention.plan(step)
        found.graph.replay(len(step.counts))
        return found.hidden[: len(step.counts)]

    def _fitting(self, rows: int) -> CapturedStep | None:
        for step in self._steps:
            if step.rows == rows or (step.rows > rows and not self._exact):
                return step
        return None


def capture_steps(
    eager: EagerRunner,
    recorder: GraphRecorder,
    inputs: StepInputs,
    attention: AttentionBackend,
    sizes: Sequence[int],
    progress: Callable[[float], None],
) -> list[CapturedStep]:
    """One decode step of each size, the largest first: the others fit into its buffers."""
    steps = []
    with torch.inference_mode():
        for done, rows in enumerate(sorted(set(sizes), reverse=True)):
            progress(done / len(sizes))
            step = inputs.decode_step(rows, attention)
            graph, hidden = recorder.capture(lambda step=step: eager.forward(step))
            steps.append(CapturedStep(rows, graph, hidden))
    progress(1.0)
    return steps
