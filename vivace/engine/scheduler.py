"""add, cancel, plan, commit: the decisions of one engine.

Sees no device, no socket and no wall clock. Steps are numbered; several may be in flight, and
they are committed in their order.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping

from vivace.engine.batching import Batching
from vivace.engine.drafts.levels import level_table
from vivace.engine.drafts.widths import choose_widths
from vivace.engine.fault_isolation import FaultBisection
from vivace.engine.result_processor import Aborts, OutputQueue, RequestLimits, ResultProcessor
from vivace.engine.schedule_policy import ORDERS, Clients, WaitingQueue
from vivace.engine.sequence import Sequence, SequenceGate, State
from vivace.engine.sequence_pages import Pages, open_leases, window_reserves
from vivace.engine.sequence_table import Resource, Rows, SequenceTable
from vivace.engine.settings import EngineSettings
from vivace.engine.stats import Stats
from vivace.engine.step_builder import InFlightStep, NewTokenEstimate, StepBuilder
from vivace.engine.transfers import Transfers
from vivace.kv.leases import Compaction
from vivace.protocol.messages import (
    ABORTED,
    FINISH_ABORT,
    Cancel,
    Capacity,
    Delta,
    EngineState,
    Finish,
    Request,
)
from vivace.protocol.step import Copy, ExecutorEvent, StepPlan, StepResult

logger = logging.getLogger("vivace.engine")


class Scheduler:
    """Turns requests into plans and results into deltas; owns all book-keeping of rows and KV.

    What there is to tell clients waits for `take_deltas`.
    """

    def __init__(
        self,
        settings: EngineSettings,
        capacity: Capacity,
        clock: Callable[[], float],
        startup: Mapping[str, float] | None = None,
        resources: Iterable[Resource] = (),
        grammar_gate: Callable[[Request], SequenceGate | None] = lambda request: None,
    ) -> None:
        """`startup`: seconds of the stages of the start. `resources`: of which a running sequence
        needs something, beside row and pages. `grammar_gate`: of a request with a grammar."""
        self.settings = settings
        self.capacity = capacity
        self._clock = clock
        self._grammar_gate = grammar_gate
        self._leases = open_leases(settings, capacity)
        rows = min(settings.rows, capacity.rows)
        order = ORDERS.get(settings.policy)(self._leases, settings.seed)
        self._table = SequenceTable(
            Rows(rows),
            Pages(self._leases, settings, capacity.others),
            WaitingQueue(order, settings.max_queued),
            Clients(rows, capacity.pages, capacity.page_size),
            [*window_reserves(settings, capacity), *resources],
        )
        self._stats = Stats(settings, self._table, clock(), startup or {})
        self._limits = RequestLimits(settings, capacity)
        self._outputs = OutputQueue(self._table, self._stats, self._limits, clock)
        self._estimate = NewTokenEstimate(settings, capacity.page_size)
        self._batching = Batching(
            *(settings, self._table, self._estimate, self._outputs, self._stats),
            choose_widths(settings, capacity.step_costs),
        )
        self._transfers = Transfers(self._table, self._estimate)
        self._processor = ResultProcessor(
            *(self._table, self._stats, self._outputs, self._transfers),
            level_table(settings.num_speculative_tokens, settings.draft_shape.depth),
        )
        self._aborts = Aborts()
        self._bisection = FaultBisection()
        self._compaction = Compaction(self._leases, lazy=capacity.cache_share is not None)
        self._in_flight: dict[int, InFlightStep] = {}
        self._apart: deque[StepBuilder] = deque()
        """composed already: what is left of a step whose suspects run in steps of their own"""
        self._last_commit = clock()
        """time of the last step's result"""
        self._nothing_to_plan = False
        """at the last look"""
        self._next_step = 0
        self._num_added = 0

    # --- requests ---------------------------------------------------------------------------

    def add(self, request: Request) -> None:
        """A new request: it waits, or is answered at once (rejected, or already complete)."""
        self._stats.record_request(request)
        reason = self._limits.reject_reason(request, self._table)
        if self._aborts.concern(request):
            reason = ABORTED
        if reason is not None:
            self._outputs.reject(request, reason)
            return
        self._num_added += 1
        sequence = Sequence(
            request,
            self.settings,
            seq_no=self._num_added,
            max_len=self._limits.max_len,
            now=self._clock(),
        )
        if request.resumed and (finish := sequence.finish_reason()):
            self._outputs.deltas.append(sequence.take_delta(finish))
        elif self._make_place(sequence):
            if not self._table.live:
                self._estimate.reset()
                self._stats.restart_throughput()
            if request.transfer is not None:
                self._transfers.expect(sequence)
            if (gate := self._grammar_gate(request)) is not None:
                sequence.gates.append(gate)
            self._table.add(sequence)

    def reject(self, request: Request, error: Exception) -> None:
        """End a request that `add` raised for."""
        text = f"the engine could not take this request: {type(error).__name__}: {error}"
        self._outputs.reject(request, Finish(FINISH_ABORT, message=text, status=500))

    def _make_place(self, newcomer: Sequence) -> bool:
        """When the queue is full, somebody is turned away: the lowest priority, or a client's that
        crowds it. False: it is the newcomer."""
        waiting = self._table.waiting
        if not waiting.full(self._table.rows.free - len(self._table.gated)):
            return True
        dropped = waiting.lowest_priority(newcomer) or newcomer
        self._outputs.finish(dropped, self._limits.queue_full(self._table.num_waiting))
        return dropped is not newcomer

    def cancel(self, cancel: Cancel) -> None:
        """Stop requests; what they hold is free as soon as the steps in flight are committed."""
        self._aborts.add(cancel)
        for sequence in self._select(cancel):
            if not (cancel.moved or cancel.finished):
                self._outputs.finish(sequence, ABORTED)
                continue
            self._table.end(sequence)
            self._stats.drafts.end(sequence)
            if cancel.finished:
                self._stats.record_finish(sequence, None, self._clock())

    def _select(self, cancel: Cancel) -> list[Sequence]:
        live = self._table.live
        chosen = {key: live[key] for key in cancel.keys if key in live}
        if (prefix := cancel.rid_prefix) is not None:
            for key, sequence in live.items():
                request = sequence.request
                if request.begin <= cancel.when and request.rid.startswith(prefix):
                    chosen[key] = sequence
        return list(chosen.values())

    def end_all(self, finish: Finish) -> int:
        """End every request; returns how many there were."""
        live = list(self._table.live.values())
        for sequence in live:
            self._outputs.finish(sequence, finish)
        return len(live)

    def take_deltas(self) -> list[Delta]:
        """What has come up since the last call, in its order."""
        return self._outputs.take()

    # --- the cycle --------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """True while a request lives, a delta waits to be sent, or KV goes to another engine."""
        return bool(self._table.live or self._outputs.deltas or self._transfers.under_way)

    def next_moment(self) -> float | None:
        """When there is something to do by itself while no step is in flight: at once (0.0), at
        that moment, or never (None)."""
        due = self._outputs.deltas or self._apart or self._transfers.due
        if due or (self._table.live and not self._waits_for_events()):
            return 0.0
        if self._table.live:
            return min((deadline for deadline, _, _ in self._deadlines()), default=None)
        return None if self._table.holds_memory else self._compaction.due(self._last_commit)

    def _waits_for_events(self) -> bool:
        """The last look found nothing to plan, and only the end of a transfer can change that."""
        gated = len(self._table.gated) == len(self._table.live)
        return self._nothing_to_plan and (gated or self._transfers.under_way)

    def notify(self, events: list[ExecutorEvent]) -> None:
        """What has happened beside the steps."""
        for event in events:
            self._transfers.end(event)

    @property
    def isolates(self) -> bool:
        """Whoever may be to blame for a failure runs with nothing else in flight."""
        return bool(self._bisection.groups or self._table.suspects or self._apart)

    def plan(self, idle: bool, common: int | None = None) -> StepPlan | None:
        """The next step. None: nothing to do, or steps in flight have to be committed first.

        `idle`: no step is in flight; `common`: as in `Batching.compose`.
        """
        if self._compaction.in_flight:
            return None
        now = self._clock()
        self._expire(now)
        self._table.prune()
        if self._table.gated:
            self._transfers.begin_receives()
            for sequence, reason in self._table.open_gates():
                self._outputs.finish(sequence, reason)
        if not idle and self.isolates:
            return None
        step = self._apart.popleft() if self._apart else self._compose(now, common)
        transfers = self._transfers.due
        self._nothing_to_plan = step is None and not transfers
        if step is None and transfers:
            step = StepBuilder(self._next_step, self._table.pages)
        if step is None:
            return self._compact(now) if idle and not self._table.holds_memory else None
        self._next_step = max(self._next_step, step.number + 1)
        self._in_flight[step.number] = step.in_flight(now)
        self._stats.record_step(step, now)
        sends, receives = self._transfers.begin_due(step.number)
        return step.plan(self._table.take_rows_to_free(), sends, receives)

    def _compose(self, now: float, common: int | None) -> StepBuilder | None:
        number, in_flight = self._next_step, self._in_flight.values()
        step = self._try_again() if self._bisection.groups else None
        step = step or self._batching.compose(number, now, in_flight, common)
        if step is None or not self._table.suspects:
            return step
        first, *rest = step.apart()
        self._next_step += len(rest) + 1
        self._apart.extend(rest)
        return first

    def _try_again(self) -> StepBuilder:
        """The same work that failed before, for fewer sequences; empty when all have passed."""
        step = StepBuilder(self._next_step, self._table.pages, on_trial=True)
        for sequence, count in self._bisection.next():  # drafts are gone since
            left = sequence.prefill_len - sequence.scheduled_len
            step.add_chunk(sequence, min(count, left), [])
        self._table.step_planned()
        return step

    def _compact(self, now: float) -> StepPlan | None:
        """What an idle engine does: gives memory back, or copies a few pages in a small step; a
        request that comes in between waits for it."""
        moved = self._compaction.begin(self._last_commit, now)
        if moved is None:
            return None
        number, self._next_step = self._next_step, self._next_step + 1
        return StepPlan(
            number=number,
            leaves=self._table.take_rows_to_free(),
            copies=[
                Copy(source, target, group)
                for group, (moves, _) in enumerate(moved)
                for source, target in moves.items()
            ],
            vacant=[vacant for _, vacant in moved],
        )

    def commit(self, plan: StepPlan, result: StepResult) -> None:
        """Process the result of the oldest step in flight."""
        if self._compaction.in_flight:
            self._compaction.commit()
            return
        step = self._in_flight.pop(plan.number)
        self._nothing_to_plan = False  # who ends now may be whom others wait for
        now = self._clock()
        self._processor.process(step, result, now)
        self._table.step_committed()
        self._transfers.step_committed(step.number)
        if step.on_trial:
            self._bisection.passed()
        else:  # a step begins when it is planned, or when the step before it is committed
            seconds = now - max(step.planned, self._last_commit)
            self._batching.observe(step, seconds, result)
        self._last_commit = now

    def fail(self, plan: StepPlan, error: Exception) -> None:
        """The oldest step raised, the steps behind it did not run, the executor has recovered.

        All running sequences join again where their confirmed KV ends; those of the failed step
        are tried in smaller and smaller groups. An offender is ended with status 500.
        """
        if self._compaction.in_flight:
            done = "copies cached prefixes" if plan.copies else "gives memory back"
            logger.error("step %d, which %s, failed: %r", plan.number, done, error)
            self._compaction.fail(copying=bool(plan.copies))
            return
        step = self._in_flight[plan.number]
        spans = step.spans()
        self._nothing_to_plan = False
        self._in_flight.clear()
        self._apart.clear()
        self._table.rejoin(self._next_step - 1)
        self._transfers.step_failed(step.number)
        offender = self._bisection.failed(spans, step.on_trial)
        logger.error("step %d with %d sequences failed: %r", plan.number, len(spans), error)
        if offender is not None and offender.state is State.RUNNING:
            self._outputs.fail(offender, error)

    def _expire(self, now: float) -> None:
        """End requests that waited or ran for too long."""
        for deadline, sequence, reason in list(self._deadlines()):
            if deadline < now:
                self._outputs.time_out(sequence, reason)

    def _deadlines(self) -> Iterator[tuple[float, Sequence, str]]:
        """(when it has waited or run for too long, who, what its client is told then)"""
        waiting, running = self.settings.waiting_timeout, self.settings.running_timeout
        if waiting is None and running is None:
            return
        for sequence in self._table.live.values():
            if sequence.start_time:
                if running is not None:
                    text = f"timed out after running for {running:g} s"
                    yield sequence.start_time + running, sequence, text
            elif waiting is not None:
                text = f"timed out after {waiting:g} s in the queue"
                yield sequence.arrival_time + waiting, sequence, text

    # --- control ----------------------------------------------------------------------------

    def flush(self) -> bool:
        """Drop the prefix cache, and begin to count accepted drafts anew, as SGLang does; False
        while requests live."""
        if self._table.holds_memory or self._compaction.in_flight:
            return False
        self._leases.clear()
        self._stats.drafts.restart()
        return True

    def audit(self) -> list[str]:
        """Findings about rows and pages; empty when each has exactly one explanation."""
        return self._table.audit() + self._transfers.audit()

    def load(self) -> tuple[int, int]:
        """(requests that live, tokens they have KV of or wait with)"""
        held = self._leases.used * self.capacity.page_size
        return len(self._table.live), held + self._table.waiting.tokens

    def state(self) -> EngineState:
        load, page_size = self._stats.load(), self.capacity.page_size
        stats, evicted = self._stats, self._leases.evicted * page_size
        return EngineState(
            running=load.running,
            waiting=load.waiting,
            total_tokens=load.total_tokens,
            used_tokens=load.used_tokens,
            cached_tokens=self._leases.cached * page_size,
            last_gen_throughput=stats.gen_throughput,
            steps=stats.steps,
            audit=self.audit(),
            metrics=stats.metrics(
                ratio=self._estimate.ratio,
                evicted_tokens=evicted,
                decoding_tokens=sum(len(s.tokens) for s in self._table.decoding),
                cpu_seconds=time.process_time(),
            ),
            memory={
                "weight": self.capacity.weight_bytes / 2**30,
                "kvcache": self.capacity.kv_bytes / 2**30,
                "kvcache_resident": self._resident_bytes() / 2**30,
                "token_capacity": float(self.capacity.tokens),
                "graph": self.capacity.graph_bytes / 2**30,
            },
            avg_spec_accept_length=stats.drafts.accept_length,
            avg_spec_accept_rate=stats.drafts.accept_rate,
            spec_draft_widths=stats.drafts.widths,
            pid=os.getpid(),
            instructions=self.capacity.instructions,
        )

    def _resident_bytes(self) -> float:
        """Of the KV pool: all of it, or where memory comes at the first touch, pages touched."""
        capacity = self.capacity
        if capacity.cache_share is None:
            return float(capacity.kv_bytes)
        others = [(group.kv_bytes, group.pages) for group in capacity.others]
        first = capacity.kv_bytes - sum(nbytes for nbytes, _ in others)
        groups = zip([(first, capacity.pages), *others], self._leases.touched_in, strict=True)
        return sum(nbytes * touched / max(1, pages) for (nbytes, pages), touched in groups)
