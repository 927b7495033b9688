"""A step that was launched: what it drew is on its way to the host."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from vivace.platforms.host import ReadBack
from vivace.platforms.rows import Spans
from vivace.protocol.step import StepResult
from vivace.sampling.sampler import BAD_NUMBERS
from vivace.worker.model_runner import StepOutput
from vivace.worker.rows import RowStates


class WorkerStep:
    """`result` waits for the step, forgets what it stored of numbers that went wrong, and settles
    what the host knows of its rows."""

    def __init__(
        self,
        *,
        number: int,
        spans: Spans,
        output: StepOutput,
        arrival: ReadBack,
        rows: RowStates,
        zero: Callable[[np.ndarray], None],
        started: float,
        captured: bool,
    ) -> None:
        """`arrival`: of the output's tokens, stays, bad_spans and bad_tokens. `zero` forgets what
        tokens [T] bool of the step have stored."""
        self._number = number
        self._spans = spans
        self._output = output
        self._arrival = arrival
        self.here = arrival.here
        self._rows = rows
        self._joined = rows.joined[spans.rows]
        self._zero = zero
        self._started = started
        self._captured = captured
        self._result: StepResult | None = None

    def result(self) -> StepResult:
        if self._result is None:
            self._result = self._read()
        return self._result

    def _read(self) -> StepResult:
        tokens, stays, bad, bad_tokens = self._arrival.wait()
        spans, advanced = self._spans, self._spans.counts
        if spans.drafts is not None or bad.any():
            if bad_tokens.any():
                self._zero(bad_tokens)
            advanced = self._settle(stays, bad)
        return StepResult(
            number=self._number,
            advanced=advanced.tolist(),
            tokens=_split_tokens(spans, tokens, stays),
            logprobs=self._output.read_logprobs(stays),
            prompt_logprobs=self._output.read_prompt_logprobs(bad),
            bad=dict.fromkeys(np.flatnonzero(bad).tolist(), BAD_NUMBERS),
            seconds=time.perf_counter() - self._started,
            captured=self._captured,
        )

    def _settle(self, stays: np.ndarray, bad: np.ndarray) -> np.ndarray:
        """Where less came than could have: returns how far each span moved on, [S] int64."""
        spans = self._spans
        drawn = np.bincount(spans.final, stays, minlength=len(bad)).astype(np.int64)
        advanced = spans.counts
        if spans.drafts is not None:
            advanced = advanced - spans.drafts + np.maximum(drawn - 1, 0)
        advanced = np.where(bad, 0, advanced)
        self._rows.settle(spans, self._joined, advanced, drawn)
        return advanced


def _split_tokens(spans: Spans, tokens: np.ndarray, stays: np.ndarray) -> list[list[int]]:
    """The tokens that became known, of each span."""
    if spans.drafts is None and len(tokens) == len(spans.rows) and stays.all():
        return [[token] for token in tokens.tolist()]
    found: list[list[int]] = [[] for _ in range(len(spans.rows))]
    for span, token, stay in zip(
        spans.final.tolist(), tokens.tolist(), stays.tolist(), strict=True
    ):
        if stay:
            found[span].append(token)
    return found


class EmptyStep:
    """A plan without spans has nothing to wait for."""

    here = True

    def __init__(self, number: int) -> None:
        self._number = number

    def result(self) -> StepResult:
        return StepResult(number=self._number, advanced=[], tokens=[])
