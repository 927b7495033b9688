"""How one step is composed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from itertools import chain
from operator import itemgetter

from vivace.engine.chunk_sizes import choose_chunk_sizes
from vivace.engine.drafts.widths import DraftWidths
from vivace.engine.result_processor import OutputQueue
from vivace.engine.retraction import Retraction
from vivace.engine.sequence import Sequence, State
from vivace.engine.sequence_table import SequenceTable
from vivace.engine.settings import EngineSettings
from vivace.engine.stats import Stats
from vivace.engine.step_builder import (
    Budget,
    DynamicChunk,
    InFlightStep,
    NewTokenEstimate,
    StepBuilder,
)
from vivace.kv.prefix_tree import TOKEN_BYTES, shared_pages
from vivace.protocol.messages import Finish
from vivace.protocol.step import StepResult, growth

_SHORT_PROMPTS = 32
"""tokens: while all prompts together need no more, they share the decode steps of streams"""
_MAX_DEFERRED = 64
"""sequences gated in one step because a running prompt computes their prefix"""


@dataclass(slots=True)
class Admission:
    """Newcomers of one step. Who does not fit closes it, but not for clients that hold less."""

    open: bool
    max_rows: float = math.inf
    """clients with so many rows have to wait for one of theirs, or of another's"""
    running_demand: int | None = None
    """tokens that running sequences will still take, when the first one came"""
    deferred: int = 0
    dequeued: list[Sequence] = field(default_factory=list[Sequence])
    """who waits no more"""


class PrefixGate:
    """Closed while `other` runs and has not computed its first `length` tokens."""

    def __init__(self, other: Sequence, length: int) -> None:
        self._other = other
        self._length = length
        self.refusal: Finish | None = None

    def is_open(self) -> bool:
        other = self._other
        return other.state is not State.RUNNING or other.computed_len >= self._length


class Batching:
    """Composes steps from the table: decode tokens, chunks of prompts, newcomers."""

    def __init__(
        self,
        settings: EngineSettings,
        table: SequenceTable,
        estimate: NewTokenEstimate,
        outputs: OutputQueue,
        stats: Stats,
        widths: DraftWidths,
    ) -> None:
        self._settings = settings
        self._widths = widths
        self._table = table
        self._pages = table.pages
        self._estimate = estimate
        self._dynamic_chunk = DynamicChunk(settings.stall_target)
        self._chunk_sizes = choose_chunk_sizes(
            settings.chunk, dynamic=settings.dynamic_chunks, smoothing=settings.chunk_smoothing
        )
        self._outputs = outputs
        self._decodes_due = 0
        """decode steps before the next look at prompts; without --enable-mixed-chunk"""
        self._retraction = Retraction(settings, table, estimate, stats)

    def observe(self, step: InFlightStep, seconds: float, result: StepResult) -> None:
        """What a step took, so that the next ones are cut by it."""
        if not step.chunks and self._pages.drafts:
            self._widths.observe(step.decode_counts, seconds, result)
        decodes = sum(step.decode_counts) + (ahead := sum(step.counts[: step.ahead]))
        self._dynamic_chunk.observe(sum(step.counts) - ahead, decodes, seconds)
        if step.pairs and not decodes:
            self._chunk_sizes.observe(sum(step.counts), step.pairs, seconds)

    def compose(
        self,
        number: int,
        now: float,
        in_flight: Collection[InFlightStep],
        common: int | None = None,
    ) -> StepBuilder | None:
        """The next step; None when there is nothing to do, or steps in flight must be committed
        first.

        `common`: its number among those that engines take together. By it all know when prompts are
        due: each waits for the longest, so chunks of one beside decodes of another cost both.
        """
        idle, table = not in_flight, self._table
        if common is not None and self._dynamic_chunk.enabled:
            self._decodes_due = -common % (1 + self._settings.continuous_decode_steps)
        if self._retraction.must_drain(idle):
            return None
        admit, short = True, self._prompts_are_short()
        while True:
            step = StepBuilder(number, self._pages)
            if short or self._settings.mixed:  # a token for everybody, then chunks
                if self._add_decodes(step, in_flight):
                    self._add_chunks(step, now, admit, short)
            else:  # chunks while nobody decodes; else a step for those who do between two chunks
                chunks_due = not table.decoding or self._decodes_due <= 0
                if chunks_due:
                    self._add_chunks(step, now, admit)
                if not step and self._add_decodes(step, in_flight) and not (step or chunks_due):
                    self._add_chunks(step, now, admit)  # who decodes has planned its last token
            table.step_planned()
            if step:
                if self._pages.drafts and step.chunks:
                    step.undrafted += self._widths.unread(step.chunks, sum(step.counts))
                return step
            if not idle or not self._retraction.free_pages():
                return None
            # Whoever stays makes a step before anybody is admitted again: that is progress.
            admit = False

    # --- decode -----------------------------------------------------------------------------

    def _add_decodes(self, step: StepBuilder, in_flight: Collection[InFlightStep]) -> bool:
        """A span for every decoding sequence that has not planned its last token, or for the
        cohort whose turn it is.

        False when pages are short: then nobody decodes before somebody has been retracted.
        """
        decoding = self._next_cohort(in_flight)
        if self._table.ahead:
            decoding = step.add_ahead(decoding, self._table)
        at_limit = [s for s in decoding if s.scheduled_len >= s.page_limit]
        if at_limit:
            growing = [s for s in at_limit if s.scheduled_len < s.max_len - 1]
            if not self._grow(step, growing):
                return False
            if len(growing) < len(at_limit):
                decoding = [s for s in decoding if s.scheduled_len < s.max_len - 1]
        if decoding:
            limited = any(s.scheduled_len >= s.page_limit for s in at_limit)
            step.add_decodes(decoding, self._decode_counts(decoding, limited=limited))
            if self._pages.drafts:
                step.undrafted = self._widths.undrafted(decoding)
            for sequence in decoding if self._pages.leases.sparse else ():
                step.saves += self._pages.save_states(sequence)
        if step:
            self._estimate.decay()
            self._decodes_due -= 1
            self._retraction.decode_steps += 1
            if self._table.clients.several:
                self._table.clients.charge_each(decoding)
        return True

    def _next_cohort(self, in_flight: Collection[InFlightStep]) -> list[Sequence]:
        """Who may decode in the next of the plans that may go out before one comes back: all, or
        where few plans may mention one sequence an equal part, and they go to the end."""
        table, depth = self._table, self._settings.depth
        limit = self._settings.sequence_depth or depth
        if limit >= depth:
            return table.decoding.copy()
        plans_of = Counter(s for step in in_flight for s in (*step.chunks, *step.decodes))
        growing = [s for s in table.decoding if s.scheduled_len < s.max_len - 1]
        growing = [s for s in growing if plans_of[s] < limit]
        open_spans = sum(limit - plans_of[s] for s in growing)
        size = min(-(-open_spans // (depth - len(in_flight))), self._settings.micro_batch_size)
        cohort = growing[:size]
        chosen = set(map(id, cohort))
        table.decoding = [s for s in table.decoding if id(s) not in chosen] + cohort
        return cohort

    def _decode_counts(self, decoding: list[Sequence], *, limited: bool) -> list[int]:
        """The last known token of each, and as many drafts as are worth it, it may draw, and pages
        allow. `limited`: for some these may be fewer"""
        if not self._pages.drafts:
            return [1] * len(decoding)
        counts = self._widths.choose(decoding)
        if limited:
            counts, drafts = counts.copy(), self._pages.drafts
            for index, sequence in enumerate(decoding):
                if sequence.scheduled_len >= sequence.page_limit:
                    left = sequence.page_limit + drafts - sequence.scheduled_len
                    counts[index] = min(counts[index], left)
        return counts

    def _grow(self, step: StepBuilder, growing: list[Sequence]) -> bool:
        """More pages for each of them, taken in one piece: while pages are plenty several at a
        time, while they are short for no drafts. False: too few even for a token each."""
        pages, leases = self._pages, self._pages.leases
        needs = pages.missing(growing, pages.drafts, growth(pages.drafts))
        if leases.partial:  # whoever goes on slides; where that is not enough, all do
            short = sum(needs) > leases.growable // 2
            for sequence in self._table.running() if short else growing:
                pages.slide(sequence)
        growable = leases.growable
        if sum(needs) > growable // 2:
            needs = pages.missing(growing, pages.drafts, 1)
        if sum(needs) > growable:
            needs = pages.missing(growing, 0, 1)
        if sum(needs) > growable:
            return False
        step.grants += pages.grow(growing, needs)
        return True

    # --- chunks -----------------------------------------------------------------------------

    def _prompts_are_short(self) -> bool:
        """True while prompts need so little that a few tokens of each decode step will do.

        A step of a few tokens takes little longer than one of one (weights are read once), so a
        stream beside short prompts hardly pauses; with a step of their own it waits for two. The
        step behind a chunk is not shared: it ends a pause that is long enough.
        """
        table, left = self._table, _SHORT_PROMPTS
        due = self._dynamic_chunk.enabled and self._decodes_due <= 0 and not self._settings.mixed
        some = table.prefilling or (table.rows.free and len(table.waiting))
        if not (due and some and table.decoding):
            return False
        left -= sum(s.prefill_len - s.scheduled_len for s in table.prefilling)
        for sequence in table.waiting:
            if left < 0:
                break
            pages = self._pages.leases.measure(sequence.request.cache_key, sequence.prefix)
            left -= len(sequence.tokens) - min(
                pages * self._pages.page_size, sequence.max_prefix_len()
            )
        return left >= 0

    def _add_chunks(self, step: StepBuilder, now: float, admit: bool, short: bool = False) -> None:
        """Go on with prompts that have begun, and admit newcomers while the budget lasts."""
        table = self._table
        admission = Admission(admit and len(table.waiting) > 0 and table.rows.free > 0)
        if table.prefilling or admission.open:
            self._serve_prompts(step, self._budget(sum(step.decode_counts), short), admission, now)
        if not step or self._dynamic_chunk.enabled:  # a step that is shared is one for streams, too
            self._decodes_due = self._settings.continuous_decode_steps - short

    def _serve_prompts(
        self, step: StepBuilder, budget: Budget, admission: Admission, now: float
    ) -> None:
        for sequence in self._prompts(admission.open):
            if not budget.open or step.num_sequences >= self._settings.micro_batch_size:
                break
            if sequence.state is State.RUNNING:
                self._add_chunk(step, sequence, budget)
            elif admission.open:
                self._admit(step, sequence, budget, admission, now)
        self._table.waiting.remove(admission.dequeued)

    def _budget(self, decodes: int, short: bool) -> Budget:
        """What chunks may take beside so many decode tokens."""
        settings, table = self._settings, self._table
        context = max((sequence.scheduled_len for sequence in table.prefilling), default=0)
        chunk = self._chunk_sizes.predict(context)
        budget = Budget(chunk, settings.max_prefill_tokens, settings.prefill_max_requests)
        budget.spend(decodes)
        if table.decoding or table.clients.several:  # a client's chunk is another's wait
            prompts = len(table.prefilling) + len(table.waiting)
            beside = self._dynamic_chunk
            max_tokens = beside.max_share() if short else beside.max_tokens(prompts)
            if max_tokens is not None:
                budget.limit(max_tokens)
        return budget

    def _prompts(self, admit: bool) -> Iterator[Sequence]:
        """Whose prompt is next: who runs before who waits; several clients take turns."""
        table, clients = self._table, self._table.clients
        if clients.several:
            return clients.fair_order(
                table.prefilling, table.waiting.in_order if admit else _nobody
            )
        waiting = table.waiting.in_order(clients.only) if admit else []
        return chain(table.prefilling.copy(), waiting)

    def _add_chunk(self, step: StepBuilder, sequence: Sequence, budget: Budget) -> None:
        """As much of what is known as budget and pages allow."""
        wanted = budget.share(sequence.prefill_len - sequence.scheduled_len)
        count = self._pages.cut(sequence, self._pages.coverable(sequence, wanted))
        if count <= 0:
            return
        step.add_chunk(sequence, count, self._pages.cover(sequence, count))
        step.saves += self._pages.save_states(sequence)
        budget.spend(count)
        self._table.clients.charge(sequence.client, count)

    # --- newcomers --------------------------------------------------------------------------

    def _admit(
        self,
        step: StepBuilder,
        sequence: Sequence,
        budget: Budget,
        admission: Admission,
        now: float,
    ) -> None:
        """Let a waiting sequence run with its first chunk, or leave everything as it was."""
        table, clients = self._table, self._table.clients
        if admission.deferred > _MAX_DEFERRED or not self._has_room(step, budget):
            admission.open = False
            return
        if clients.rows(sequence.client) >= admission.max_rows:
            return
        lacking = [resource for resource in table.resources if not resource.fits(sequence)]
        if lacking and not any(resource.in_turn for resource in lacking):
            return
        if (gate := self._awaits_prefix(sequence)) is not None:
            admission.deferred += 1
            admission.dequeued.append(sequence)
            sequence.gates.append(gate)
            table.gate(sequence)
            return
        if admission.running_demand is None:
            admission.running_demand = self._estimate.running_demand(
                table.prefilling, table.decoding
            )
        try:
            self._pages.lease_prefix(sequence)
            if not lacking and self._fits(step, sequence, budget, admission.running_demand):
                self._start(step, sequence, budget, now)
                admission.dequeued.append(sequence)
                return
            self._pages.return_prefix(sequence)
        except Exception as error:
            self._outputs.fail(sequence, error)
            admission.dequeued.append(sequence)
            return
        admission.max_rows = clients.rows(sequence.client)
        admission.open = clients.several and admission.max_rows > 0

    def _has_room(self, step: StepBuilder, budget: Budget) -> bool:
        if not budget.open or not self._table.rows.free:
            return False
        if budget.requests is not None and step.admitted >= budget.requests:
            return False
        return budget.prefill > 0 or not step.chunks

    def _awaits_prefix(self, sequence: Sequence) -> PrefixGate | None:
        """A gate while a running prompt computes pages that this one could share a step later."""
        pending = self._table.prefill_pending
        if not pending or not self._settings.prefix_cache or sequence.received:
            return None
        page_size, cache_key = self._pages.page_size, sequence.request.cache_key
        stride = self._pages.granularity
        found = [
            (shared_pages(other.prefix, sequence.prefix, TOKEN_BYTES * page_size), other)
            for other in pending.values()
            if other.request.cache_key == cache_key
        ]
        shared, other = max(found, key=itemgetter(0), default=(0, sequence))
        length = min(shared * page_size, sequence.max_prefix_len()) // stride * stride
        if length < self._settings.shared_prefix_wait or other.computed_len >= length:
            return None
        if length <= self._pages.leases.measure(cache_key, sequence.prefix) * page_size:
            return None
        return PrefixGate(other, length)

    def _fits(
        self, step: StepBuilder, sequence: Sequence, budget: Budget, running_demand: int
    ) -> bool:
        """Do budget, estimate and pages allow a sequence that has its lease to start now?"""
        remaining = len(sequence.tokens) - sequence.computed_len
        if budget.chunk is None and step.chunks and remaining > budget.prefill:
            return False
        promised = running_demand + step.reserved
        affordable = self._estimate.affords(sequence, promised, self._table)
        return affordable and self._pages.coverable(sequence, 1) >= 1

    def _start(self, step: StepBuilder, sequence: Sequence, budget: Budget, now: float) -> None:
        """A row and the first chunk for a sequence that has its lease."""
        self._table.start(sequence, now)
        if not sequence.retractions:
            sequence.num_cached_tokens = sequence.computed_len
        step.admitted += 1
        step.num_cached_tokens += sequence.computed_len
        available = self._pages.available_tokens
        self._add_chunk(step, sequence, budget)
        taken = available - self._pages.available_tokens
        step.reserved += max(0, self._estimate.newcomer_demand(sequence) - taken)


def _nobody(client: int) -> list[Sequence]:
    return []
