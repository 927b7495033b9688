"""What a step's result changes: positions, tokens, pages, and the deltas that go out."""

from __future__ import annotations

import logging
from collections.abc import Callable

from vivace.engine.sequence import Sequence, State
from vivace.engine.sequence_table import RequestLimits, SequenceTable
from vivace.engine.stats import Stats
from vivace.engine.step_builder import InFlightStep
from vivace.protocol.messages import FINISH_ABORT, Delta, Finish, Request
from vivace.protocol.step import StepResult

logger = logging.getLogger("vivace.engine")


class ResultProcessor:
    def __init__(self, table: SequenceTable, stats: Stats, outputs: OutputQueue) -> None:
        self._table = table
        self._stats = stats
        self._outputs = outputs

    def process(self, step: InFlightStep, result: StepResult, now: float) -> None:
        """An exception about one sequence ends that sequence."""
        for index, message in result.bad.items():
            sequence = step.spans()[index][0]
            sequence.has_bad_numbers = True
            if sequence.state is State.RUNNING:
                self._outputs.fail_numbers(sequence, message)
        counted, first = self._process_chunks(step, result, now)
        moments, following = self._process_decodes(step, result, now)
        self._stats.record_tokens(first + following, counted + len(moments), moments, now)
        if step.decodes:
            self._stats.record_decode(result.captured, now)

    def _process_chunks(
        self, step: InFlightStep, result: StepResult, now: float
    ) -> tuple[int, int]:
        """Spans that may be longer than a token.

        Returns how many tokens were drawn: those that metrics count, and all.
        """
        counted = total = 0
        for index, sequence in enumerate(step.chunks):
            sequence.computed_len += result.advanced[index]
            if sequence.state is not State.RUNNING:
                continue
            try:
                drawn = result.tokens[index]
                if scored := result.prompt_logprobs.get(index):
                    self._outputs.deltas += sequence.prompt_deltas(scored)
                self._table.pages.publish(sequence)
                if drawn:
                    total += len(drawn)
                    counted += len(drawn) if sequence.log_metrics else 0
                    self._table.prefill_done(sequence)
                    sequence.last_token_time = now
                    if not sequence.first_token_time:
                        self._stats.record_first_token(sequence, now)
                    self._accept(sequence, drawn, result, index)
            except Exception as error:
                self._outputs.fail(sequence, error)
        return counted, total

    def _process_decodes(
        self, step: InFlightStep, result: StepResult, now: float
    ) -> tuple[list[float], int]:
        """The hot path. Returns how many tokens were drawn, and for those that metrics count when
        their sequences drew the one before."""
        moments: list[float] = []
        total = 0
        first = len(step.chunks)
        running, deltas = State.RUNNING, self._outputs.deltas
        spans = zip(step.decodes, result.advanced[first:], result.tokens[first:], strict=True)
        for index, (sequence, advanced, drawn) in enumerate(spans, first):
            sequence.computed_len += advanced
            if sequence.state is not running:
                continue
            total += 1
            if sequence.log_metrics:
                moments.append(sequence.last_token_time)
            sequence.last_token_time = now
            try:
                tokens = sequence.tokens
                length = len(tokens) + 1
                ends = drawn[0] in sequence.ending_ids or length >= sequence.max_len
                if ends or sequence.has_logprobs:
                    self._accept(sequence, drawn, result, index)
                    continue
                tokens += drawn
                if length >= sequence.next_delta_len:
                    deltas.append(sequence.next_delta(drawn, length))
            except Exception as error:
                self._outputs.fail(sequence, error)
        return moments, total

    def _accept(self, sequence: Sequence, drawn: list[int], result: StepResult, index: int) -> None:
        """Append what was drawn; send a delta when it is time, or the end."""
        before = len(sequence.tokens)
        finish = sequence.accept(drawn)
        if sequence.logprobs is not None:
            accepted = len(sequence.tokens) - before
            sequence.logprobs += result.logprobs.get(index, [])[:accepted]
        if finish is not None:
            self._outputs.finish(sequence, finish)
        elif len(sequence.tokens) >= sequence.next_delta_len:
            self._outputs.deltas.append(sequence.take_delta())


class OutputQueue:
    """Deltas that wait to be sent, and every way in which a request ends."""

    def __init__(
        self,
        table: SequenceTable,
        stats: Stats,
        limits: RequestLimits,
        clock: Callable[[], float],
    ) -> None:
        self.deltas: list[Delta] = []
        """in the order in which they go out; the list is kept"""
        self._table = table
        self._stats = stats
        self._limits = limits
        self._clock = clock

    def take(self) -> list[Delta]:
        deltas = self.deltas.copy()
        self.deltas.clear()
        return deltas

    def finish(self, sequence: Sequence, finish: Finish) -> None:
        """End a sequence and tell its client everything that was not sent yet."""
        self._table.end(sequence)
        now = self._clock()
        self._stats.record_finish(sequence, finish, now)
        self._limits.request_finished(now)
        self.deltas.append(sequence.take_delta(finish))

    def reject(self, request: Request, finish: Finish) -> None:
        """A request that never became a sequence."""
        index = len(request.resumed)
        self.deltas.append(Delta(key=request.key, index=index, tokens=[], finish=finish))

    def fail(self, sequence: Sequence, error: Exception) -> None:
        """The fault boundary: what went wrong with one request ends only that request."""
        text = f"{type(error).__name__}: {error}"
        message = f"internal error while processing the request: {text}"
        self._abort(sequence, text, Finish(FINISH_ABORT, message=message, status=500))

    def fail_numbers(self, sequence: Sequence, message: str) -> None:
        """The model's numbers for one request are none (NaN)."""
        finish = Finish(FINISH_ABORT, message=message, status=500, bad_numbers=True)
        self._abort(sequence, message, finish)

    def _abort(self, sequence: Sequence, why: str, finish: Finish) -> None:
        logger.error("request %s is ended: %s", sequence.request.rid, why)
        self.finish(sequence, finish)

    def time_out(self, sequence: Sequence, what: str) -> None:
        message = f"the request {what}"
        finish = Finish(FINISH_ABORT, message=message, status=503, retry_after=1.0)
        self.finish(sequence, finish)
