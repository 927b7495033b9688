"""The worker: owns rows, positions and KV of one device, and runs plans on it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from vivace.platforms.attention import AttentionBackend
from vivace.protocol.messages import Capacity
from vivace.protocol.step import ExecutorEvent, StepPlan, StepResult
from vivace.worker.kv_memory import PagedKV
from vivace.worker.model_runner import ModelRunner, StepOutput
from vivace.worker.rows import PlanError, RowStates, StepInputs
from vivace.worker.step_input import Spans, StepInput

if TYPE_CHECKING:
    from torch import Tensor


class Head(Protocol):
    """What turns hidden states into a StepOutput (`SamplingHead` is one)."""

    def sample(self, step: StepInput, spans: Spans, hidden: Tensor) -> StepOutput: ...


class Worker:
    """Runs plans. `capacity` is what was sized on the device.

    A run that raises leaves positions and tokens as they were before its spans; rows that joined,
    left or received pages in that plan stay so.
    """

    def __init__(
        self,
        *,
        capacity: Capacity,
        rows: RowStates,
        kv: PagedKV,
        attention: AttentionBackend,
        runner: ModelRunner,
        head: Head,
        inputs: StepInputs,
        trim: Callable[[], None],
    ) -> None:
        """`trim`: as in `Platform`."""
        self.capacity = capacity
        self._rows = rows
        self._kv = kv
        self._attention = attention
        self._runner = runner
        self._head = head
        self._inputs = inputs
        self._trim = trim

    def run(self, plan: StepPlan) -> StepResult:
        started = time.perf_counter()
        with torch.inference_mode():
            self._refuse_unavailable(plan)
            self._rows.apply(plan)
            if plan.copies:
                self._kv.copy(plan.copies)
            if plan.vacant:
                self._kv.vacate(plan.vacant)
                self._trim()
            if not plan.rows:
                return StepResult(number=plan.number, advanced=[], tokens=[])
            step, spans = self._inputs.gather(plan, self._attention)
            output = self._compute(step, spans)
        advanced = self._record(spans, output)
        return self._result(plan, spans, advanced, output, time.perf_counter() - started)

    def events(self) -> list[ExecutorEvent]:
        """Nothing happens beside the steps: no transport of KV is built in."""
        return []

    def wake_with(self, ring: Callable[[], None]) -> None:
        """There is nothing to ring for."""

    def close(self) -> None:
        """Nothing runs between steps, so there is nothing to stop."""

    def _refuse_unavailable(self, plan: StepPlan) -> None:
        if plan.saves:
            raise PlanError(f"step {plan.number} saves states, but no layer here has one")
        if plan.sends or plan.receives:
            raise PlanError(f"step {plan.number} transfers KV, but this worker has no transport")

    def _compute(self, step: StepInput, spans: Spans) -> StepOutput:
        try:
            hidden = self._runner.forward(step)
            output = self._head.sample(step, spans, hidden)
        except BaseException:
            self._zero(step, slice(None))
            raise
        if output.bad_tokens is not None:  # of drafts, too: what masks them out multiplies by zero
            self._zero(step, torch.from_numpy(output.bad_tokens))
        for span in output.bad:
            self._zero(step, slice(int(spans.starts[span]), int(spans.starts[span + 1])))
        return output

    def _zero(self, step: StepInput, tokens: slice | Tensor) -> None:
        """Forget what these tokens of the step have stored."""
        for group, pages in enumerate(step.groups):
            self._kv.zero_slots(pages.slot_mapping[tokens], group)

    def _record(self, spans: Spans, output: StepOutput) -> np.ndarray:
        """Enter the step in the rows; returns how far each span moved on."""
        advanced = spans.counts
        if spans.drafts is not None:  # a draft was computed for good where a token stands behind it
            drawn = np.bincount(output.drawn, minlength=len(advanced))
            advanced = advanced - spans.drafts + np.maximum(drawn - 1, 0)
        if output.bad:
            advanced = advanced.copy()
            advanced[list(output.bad)] = 0
        self._rows.record(spans.rows, advanced, output.entries, output.tokens)
        return advanced

    def _result(
        self,
        plan: StepPlan,
        spans: Spans,
        advanced: np.ndarray,
        output: StepOutput,
        seconds: float,
    ) -> StepResult:
        drawn = output.tokens.tolist()
        if len(drawn) == len(advanced) and spans.drafts is None:
            tokens = [[token] for token in drawn]
        else:
            tokens = [[] for _ in range(len(advanced))]
            for span, token in zip(output.drawn.tolist(), drawn, strict=True):
                tokens[span].append(token)
        return StepResult(
            number=plan.number,
            advanced=advanced.tolist(),
            tokens=tokens,
            logprobs=output.logprobs,
            prompt_logprobs=output.prompt_logprobs,
            bad=output.bad,
            seconds=seconds,
            captured=self._runner.captured,
        )
