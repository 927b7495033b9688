"""Hidden states of a step, eagerly or replayed from a capture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from vivace.platforms.attention import AttentionBackend
from vivace.platforms.platform import GraphRecorder, StepGraph, StepShape
from vivace.worker.step_input import StepInput
from vivace.worker.step_inputs import StepInputs


class RunnableModel(Protocol):
    """What of a model a runner calls (`models.causal_lm.CausalLM` is one)."""

    def forward(self, step: StepInput) -> Tensor:
        """-> hidden[T, hidden], after the final norm"""
        ...

    def lm_head(self, hidden: Tensor) -> Tensor:
        """hidden[n, hidden] -> [n, vocabulary] float32"""
        ...


@runtime_checkable
class TappedModel(Protocol):
    """A model that others ask for what lies between its layers."""

    @property
    def taps(self) -> Sequence[Tensor]:
        """Of the last forward pass: [T, n] each"""
        ...


class ModelRunner(Protocol):
    """Computes hidden states; `captured` tells whether the last step was a replay, `taps` what the
    model had between its layers, where somebody asked for it."""

    captured: bool
    taps: Sequence[Tensor]
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
        self.taps: Sequence[Tensor] = ()

    def forward(self, step: StepInput) -> Tensor:
        self._attention.plan(step)
        hidden = self._model.forward(step)
        if isinstance(self._model, TappedModel):
            self.taps = self._model.taps
        return hidden


@dataclass(frozen=True, slots=True)
class CapturedStep:
    """A step of up to as many rows as its shape has."""

    shape: StepShape
    graph: StepGraph
    hidden: Tensor
    """[tokens, n]: where the result is after a replay"""
    taps: Sequence[Tensor] = ()
    """the same of what lies between layers"""


class CapturedRunner:
    """Replays steps whose rows have as many tokens each; prompts, and more rows than were captured,
    run eagerly.

    `exact`: a capture serves its own number of rows only (--disable-cuda-graph-padding).
    """

    def __init__(
        self,
        eager: EagerRunner,
        attention: AttentionBackend,
        inputs: StepInputs,
        steps: Sequence[CapturedStep],
        *,
        nbytes: int,
        exact: bool = False,
    ) -> None:
        self._eager = eager
        self.nbytes = nbytes
        self._attention = attention
        self._inputs = inputs
        self._steps = sorted(steps, key=lambda step: step.shape.rows)
        self._exact = exact
        self.captured = False
        self.taps: Sequence[Tensor] = ()

    def forward(self, step: StepInput) -> Tensor:
        shape = step.shape
        found = self._find_step(shape) if shape is not None else None
        self.captured = found is not None
        if shape is None or found is None:
            hidden = self._eager.forward(step)
            self.taps = self._eager.taps
            return hidden
        tokens = len(step.input_ids)
        rows = tokens // shape.tokens_per_row
        computed = found.shape if found.graph.computes_all_rows else shape
        if rows < computed.rows:
            self._inputs.pad(rows, computed)
        self._attention.plan(step)
        found.graph.replay(step, shape)
        self.taps = [each[:tokens] for each in found.taps]
        return found.hidden[:tokens]

    def _find_step(self, shape: StepShape) -> CapturedStep | None:
        for step in self._steps:
            if step.shape.tokens_per_row == shape.tokens_per_row and (
                step.shape.rows == shape.rows or (step.shape.rows > shape.rows and not self._exact)
            ):
                return step
        return None


def capture_steps(
    eager: EagerRunner,
    recorder: GraphRecorder,
    inputs: StepInputs,
    attention: AttentionBackend,
    shapes: Sequence[StepShape],
    progress: Callable[[float], None],
) -> list[CapturedStep]:
    """One step of each shape, the largest first: the others fit into its buffers."""
    steps = []
    with torch.inference_mode():
        ordered = sorted(set(shapes), key=lambda shape: shape.tokens, reverse=True)
        for done, shape in enumerate(ordered):
            progress(done / len(shapes))
            inputs.pad(0, shape)  # a recorder may run what it captures
            step = inputs.decode_step(shape, attention)
            graph, hidden = recorder.capture(lambda step=step: eager.forward(step), shape)
            steps.append(CapturedStep(shape, graph, hidden, eager.taps))
    progress(1.0)
    return steps
