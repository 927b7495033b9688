"""Who makes place: for a newcomer with more right to it, or when pages run out."""

from __future__ import annotations

from vivace.engine.schedule_policy import preemptable, retraction_order
from vivace.engine.sequence import Sequence
from vivace.engine.sequence_table import SequenceTable
from vivace.engine.settings import EngineSettings
from vivace.engine.stats import Stats
from vivace.engine.step_builder import NewTokenEstimate


class Retraction:
    """Nobody is retracted while steps are in flight."""

    def __init__(
        self,
        settings: EngineSettings,
        table: SequenceTable,
        estimate: NewTokenEstimate,
        stats: Stats,
    ) -> None:
        self._settings = settings
        self._table = table
        self._pages = table.pages
        self._estimate = estimate
        self._stats = stats
        self.decode_steps = 0
        """since the last retraction that was asked for"""

    def must_drain(self, idle: bool) -> bool:
        """Retract whom a test or a request of higher priority asks for, once nothing is in
        flight."""
        victims = self._choose_victims()
        every = self._settings.retract_every
        if every and self.decode_steps >= every:
            running = retraction_order(self._table.running())
            victims = victims or running[: max(0, len(running) - 1)][:1]
        if not victims:
            return False
        if not idle:
            return True
        self.decode_steps = 0
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
        fits = all(resource.fits(head) for resource in self._table.resources)
        fits = fits and self._estimate.affords(head, demand, self._table)
        self._pages.return_prefix(head)
        return fits

    def _fewest(self, head: Sequence, candidates: list[Sequence]) -> list[Sequence]:
        """The fewest of the candidates whose going lets `head` in; none when all do not do."""
        leases, running = self._pages.leases, self._table.running()
        for count in range(1, len(candidates) + 1):
            victims = candidates[:count]
            freed = leases.count_freed([s.lease for s in victims if s.lease is not None])
            free = (leases.available + freed) * leases.page_size
            demand = self._estimate.running_demand([], [s for s in running if s not in victims])
            affordable = self._estimate.newcomer_demand(head) <= free - demand
            fits = all(resource.fits(head, victims) for resource in self._table.resources)
            if fits and (affordable or count == len(running)):
                return victims
        return []

    def free_pages(self) -> bool:
        """Pages ran out: retract until the rest can go on for a while. One always stays."""
        if self._drop_received():
            return True
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

    def _drop_received(self) -> bool:
        """The last to come of those that received KV and still wait: it computes it anew."""
        received = [sequence for sequence in self._table.waiting if sequence.received]
        last = max(received, key=lambda sequence: sequence.seq_no, default=None)
        if last is not None:
            self._pages.release(last)
        return last is not None

    def _retract_all(self, victims: list[Sequence]) -> None:
        for victim in victims:
            self._table.retract(victim)
            self._stats.record_retraction(victim)
        self._table.prune()
