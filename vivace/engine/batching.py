"""How one step is composed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain

from vivace.engine.dynamic_chunk import DynamicChunk
from vivace.engine.new_token_estimate import NewTokenEstimate
from vivace.engine.preemption import less_important, retraction_order
from vivace.engine.sequence import Sequence, State
from vivace.engine.sequence_table import SequenceTable
from vivace.engine.settings import EngineSettings
from vivace.engine.step_builder import StepBuilder
from vivace.kv.prefix_tree import TOKEN_BYTES, shared_pages

_GROWTH = 16
"""while pages are plenty, decoding sequences get them up to the next multiple of so many tokens"""
_MOST_DEFERRED = 64
"""sequences passed over in one step because a running prompt computes their prefix"""


@dataclass(slots=True)
class Budget:
    """Tokens that chunks may still take in this step; None = no limit."""

    chunk: int | None
    prefill: int
    requests: int | None

    @property
    def open(self) -> bool:
        return self.chunk is None or self.chunk > 0

    def share(self, wanted: int) -> int:
        return wanted if self.chunk is None else min(wanted, self.chunk)

    def limit(self, tokens: int) -> None:
        self.prefill = min(self.prefill, tokens)
        if self.chunk is not None:
            self.chunk = min(self.chunk, tokens)

    def spend(self, count: int) -> None:
        self.prefill -= count
        if self.chunk is not None:
            self.chunk -= count


@dataclass(slots=True)
class Entrance:
    """Newcomers of one step. Who does not fit closes it, but not for clients that hold less."""

    open: bool
    rows: float = math.inf
    """clients with so many rows have to wait for one of theirs, or of another's"""
    expected: int | None = None
    """tokens that running sequences will still take, when the first one came"""
    deferred: int = 0
    gone: list[Sequence] = field(default_factory=list[Sequence])
    """who waits no more"""


class Batching:
    """Composes steps from the roster: decode tokens, chunks of prompts, newcomers."""

    def __init__(
        self,
        settings: EngineSettings,
        roster: SequenceTable,
        admission: NewTokenEstimate,
        dynamic_chunk: DynamicChunk,
        refuse: Callable[[Sequence, Exception], None],
        retracted: Callable[[Sequence], None],
    ) -> None:
        self._settings = settings
        self._roster = roster
        self._pages = roster.pages
        self._admission = admission
        self._dynamic_chunk = dynamic_chunk
        self._refuse = refuse
        self._retracted = retracted
        self._decodes_due = 0
        """decode steps before the next look at prompts"""
        self._decodes_until_retraction = settings.retract_every

    def compose(self, number: int, now: float, idle: bool) -> StepBuilder | None:
        """The next step; None when there is nothing to do, or steps in flight must land first."""
        self._roster.prune()
        if self._must_drain(idle):
            return None
        newcomers = True
        while True:
            draft = StepBuilder(number)
            if self._settings.mixed:
                self._compose_mixed(draft, now, newcomers)
            else:
                self._compose_in_turns(draft, now, newcomers)
            self._roster.planned()
            if draft:
                return draft
            if not idle or not self._retract():
                return None
            # Whoever stays makes a step before anybody is admitted again: that is progress.
            newcomers = False

    def _compose_in_turns(self, draft: StepBuilder, now: float, newcomers: bool) -> None:
        """Chunks while nobody decodes; else a step for those who do between every two chunks."""
        looked = not self._roster.decoding or not self._decodes_due
        if looked:
            self._look_at_prompts(draft, now, newcomers)
        if not draft and self._add_decodes(draft):
            if draft:
                self._decodes_due -= 1
            elif not looked:  # who decodes has planned its last token
                self._look_at_prompts(draft, now, newcomers)

    def _look_at_prompts(self, draft: StepBuilder, now: float, newcomers: bool) -> None:
        self._add_chunks(draft, self._budget(), now, newcomers)
        if not draft or self._dynamic_chunk.enabled:
            self._decodes_due = self._settings.continuous_decode_steps

    def _compose_mixed(self, draft: StepBuilder, now: float, newcomers: bool) -> None:
        """One token for everybody, and the rest of the budget for chunks."""
        if self._add_decodes(draft):
            self._add_chunks(draft, self._budget(len(draft.decodes)), now, newcomers)

    def _budget(self, spent: int = 0) -> Budget:
        """What chunks may take beside `spent` tokens; a time, in tokens, while others decode."""
        settings, roster = self._settings, self._roster
        budget = Budget(settings.chunk, settings.max_prefill_tokens, settings.prefill_max_requests)
        budget.spend(spent)
        if roster.decoding:
            most = self._dynamic_chunk.tokens(len(roster.filling) + len(roster.waiting))
            if most is not None:
                budget.limit(most)
        return budget

    # --- decode -----------------------------------------------------------------------------

    def _add_decodes(self, draft: StepBuilder) -> bool:
        """A token for every decoding sequence that has not planned its last one.

        False when pages are short: then nobody decodes before somebody has been retracted.
        """
        decoding = self._roster.decoding
        edged = [sequence for sequence in decoding if sequence.upper >= sequence.edge]
        if edged:
            growing = [sequence for sequence in edged if sequence.upper < sequence.limit - 1]
            if len(growing) > self._pages.leases.available:
                return False
            self._grow(draft, growing)
            if len(growing) < len(edged):
                decoding = [s for s in decoding if s.upper < s.limit - 1]
        if decoding:
            draft.add_decodes(decoding.copy())
            self._admission.decoded()
            self._decodes_until_retraction -= 1
            if self._roster.clients.several:
                self._roster.clients.charge_each(decoding)
        return True

    def _grow(self, draft: StepBuilder, growing: list[Sequence]) -> None:
        """More pages for each of them, taken in one piece; small pages come several at a time."""
        size, leases = self._pages.page_size, self._pages.leases
        most = -(-_GROWTH // size) * len(growing)
        plenty = most <= leases.available // 2
        supply = leases.take(most if plenty else len(growing))
        stride = _GROWTH if plenty else 1
        for sequence in growing:
            assert sequence.lease is not None
            held = sequence.lease.pages
            goal = min(sequence.upper // stride * stride + stride, sequence.limit)
            count = -(-goal // size) - len(held)
            pages = supply[-count:]
            del supply[-count:]
            held += pages
            sequence.edge = min(len(held) * size, sequence.limit - 1)
            draft.grants.append((sequence.row, pages))
        leases.put_back(supply)

    # --- chunks -----------------------------------------------------------------------------

    def _add_chunks(self, draft: StepBuilder, budget: Budget, now: float, newcomers: bool) -> None:
        """Go on with prompts that have begun, and admit newcomers while the budget lasts."""
        newcomers = newcomers and len(self._roster.waiting) > 0 and self._roster.rows.free > 0
        entrance = Entrance(newcomers)
        for sequence in self._prompts(newcomers):
            if not budget.open:
                break
            if sequence.state is State.RUNNING:
                self._add_chunk(draft, sequence, budget)
            elif entrance.open:
                self._admit(draft, sequence, budget, entrance, now)
        self._roster.waiting.remove(entrance.gone)

    def _prompts(self, newcomers: bool) -> Iterator[Sequence]:
        """Whose prompt is next: who runs before who waits; several clients take turns."""
        roster, clients = self._roster, self._roster.clients
        if clients.several:
            return clients.in_turn(roster.filling, roster.waiting.ordered if newcomers else _nobody)
        waiting = roster.waiting.ordered(clients.only) if newcomers else []
        return chain(roster.filling.copy(), waiting)

    def _add_chunk(self, draft: StepBuilder, sequence: Sequence, budget: Budget) -> bool:
        """As much of what is known as budget and pages allow; False when that is nothing."""
        wanted = budget.share(sequence.target - sequence.upper)
        count = self._pages.coverable(sequence, wanted)
        if count <= 0:
            return False
        draft.add_chunk(sequence, count, self._pages.cover(sequence, count))
        budget.spend(count)
        self._roster.clients.charge(sequence.client, count)
        return True

    def _admit(
        self, draft: StepBuilder, sequence: Sequence, budget: Budget, entrance: Entrance, now: float
    ) -> None:
        """Let a waiting sequence run when its turn has come."""
        if entrance.deferred > _MOST_DEFERRED or not self._has_room(sequence, draft, budget):
            entrance.open = False
            return
        clients, client = self._roster.clients, sequence.client
        if clients.rows(client) >= entrance.rows:
            return
        if self._awaits_prefix(sequence):
            entrance.deferred += 1
            return
        if entrance.expected is None:
            roster = self._roster
            entrance.expected = self._admission.expected(roster.filling, roster.decoding)
        try:
            entered = self._enter(draft, sequence, budget, entrance.expected, now)
        except Exception as error:
            self._refuse(sequence, error)
            entered = True
        if entered:
            entrance.gone.append(sequence)
        else:
            entrance.rows = clients.rows(client)
            entrance.open = clients.several and entrance.rows > 0

    def _has_room(self, sequence: Sequence, draft: StepBuilder, budget: Budget) -> bool:
        if not budget.open or not self._roster.rows.free:
            return False
        if budget.requests is not None and draft.admitted >= budget.requests:
            return False
        return budget.prefill > 0 or not draft.chunks

    def _enter(
        self, draft: StepBuilder, sequence: Sequence, budget: Budget, expected: int, now: float
    ) -> bool:
        """Start one sequence with its first chunk, or leave everything as it was."""
        self._pages.open(sequence)
        remaining = len(sequence.tokens) - sequence.computed
        whole = budget.chunk is None and draft.chunks and remaining > budget.prefill
        if whole or not self._affordable(sequence, expected + draft.reserved):
            self._pages.give(sequence)
            return False
        if self._pages.coverable(sequence, 1) < 1:
            self._pages.give(sequence)
            return False
        self._roster.start(sequence, now)
        if not sequence.retractions:
            sequence.cached = sequence.computed
        draft.admitted += 1
        draft.cached += sequence.computed
        held = self._pages.available_tokens
        self._add_chunk(draft, sequence, budget)
        taken = held - self._pages.available_tokens
        draft.reserved += max(0, self._admission.demand(sequence) - taken)
        return True

    def _affordable(self, sequence: Sequence, promised: int) -> bool:
        """Does the estimate allow a sequence that has its lease? Alone it always may run."""
        if not self._roster.filling and not self._roster.decoding:
            return True
        return self._admission.demand(sequence) <= self._pages.available_tokens - promised

    def _awaits_prefix(self, sequence: Sequence) -> bool:
        """True while a running prompt computes pages that this one could share a step later."""
        arriving = self._roster.arriving
        if not arriving or not self._settings.prefix_cache:
            return False
        stride = TOKEN_BYTES * self._pages.page_size
        most = sequence.reusable() // self._pages.page_size
        longest = 0
        for other in arriving.values():
            if other.request.cache_key == sequence.request.cache_key:
                longest = max(longest, shared_pages(other.prefix, sequence.prefix, stride))
        longest = min(longest, most)
        if longest * self._pages.page_size < self._settings.shared_prefix_wait:
            return False
        return longest > self._pages.leases.measure(sequence.request.cache_key, sequence.prefix)

    # --- retraction -------------------------------------------------------------------------

    def _must_drain(self, idle: bool) -> bool:
        """Retract whom a test or a more important request asks for, once nothing is in flight."""
        victims = self._displaced()
        if self._settings.retract_every and self._decodes_until_retraction <= 0:
            runners = retraction_order(self._roster.runners())
            victims = victims or runners[: max(0, len(runners) - 1)][:1]
        if not victims:
            return False
        if not idle:
            return True
        self._decodes_until_retraction = self._settings.retract_every
        self._retract_all(victims)
        return False

    def _displaced(self) -> list[Sequence]:
        """Who makes place for the next newcomer: when importance demands it, or when others hold
        more than their part and its client does not."""
        roster, clients, settings = self._roster, self._roster.clients, self._settings
        if not len(roster.waiting) or not (settings.priorities or clients.several):
            return []
        runners = roster.runners()
        for head in clients.heads(roster.waiting.ordered):
            candidates: list[Sequence] = []
            if settings.priorities:
                candidates = less_important(head, runners, settings.preemption_threshold)
            if clients.several:
                candidates += [s for s in clients.displaced(head, runners) if s not in candidates]
            if candidates and not self._fits_now(head):
                victims = self._enough(head, candidates)
                if victims:
                    return victims
        return []

    def _fits_now(self, head: Sequence) -> bool:
        expected = self._admission.expected(self._roster.filling, self._roster.decoding)
        self._pages.open(head)
        fits = self._roster.rows.free > 0 and self._affordable(head, expected)
        self._pages.give(head)
        return fits

    def _enough(self, head: Sequence, candidates: list[Sequence]) -> list[Sequence]:
        """The fewest of the candidates whose going lets `head` in; none when all do not do."""
        leases, stay = self._pages.leases, self._roster.runners()
        for count in range(1, len(candidates) + 1):
            gone = candidates[:count]
            freed = leases.freed([s.lease for s in gone if s.lease is not None])
            free = (leases.available + freed) * leases.page_size
            expected = self._admission.expected([], [s for s in stay if s not in gone])
            if self._admission.demand(head) <= free - expected or count == len(stay):
                return gone
        return []

    def _retract(self) -> bool:
        """Pages ran out: retract until the rest can go on for a while. One always stays."""
        order = retraction_order(self._roster.runners())
        if len(order) < 2:
            return False
        victims: list[Sequence] = []
        free = self._pages.available_tokens
        while len(order) > 1:
            needed = sum(min(s.limit - s.upper, self._settings.retract_steps) for s in order)
            if victims and free >= needed:
                break
            victim = order.pop(0)
            assert victim.lease is not None
            own = len(victim.lease.pages) - victim.lease.shared
            free += own * self._pages.page_size
            victims.append(victim)
        self._retract_all(victims)
        self._admission.retracted(order)
        return True

    def _retract_all(self, victims: list[Sequence]) -> None:
        for victim in victims:
            self._roster.retract(victim)
            self._retracted(victim)
        self._roster.prune()


def _nobody(client: int) -> list[Sequence]:
    return []
