"""Booking a step's result: positions, tokens, pages, deltas."""

from __future__ import annotations

from collections.abc import Callable

from vivace.engine.sequence import Sequence, State
from vivace.engine.sequence_table import SequenceTable
from vivace.engine.stats import Stats
from vivace.engine.step_builder import InFlightStep
from vivace.protocol.output import Delta, Finish
from vivace.protocol.step import StepResult


class ResultProcessor:
    def __init__(
        self,
        roster: SequenceTable,
        stats: Stats,
        finish: Callable[[Sequence, Finish], Delta],
        refuse: Callable[[Sequence, Exception | str], None],
    ) -> None:
        self._roster = roster
        self._stats = stats
        self._finish = finish
        self._refuse = refuse

    def book(
        self, flight: InFlightStep, result: StepResult, now: float, deltas: list[Delta]
    ) -> None:
        """Append the step's deltas; an exception about one sequence ends that sequence."""
        for index, message in result.bad.items():
            sequence = flight.spans()[index][0]
            sequence.tainted = True
            if sequence.state is State.RUNNING:
                self._refuse(sequence, message)
        counted, first = self._book_chunks(flight, result, now, deltas)
        moments, following = self._book_decodes(flight, result, now, deltas)
        self._stats.drew(first + following, counted + len(moments), moments, now)
        if flight.decodes:
            self._stats.decoded(result.captured, now)

    def _book_chunks(
        self, flight: InFlightStep, result: StepResult, now: float, deltas: list[Delta]
    ) -> tuple[int, int]:
        """Spans that may be longer than a token.

        Returns how many tokens were drawn: those that metrics count, and all.
        """
        counted = total = 0
        for index, sequence in enumerate(flight.chunks):
            sequence.computed += result.advanced[index]
            if sequence.state is not State.RUNNING:
                continue
            try:
                drawn = result.tokens[index]
                if scored := result.prompt_logprobs.get(index):
                    deltas += sequence.answer_scored(scored)
                self._roster.pages.publish(sequence)
                if drawn:
                    total += len(drawn)
                    counted += len(drawn) if sequence.log_metrics else 0
                    self._arrive(sequence, now)
                    self._accept(sequence, drawn, result, index, deltas)
            except Exception as error:
                self._refuse(sequence, error)
        return counted, total

    def _arrive(self, sequence: Sequence, now: float) -> None:
        """All that was known is computed: from now on one token per step."""
        self._roster.arrived(sequence)
        sequence.token_time = now
        if not sequence.first_token:
            self._stats.started(sequence, now)

    def _book_decodes(
        self, flight: InFlightStep, result: StepResult, now: float, deltas: list[Delta]
    ) -> tuple[list[float], int]:
        """The hot path. Returns how many tokens were drawn, and for those that metrics count when
        their sequences drew the one before."""
        moments: list[float] = []
        total = 0
        first = len(flight.chunks)
        running = State.RUNNING
        spans = zip(flight.decodes, result.advanced[first:], result.tokens[first:], strict=True)
        for index, (sequence, advanced, drawn) in enumerate(spans, first):
            sequence.computed += advanced
            if sequence.state is not running:
                continue
            total += 1
            if sequence.log_metrics:
                moments.append(sequence.token_time)
            sequence.token_time = now
            try:
                tokens = sequence.tokens
                length = len(tokens) + 1
                if drawn[0] in sequence.stops or length >= sequence.limit or sequence.elaborate:
                    self._accept(sequence, drawn, result, index, deltas)
                    continue
                tokens += drawn
                if length >= sequence.due:
                    deltas.append(sequence.answer_one(drawn, length))
            except Exception as error:
                self._refuse(sequence, error)
        return moments, total

    def _accept(
        self,
        sequence: Sequence,
        drawn: list[int],
        result: StepResult,
        index: int,
        deltas: list[Delta],
    ) -> None:
        """Append what was drawn; answer when it is time, or the end."""
        before = len(sequence.tokens)
        finish = sequence.accept(drawn)
        if sequence.logprobs is not None:
            accepted = len(sequence.tokens) - before
            sequence.logprobs += result.logprobs.get(index, [])[:accepted]
        if finish is not None:
            deltas.append(self._finish(sequence, finish))
        elif len(sequence.tokens) >= sequence.due:
            deltas.append(sequence.answer())
