"""What a step's result changes: positions, tokens, pages, and the deltas that go out."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from vivace.engine.sequence import Sequence, State
from vivace.engine.sequence_table import RequestLimits, SequenceTable
from vivace.engine.stats import Stats
from vivace.engine.step_builder import InFlightStep
from vivace.engine.transfers import Transfers
from vivace.protocol.messages import FINISH_ABORT, Delta, Finish, Request
from vivace.protocol.step import StepResult

logger = logging.getLogger("vivace.engine")


@dataclass(slots=True)
class _Drawn:
    """Tokens of a step, as metrics count them."""

    total: int = 0
    first: int = 0
    """of requests that metrics count, those that had no token before them"""
    moments: list[float] = field(default_factory=list[float])
    """when the token before each of the others came"""

    @property
    def counted(self) -> int:
        return self.first + len(self.moments)

    def add(self, tokens: int, before: float | None, sequence: Sequence, now: float) -> None:
        """`before`: when the sequence drew its last token; None: these follow its prompt. Of those
        that come at once each took an equal part of the time."""
        self.total += tokens
        if not sequence.log_metrics:
            return
        if before is None:
            self.first += tokens
        else:
            self.moments += [now - (now - before) / tokens] * tokens


class ResultProcessor:
    def __init__(
        self, table: SequenceTable, stats: Stats, outputs: OutputQueue, transfers: Transfers
    ) -> None:
        self._table = table
        self._stats = stats
        self._outputs = outputs
        self._transfers = transfers

    def process(self, step: InFlightStep, result: StepResult, now: float) -> None:
        """An exception about one sequence ends that sequence."""
        for index, message in result.bad.items():
            sequence = step.spans()[index][0]
            sequence.has_bad_numbers = True
            if sequence.state is State.RUNNING:
                self._outputs.fail_numbers(sequence, message)
        drawn = _Drawn()
        advanced = result.advanced[: len(step.chunks)]
        self._table.take_back(step.chunks, step.counts, advanced)
        for index, (sequence, count) in enumerate(zip(step.chunks, advanced, strict=True)):
            sequence.in_flight -= 1
            sequence.computed_len += count
            if sequence.state is State.RUNNING:
                self._process_span(sequence, result, index, drawn, now)
        self._process_decodes(step, result, drawn, now)
        self._stats.record_tokens(drawn.total, drawn.counted, drawn.moments, now)
        if step.decodes:
            self._stats.record_decode(result.captured, now)

    def _process_span(
        self, sequence: Sequence, result: StepResult, index: int, drawn: _Drawn, now: float
    ) -> None:
        """Whatever a span may have brought."""
        tokens = result.tokens[index]
        try:
            if scored := result.prompt_logprobs.get(index):
                self._outputs.deltas += sequence.prompt_deltas(scored)
            pending = sequence.key in self._table.prefill_pending
            if pending:
                self._table.pages.publish(sequence)
            if not tokens:
                return
            drawn.add(len(tokens), None if pending else sequence.last_token_time, sequence, now)
            sequence.last_token_time = now
            self._table.prefill_done(sequence)
            if pending:
                self._transfers.send_prompt(sequence)
            self._table.clients.charge(sequence.client, len(tokens) - 1)
            if not sequence.first_token_time:
                self._stats.record_first_token(sequence, now)
            self._accept(sequence, tokens, result, index)
        except Exception as error:
            self._outputs.fail(sequence, error)

    def _process_decodes(
        self, step: InFlightStep, result: StepResult, drawn: _Drawn, now: float
    ) -> None:
        """The hot path."""
        first = len(step.chunks)
        moments, alone = drawn.moments, 0
        running, deltas = State.RUNNING, self._outputs.deltas
        advanced = result.advanced[first:]
        self._table.take_back(step.decodes, step.decode_counts, advanced)
        spans = zip(step.decodes, advanced, result.tokens[first:], strict=True)
        for index, (sequence, count, tokens) in enumerate(spans, first):
            sequence.in_flight -= 1
            sequence.computed_len += count
            if sequence.state is not running:
                continue
            if count != 1 or not sequence.steady:  # otherwise a token was drawn, and only one
                self._process_span(sequence, result, index, drawn, now)
                continue
            alone += 1
            if sequence.log_metrics:
                moments.append(sequence.last_token_time)
            sequence.last_token_time = now
            try:
                known = sequence.tokens
                length = len(known) + 1
                if tokens[0] in sequence.ending_ids or length >= sequence.max_len:
                    self._accept(sequence, tokens, result, index)
                    continue
                known += tokens
                if length >= sequence.next_delta_len:
                    deltas.append(sequence.next_delta(tokens, length))
            except Exception as error:
                self._outputs.fail(sequence, error)
        drawn.total += alone

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
