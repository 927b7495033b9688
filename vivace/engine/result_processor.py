"""What a step's result changes: positions, tokens, pages, and the deltas that go out; and why a
request is rejected."""

from __future__ import annotations

import logging
from collections.abc import Callable
from math import inf

from vivace.engine.drafts.levels import SPOILED
from vivace.engine.drafts.stats import tally
from vivace.engine.sequence import Sequence, State, first_hidden_state, first_logprob
from vivace.engine.sequence_table import SequenceTable
from vivace.engine.settings import EngineSettings
from vivace.engine.stats import Stats, StepTokens
from vivace.engine.step_builder import InFlightStep
from vivace.engine.transfers import Transfers
from vivace.protocol.messages import (
    FINISH_ABORT,
    FINISH_LENGTH,
    MAX_RID_CHARACTERS,
    Cancel,
    Capacity,
    Delta,
    Finish,
    Request,
)
from vivace.protocol.step import StepResult
from vivace.protocol.tasks import EMBEDDING, Embed, Payload

logger = logging.getLogger("vivace.engine")


_LEARNED_STEPS = 4
"""of a large batch: one of so many tells enough of how likely drafts are accepted"""
_FEW_SEQUENCES = 32


class ResultProcessor:
    def __init__(
        self,
        table: SequenceTable,
        stats: Stats,
        outputs: OutputQueue,
        transfers: Transfers,
        draft_levels: list[list[list[int]]],
    ) -> None:
        """`draft_levels`: as `level_table` says"""
        self._draft_levels = draft_levels
        self._judged = 0
        """steps with drafts"""
        self._table = table
        self._stats = stats
        self._outputs = outputs
        self._transfers = transfers

    def process(self, step: InFlightStep, result: StepResult, now: float) -> None:
        """An exception about one sequence ends that sequence."""
        for index, message in result.bad.items():
            stuck = result.stuck.get(index)
            finish = bad_numbers(message) if stuck is None else _abort(*stuck)
            self._process_bad_numbers(*step.spans()[index], index < len(step.chunks), finish)
        self._table.step_returned(step.number)
        drawn = StepTokens()
        if step.chunks:
            self._process_chunks(step, result, drawn, now)
        if step.decodes:
            self._process_decodes(step, result, drawn, now)
        if result.ready_drafts:
            spans = zip((*step.chunks, *step.decodes), result.ready_drafts, strict=True)
            for sequence, ready in spans:
                sequence.ready_drafts = ready if sequence.draft_level != SPOILED else 0
        self._stats.record_tokens(drawn)
        if step.decodes:
            self._stats.record_decode(result.captured, now)

    def _process_bad_numbers(
        self, sequence: Sequence, count: int, is_chunk: bool, finish: Finish
    ) -> None:
        """Nothing of that span stays. A draft may spoil the tokens before it, which its masked
        values reach as zero times NaN: without drafts they are computed once more."""
        if count > 1 and not is_chunk:
            sequence.draft_level, sequence.ready_drafts = SPOILED, 0
            return
        sequence.has_bad_numbers = True
        if sequence.state is State.RUNNING:
            self._outputs.abort(sequence, finish)

    def _process_chunks(
        self, step: InFlightStep, result: StepResult, drawn: StepTokens, now: float
    ) -> None:
        advanced = result.advanced[: len(step.chunks)]
        self._table.take_back(step.chunks, step.counts, advanced)
        for index, (sequence, count) in enumerate(zip(step.chunks, advanced, strict=True)):
            sequence.computed_len += count
            if sequence.state is not State.RUNNING:
                continue
            if result.tokens[index]:
                sequence.num_draws += 1
                if self._table.pages.drafts and sequence.first_token_time:
                    self._stats.drafts.record_ahead()
            self._process_span(sequence, result, index, drawn, now)

    def _process_span(
        self, sequence: Sequence, result: StepResult, index: int, drawn: StepTokens, now: float
    ) -> None:
        """Whatever a span may have brought."""
        tokens = result.tokens[index]
        try:
            if scored := result.prompt_logprobs.get(index):
                self._outputs.deltas += sequence.prompt_deltas(scored)
            pending = sequence.key in self._table.prefill_pending
            if pending:
                self._table.pages.publish(sequence)
            if (payload := result.payloads.get(index)) is not None:
                self._take_payload(sequence, payload)
            if not tokens:
                return
            before, sequence.last_token_time = None if pending else sequence.last_token_time, now
            self._table.prefill_done(sequence)
            if sequence.suspect:
                self._table.clear_suspicion(sequence)
            if pending and sequence.request.transfer is not None:
                self._transfers.send_prompt(sequence)
            if not sequence.first_token_time:
                self._stats.record_first_token(sequence, now)
                if sequence.drafted_len:
                    sequence.draft_level = self._stats.drafts.first_level
                else:  # its prompt was not read
                    sequence.draft_level = 0
            drawn.add(self._accept(sequence, tokens, result, index), before, sequence, now)
            ahead = len(sequence.tokens) - sequence.scheduled_len > 1
            if ahead and sequence.state is State.RUNNING:
                self._table.run_ahead(sequence)
        except Exception as error:
            self._outputs.fail(sequence, error)

    def _take_payload(self, sequence: Sequence, payload: Payload) -> None:
        """An embedding is all that its request wants."""
        if payload.kind == EMBEDDING:
            self._outputs.finish(sequence, Finish(FINISH_LENGTH, length=0), payload)
        else:
            self._outputs.deltas += sequence.hidden_state_deltas(payload)

    def _process_decodes(
        self, step: InFlightStep, result: StepResult, drawn: StepTokens, now: float
    ) -> None:
        """The hot path. What came at once is booked at once, where it is nothing but tokens."""
        first, planned = len(step.chunks), step.decode_counts
        advanced, tokens = result.advanced[first:], result.tokens[first:]
        came = tally(advanced)
        apart = 0 in came or self._table.pages.leases.sparse
        if apart or not self._table.pages.drafts:
            self._table.take_back(step.decodes, planned, advanced)
        if self._table.pages.drafts:
            self._stats.drafts.record(step.decodes, planned, advanced, came)
            self._learn_of_drafts(step, advanced, tokens)
        moments = [sequence.last_token_time for sequence in step.decodes]
        running, deltas = State.RUNNING, self._outputs.deltas
        others: dict[int, int] = {}  # whose tokens are not all booked here -> how many of them are
        spans = zip(range(len(tokens)), step.decodes, planned, advanced, tokens, strict=True)
        for place, sequence, plan, count, ids in spans:
            computed = sequence.computed_len = sequence.computed_len + count
            if plan > count and not apart:
                sequence.scheduled_len -= plan - count
            known, runs = sequence.tokens, sequence.state is running
            length, plain = len(known) + count, runs and count and sequence.steady
            if length - computed != 1 or count != len(ids) or not plain:
                others[place] = 0
                if count and self._table.pages.drafts:
                    old = length - computed - 1  # of the span's tokens that were known already
                    self._stats.drafts.correct(sequence, plan, count, old, drew=runs and ids != [])
                if runs:
                    self._process_span(sequence, result, first + place, drawn, now)
                continue
            sequence.last_token_time = now
            try:
                ends = sequence.ending_ids
                if length >= sequence.max_len or (ends and not ends.isdisjoint(ids)):
                    others[place] = self._accept(sequence, ids, result, first + place)
                    continue
                known += ids
                if length >= sequence.next_delta_len:
                    deltas.append(sequence.next_delta(ids, length))
            except Exception as error:
                self._outputs.fail(sequence, error)
        if others:
            advanced = [others.get(place, count) for place, count in enumerate(advanced)]
            came = tally(advanced)
        drawn.add_each(moments, advanced, came, now)

    def _learn_of_drafts(
        self, step: InFlightStep, advanced: list[int], tokens: list[list[int]]
    ) -> None:
        """How many drafts of each were right, where none of its tokens were known already."""
        clients, levels, decodes = self._table.clients, self._draft_levels, step.decodes
        self._judged += 1
        if self._judged % _LEARNED_STEPS == 0 or len(decodes) < _FEW_SEQUENCES:
            spans = zip(decodes, step.decode_counts, advanced, tokens, strict=True)
            for sequence, count, done, ids in spans:
                if count > 1 and 0 < done <= len(ids):
                    sequence.draft_level = levels[sequence.draft_level][count - 1][done - 1]
                    sequence.drafted_len = len(sequence.tokens)
        if clients.several:
            for sequence, done in zip(decodes, advanced, strict=True):
                clients.charge(sequence.client, max(0, done - 1))

    def _accept(self, sequence: Sequence, drawn: list[int], result: StepResult, index: int) -> int:
        """Append what was drawn; send a delta when it is time, or the end. Returns what stays."""
        before = len(sequence.tokens)
        finish = sequence.accept(drawn)
        accepted = len(sequence.tokens) - before
        sequence.num_forced += before + accepted - sequence.computed_len - 1
        if sequence.logprobs is not None:
            sequence.logprobs += result.logprobs.get(index, [])[:accepted]
        if finish is not None:
            self._outputs.finish(sequence, finish)
        elif len(sequence.tokens) >= sequence.next_delta_len:
            self._outputs.deltas.append(sequence.take_delta())
            if sequence.request.sampling.stop:  # the frontend may find that this is the end
                self._outputs.deltas[-1].drafts = self._stats.drafts.told(sequence)
        return accepted


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
        """in the order in which they go out"""
        self._table = table
        self._stats = stats
        self._limits = limits
        self._clock = clock

    def take(self) -> list[Delta]:
        deltas, self.deltas = self.deltas, []
        return deltas

    def finish(self, sequence: Sequence, finish: Finish, payload: Payload | None = None) -> None:
        """End a sequence and tell its client everything that was not sent yet."""
        self._table.end(sequence)
        now = self._clock()
        self._stats.record_finish(sequence, finish, now)
        self._limits.request_finished(now)
        delta = sequence.take_delta(finish)
        delta.drafts, delta.payload = self._stats.drafts.end(sequence), payload
        self.deltas.append(delta)

    def reject(self, request: Request, finish: Finish) -> None:
        """A request that never became a sequence."""
        index = len(request.resumed)
        self.deltas.append(Delta(key=request.key, index=index, tokens=[], finish=finish))

    def fail(self, sequence: Sequence, error: Exception) -> None:
        """The fault boundary: what went wrong with one request ends only that request."""
        message = f"internal error while processing the request: {type(error).__name__}: {error}"
        self.abort(sequence, Finish(FINISH_ABORT, message=message, status=500))

    def abort(self, sequence: Sequence, finish: Finish) -> None:
        level = logging.ERROR if (finish.status or 500) >= 500 else logging.INFO
        logger.log(level, "request %s is ended: %s", sequence.request.rid, finish.message)
        self.finish(sequence, finish)

    def time_out(self, sequence: Sequence, what: str) -> None:
        message = f"the request {what}"
        finish = Finish(FINISH_ABORT, message=message, status=503, retry_after=1.0)
        self.finish(sequence, finish)


_MIN_RETRY_SECONDS = 1.0
_MAX_RETRY_SECONDS = 60.0
_PAST_WEIGHT = 0.9
"""weight of the past in the mean time between two finished requests"""


class RequestLimits:
    """Which requests are rejected, and when it is worth trying again."""

    def __init__(self, settings: EngineSettings, capacity: Capacity) -> None:
        self._settings = settings
        self._capacity = capacity
        self.max_len = min(capacity.context, capacity.tokens)
        """the longest prompt + output in tokens"""
        self._interval = _MIN_RETRY_SECONDS
        self._last_finish: float | None = None

    def request_finished(self, now: float) -> None:
        """A request ended; how fast that happens tells how long a full queue takes."""
        if self._last_finish is not None:
            latest = max(0.0, now - self._last_finish)
            self._interval = _PAST_WEIGHT * self._interval + (1 - _PAST_WEIGHT) * latest
        self._last_finish = now

    def reject_reason(self, request: Request, table: SequenceTable) -> Finish | None:
        """Why a request is not even queued; None when it may be."""
        if request.key in table.live:
            return _abort(400, f"request key {request.key} is in use")
        rejected = self._settings.abort_on_priority_when_disabled and not self._settings.priorities
        if request.priority is not None and rejected:
            return _abort(
                503,
                "this server does not use priorities (start it with "
                "--enable-priority-scheduling, or send none)",
                retry_after=_MAX_RETRY_SECONDS,  # only another server, or this one restarted, helps
            )
        return self._check_fits(request)

    def queue_full(self, waiting: int) -> Finish:
        wait = min(max(waiting * self._interval, _MIN_RETRY_SECONDS), _MAX_RETRY_SECONDS)
        return _abort(503, "the request queue is full", retry_after=round(wait, 1))

    def _check_fits(self, request: Request) -> Finish | None:
        """Prompts that can never be served here; frontends check first, with more words."""
        capacity, tokens = self._capacity, request.tokens
        known = len(tokens) + len(request.resumed)
        if request.transfer is not None and any(group.state for group in capacity.others):
            return _abort(400, "the recurrent states of this model go to no other engine")
        if request.transfer is not None and isinstance(request.task, Embed):
            return _abort(400, "an embedding is computed by one engine; it has no KV to send")
        if _asks_for_received(request):
            return _abort(400, "the engine that computes a prompt has what comes of it")
        if not tokens:
            return _abort(400, "the prompt is empty")
        if known > capacity.context:
            return _abort(
                400, f"the prompt has {known} tokens, the context length is {capacity.context}"
            )
        if known > self.max_len:
            return _abort(
                400,
                f"the prompt has {known} tokens, the KV cache holds {self.max_len}; "
                "shorten it, or give the server more memory",
            )
        for ids in (tokens, request.resumed):
            if ids and (min(ids) < 0 or max(ids) >= capacity.vocabulary):
                return _abort(400, f"token ids must be in [0, {capacity.vocabulary})")
        return None


def _asks_for_received(request: Request) -> bool:
    """It wants log-probabilities or hidden states of a prompt that is not computed here."""
    if request.transfer is None or not request.transfer.receive:
        return False
    prompt, resumed = len(request.tokens), len(request.resumed)
    if first_hidden_state(request.task) < prompt + resumed - 1:
        return True
    return not resumed and first_logprob(request) < prompt


def bad_numbers(message: str) -> Finish:
    """The model's numbers for one request are none (NaN)."""
    return Finish(FINISH_ABORT, message=message, status=500, bad_numbers=True)


def _abort(status: int, message: str, retry_after: float = _MIN_RETRY_SECONDS) -> Finish:
    retry = retry_after if status == 503 else None
    return Finish(FINISH_ABORT, message=message, status=status, retry_after=retry)


MAX_PREFIXES = 4096


class Aborts:
    """Of requests that are on their way: in some frontend they wait for an engine that starts, or
    their texts are tokenized. All meet in the engine, whichever frontend the abort came to, so
    aborts are remembered (when ids that begin with a text were aborted; the last MAX_PREFIXES
    texts) and what comes later is looked at."""

    def __init__(self) -> None:
        self._latest = -inf
        self._when: dict[str, float] = {}

    def add(self, cancel: Cancel) -> None:
        """Remember it, if it is for ids that begin with a text and says when it was asked for."""
        prefix, when = cancel.rid_prefix, cancel.when
        if prefix is None or when == inf or len(prefix) > MAX_RID_CHARACTERS:
            return
        self._latest = max(self._latest, when)
        self._when[prefix] = max(when, self._when.pop(prefix, -inf))
        if len(self._when) > MAX_PREFIXES:
            del self._when[next(iter(self._when))]

    def concern(self, request: Request) -> bool:
        """Whether somebody has asked to abort this request since it began."""
        if self._latest < request.begin:
            return False
        prefixes = (request.rid[:length] for length in range(len(request.rid) + 1))
        return any(self._when.get(prefix, -inf) >= request.begin for prefix in prefixes)
