"""How one step is composed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain

from vivace.engine.result_processor import OutputQueue
from vivace.engine.schedule_policy import preemptable, retraction_order
from vivace.engine.sequence import Sequence, State
from vivace.engine.sequence_table import SequenceTable
from vivace.engine.settings import EngineSettings
from vivace.engine.stats import Stats
from vivace.engine.step_builder import Budget, DynamicChunk, NewTokenEstimate, StepBuilder
from vivace.kv.prefix_tree import TOKEN_BYTES, shared_pages

_GROWTH = 16
"""while pages are plenty, decoding sequences get them up to the next multiple of so many tokens"""
_SHORT_PROMPTS = 32
"""tokens: while all prompts together need no more, they share the decode steps of streams"""
_MAX_DEFERRED = 64
"""sequences passed over in one step because a running prompt computes their prefix"""


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


class Batching:
    """Composes steps from the table: decode tokens, chunks of prompts, newcomers."""

    def __init__(
        self,
        settings: EngineSettings,
        table: SequenceTable,
        estimate: NewTokenEstimate,
        dynamic_chunk: DynamicChunk,
        outputs: OutputQueue,
        stats: Stats,
    ) -> None:
        self._settings = settings
        self._table = table
        self._pages = table.pages
        self._estimate = estimate
        self._dynamic_chunk = dynamic_chunk
        self._outputs = outputs
        self._stats = stats
        self._decodes_due = 0
        """decode steps before the next look at prompts; without --enable-mixed-chunk"""
        self._decodes_until_retraction = settings.retract_every

    def compose(self, number: int, now: float, idle: bool) -> StepBuilder | None:
        """The next step; None when there is nothing to do, or steps in flight must be committed
        first."""
        table = self._table
        table.prune()
        if self._must_drain(idle):
            return None
        admit, short = True, self._prompts_are_short()
        while True:
            step = StepBuilder(number)
            if short or self._settings.mixed:  # a token for everybody, then chunks
                if self._add_decodes(step):
                    self._add_chunks(step, now, admit, short)
            else:  # chunks while nobody decodes; else a step for those who do between two chunks
                chunks_due = not table.decoding or self._decodes_due <= 0
                if chunks_due:
                    self._add_chunks(step, now, admit)
                if not step and self._add_decodes(step) and not step and not chunks_due:
                    self._add_chunks(step, now, admit)  # who decodes has planned its last token
            table.step_planned()
            if step:
                return step
            if not idle or not self._retract():
                return None
            # Whoever stays makes a step before anybody is admitted again: that is progress.
            admit = False

    # --- decode -----------------------------------------------------------------------------

    def _add_decodes(self, step: StepBuilder) -> bool:
        """A token for every decoding sequence that has not planned its last one.

        False when pages are short: then nobody decodes before somebody has been retracted.
        """
        decoding = self._table.decoding
        at_limit = [
            sequence for sequence in decoding if sequence.scheduled_len >= sequence.page_limit
        ]
        if at_limit:
            growing = [s for s in at_limit if s.scheduled_len < s.max_len - 1]
            if len(growing) > self._pages.leases.available:
                return False
            self._grow(step, growing)
            if len(growing) < len(at_limit):
                decoding = [s for s in decoding if s.scheduled_len < s.max_len - 1]
        if decoding:
            step.add_decodes(decoding.copy())
            self._estimate.decay()
            self._decodes_due -= 1
            self._decodes_until_retraction -= 1
            if self._table.clients.several:
                self._table.clients.charge_each(decoding)
        return True

    def _grow(self, step: StepBuilder, growing: list[Sequence]) -> None:
        """More pages for each of them, taken in one piece; small pages come several at a time."""
        size, leases = self._pages.page_size, self._pages.leases
        wanted = -(-_GROWTH // size) * len(growing)
        plenty = wanted <= leases.available // 2
        supply = leases.take(wanted if plenty else len(growing))
        stride = _GROWTH if plenty else 1
        for sequence in growing:
            assert sequence.lease is not None
            held = sequence.lease.pages
            goal = min(sequence.scheduled_len // stride * stride + stride, sequence.max_len)
            count = -(-goal // size) - len(held)
            pages = supply[-count:]
            del supply[-count:]
            held += pages
            sequence.page_limit = min(len(held) * size, sequence.max_len - 1)
            step.grants.append((sequence.row, pages))
        leases.put_back(supply)

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
        waiting = self._table.waiting
        budget = self._budget(len(step.decodes), short)
        admission = Admission(admit and len(waiting) > 0 and self._table.rows.free > 0)
        for sequence in self._prompts(admission.open):
            if not budget.open:
                break
            if sequence.state is State.RUNNING:
                self._add_chunk(step, sequence, budget)
            elif admission.open:
                self._admit(step, sequence, budget, admission, now)
        waiting.remove(admission.dequeued)
        if not step or self._dynamic_chunk.enabled:  # a step that is shared is one for streams, too
            self._decodes_due = self._settings.continuous_decode_steps - short

    def _budget(self, decodes: int, short: bool) -> Budget:
        """What chunks may take beside so many decode tokens."""
        settings, table = self._settings, self._table
        budget = Budget(settings.chunk, settings.max_prefill_tokens, settings.prefill_max_requests)
        budget.spend(decodes)
        if table.decoding or table.clients.several:  # a client's chunk is another's wait
            prompts = len(table.prefilling) + len(table.waiting)
            chunk = self._dynamic_chunk
            max_tokens = chunk.max_share() if short else chunk.max_tokens(prompts)
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
        count = self._pages.coverable(sequence, wanted)
        if count <= 0:
            return
        step.add_chunk(sequence, count, self._pages.cover(sequence, count))
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
        if self._awaits_prefix(sequence):
            admission.deferred += 1
            return
        if admission.running_demand is None:
            admission.running_demand = self._estimate.running_demand(
                table.prefilling, table.decoding
            )
        try:
            self._pages.lease_prefix(sequence)
            if self._fits(step, sequence, budget, admission.running_demand):
                self._start(step, sequence, budget, now)
                admission.dequeued.append(sequence)
                return
            self._pages.release(sequence)
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

    def _awaits_prefix(self, sequence: Sequence) -> bool:
        """True while a running prompt computes pages that this one could share a step later."""
        pending = self._table.prefill_pending
        if not pending or not self._settings.prefix_cache:
            return False
        page_size, cache_key = self._pages.page_size, sequence.request.cache_key
        shared = max(
            (
                shared_pages(other.prefix, sequence.prefix, TOKEN_BYTES * page_size)
                for other in pending.values()
                if other.request.cache_key == cache_key
            ),
            default=0,
        )
        shared = min(shared, sequence.max_prefix_len() // page_size)
        if shared * page_size < self._settings.shared_prefix_wait:
            return False
        return shared > self._pages.leases.measure(cache_key, sequence.prefix)

    def _fits(
        self, step: StepBuilder, sequence: Sequence, budget: Budget, running_demand: int
    ) -> bool:
        """Do budget, estimate and pages allow a sequence that has its lease to start now?"""
        remaining = len(sequence.tokens) - sequence.computed_len
        if budget.chunk is None and step.chunks and remaining > budget.prefill:
            return False
        promised = running_demand + step.reserved
        return self._affordable(sequence, promised) and self._pages.coverable(sequence, 1) >= 1

    def _affordable(self, sequence: Sequence, promised: int) -> bool:
        """Does the estimate allow a sequence that has its lease? Alone it always may run."""
        if not self._table.prefilling and not self._table.decoding:
            return True
        return self._estimate.newcomer_demand(sequence) <= self._pages.available_tokens - promised

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

    # --- preemption and retraction ----------------------------------------------------------

    def _must_drain(self, idle: bool) -> bool:
        """Retract whom a test or a request of higher priority asks for, once nothing is in
        flight."""
        victims = self._choose_victims()
        if self._settings.retract_every and self._decodes_until_retraction <= 0:
            running = retraction_order(self._table.running())
            victims = victims or running[: max(0, len(running) - 1)][:1]
        if not victims:
            return False
        if not idle:
            return True
        self._decodes_until_retraction = self._settings.retract_every
        self._retract_all(victims)
        return False

    def _choose_victims(self) -> list[Sequence]:
        """Who makes place for the next newcomer: when priority demands it, or when others hold
        more than their share and its client does not."""
        table, clients, settings = self._table, self._table.clients, self._settings
        if not len(table.waiting) or not (settings.priorities or clients.several):
            return []
        running = table.running()
        for head in clients.heads(table.waiting.in_order):
            candidates: list[Sequence] = []
            if settings.priorities:
                candidates = preemptable(head, running, settings.preemption_threshold)
            if clients.several:
                candidates += [s for s in clients.preemptable(head, running) if s not in candidates]
            if candidates and not self._fits_now(head):
                victims = self._fewest(head, candidates)
                if victims:
                    return victims
        return []

    def _fits_now(self, head: Sequence) -> bool:
        demand = self._estimate.running_demand(self._table.prefilling, self._table.decoding)
        self._pages.lease_prefix(head)
        fits = self._table.rows.free > 0 and self._affordable(head, demand)
        self._pages.release(head)
        return fits

    def _fewest(self, head: Sequence, candidates: list[Sequence]) -> list[Sequence]:
        """The fewest of the candidates whose going lets `head` in; none when all do not do."""
        leases, running = self._pages.leases, self._table.running()
        for count in range(1, len(candidates) + 1):
            victims = candidates[:count]
            freed = leases.count_freed([s.lease for s in victims if s.lease is not None])
            free = (leases.available + freed) * leases.page_size
            demand = self._estimate.running_demand([], [s for s in running if s not in victims])
            if self._estimate.newcomer_demand(head) <= free - demand or count == len(running):
                return victims
        return []

    def _retract(self) -> bool:
        """Pages ran out: retract until the rest can go on for a while. One always stays."""
        order = retraction_order(self._table.running())
        if len(order) < 2:
            return False
        victims: list[Sequence] = []
        free = self._pages.available_tokens
        while len(order) > 1:
            needed = sum(
                min(s.max_len - s.scheduled_len, self._settings.retract_steps) for s in order
            )
            if victims and free >= needed:
                break
            victim = order.pop(0)
            assert victim.lease is not None
            own = len(victim.lease.pages) - victim.lease.shared
            free += own * self._pages.page_size
            victims.append(victim)
        self._retract_all(victims)
        self._estimate.on_retraction(order)
        return True

    def _retract_all(self, victims: list[Sequence]) -> None:
        for victim in victims:
            self._table.retract(victim)
            self._stats.record_retraction(victim)
        self._table.prune()


def _nobody(client: int) -> list[Sequence]:
    return []
