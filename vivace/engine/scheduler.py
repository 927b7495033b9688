"""add, cancel, plan, commit: the decisions of one engine.

Sees no device, no socket and no wall clock. Plans are numbered; several may be in flight, and
they are committed in their order.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping

from vivace.engine.batching import Batching
from vivace.engine.clients import Clients
from vivace.engine.compaction import Compaction
from vivace.engine.dynamic_chunk import DynamicChunk
from vivace.engine.fault_bisection import FaultBisection
from vivace.engine.new_token_estimate import NewTokenEstimate
from vivace.engine.ordering import ORDERS
from vivace.engine.request_limits import RequestLimits
from vivace.engine.resources import Pages, Rows
from vivace.engine.result_processor import ResultProcessor
from vivace.engine.sequence import Sequence, State
from vivace.engine.sequence_table import SequenceTable
from vivace.engine.settings import EngineSettings
from vivace.engine.stats import Load, Stats
from vivace.engine.step_builder import InFlightStep, StepBuilder
from vivace.engine.waiting import WaitingQueue
from vivace.kv.leases import Leases
from vivace.protocol.control import Capacity, EngineState
from vivace.protocol.output import FINISH_ABORT, Delta, Finish
from vivace.protocol.request import Cancel, Request
from vivace.protocol.step import StepPlan, StepResult

logger = logging.getLogger("vivace.engine")


class Scheduler:
    """Turns requests into plans and results into deltas; owns all book-keeping of rows and KV."""

    def __init__(
        self,
        settings: EngineSettings,
        capacity: Capacity,
        clock: Callable[[], float],
        startup: Mapping[str, float] | None = None,
    ) -> None:
        """`startup`: seconds of the stages of the engine's start, for the metrics."""
        self.settings = settings
        self.capacity = capacity
        self.draining = False
        self._clock = clock
        self._leases = Leases(
            capacity.pages,
            capacity.page_size,
            prefix_cache=settings.prefix_cache,
            eviction=settings.eviction,
            cache_share=capacity.cache_share,
        )
        self._compaction = Compaction(self._leases, lazy=capacity.cache_share is not None)
        order = ORDERS.get(settings.policy)(self._leases, settings.seed)
        self._roster = SequenceTable(
            Rows(min(settings.rows, capacity.rows)),
            Pages(self._leases),
            WaitingQueue(order, settings.max_queued),
            Clients(min(settings.rows, capacity.rows), capacity.pages, capacity.page_size),
        )
        self._admission = NewTokenEstimate(settings, capacity.page_size)
        self._stats = Stats(settings, self.load, clock(), startup or {})
        self._dynamic_chunk = DynamicChunk(settings.stall_target)
        self._batching = Batching(
            settings,
            self._roster,
            self._admission,
            self._dynamic_chunk,
            self._refuse,
            self._stats.retracted,
        )
        self._commit = ResultProcessor(self._roster, self._stats, self._finish, self._refuse)
        self._gatekeeper = RequestLimits(settings, capacity)
        self._suspects = FaultBisection()
        self._flights: dict[int, InFlightStep] = {}
        self._landed = clock()
        """when the last step was booked"""
        self._number = 0
        self._tickets = 0
        self._news: list[Delta] = []
        """deltas that came up while planning; they go out with the next answer"""

    # --- requests ---------------------------------------------------------------------------

    def add(self, request: Request) -> list[Delta]:
        """A new request: it waits, or is answered at once (refused, or already complete)."""
        now = self._clock()
        self._stats.received(request)
        refusal = self._gatekeeper.refusal(request, self._roster, self.draining)
        if refusal is not None:
            return [Delta(key=request.key, index=len(request.resumed), tokens=[], finish=refusal)]
        self._tickets += 1
        sequence = Sequence(
            request,
            self.settings,
            ticket=self._tickets,
            longest=min(self.capacity.context, self.capacity.tokens),
            now=now,
        )
        if request.resumed and (finish := sequence.finish()):
            return [sequence.answer(finish)]
        deltas = self._make_place(sequence)
        if not deltas or deltas[0].key != sequence.key:
            self._welcome(sequence)
        return deltas

    def _welcome(self, sequence: Sequence) -> None:
        if not self._roster.live:
            self._admission.rested()
            self._stats.rested()
        self._roster.welcome(sequence)

    def _make_place(self, newcomer: Sequence) -> list[Delta]:
        """When the queue is full, somebody is turned away: the least important, or a client's
        that crowds it."""
        waiting = self._roster.waiting
        if not waiting.full(self._roster.rows.free):
            return []
        dropped = waiting.least_important(newcomer) or newcomer
        finish = self._gatekeeper.queue_full(len(waiting))
        return [self._finish(dropped, finish)]

    def cancel(self, cancel: Cancel) -> list[Delta]:
        """Stop requests; what they hold is free as soon as the steps in flight have landed."""
        finish = Finish(FINISH_ABORT, message="the request was aborted")
        deltas: list[Delta] = []
        for sequence in self._selected(cancel):
            if cancel.finished:
                self._roster.end(sequence)
                self._stats.ended(sequence, None, self._clock())
            else:
                deltas.append(self._finish(sequence, finish))
        return deltas

    def _selected(self, cancel: Cancel) -> list[Sequence]:
        live = self._roster.live
        if cancel.everything:
            return list(live.values())
        chosen = {key: live[key] for key in cancel.keys if key in live}
        if cancel.rid_prefix is not None:
            prefix = cancel.rid_prefix
            chosen |= {s.key: s for s in live.values() if s.request.rid.startswith(prefix)}
        return list(chosen.values())

    # --- the cycle --------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """True while a request lives, or a delta waits to be sent."""
        return bool(self._roster.live or self._news)

    def rest_until(self) -> float | None:
        """When an idle engine has something to do by itself; None = never."""
        return None if self._occupied else self._compaction.due(self._landed)

    @property
    def _occupied(self) -> bool:
        """A sequence holds rows or pages."""
        return bool(self._roster.live or self._roster.leaving)

    def plan(self, idle: bool) -> StepPlan | None:
        """The next step. None: nothing to do, or steps in flight have to be committed first.

        `idle`: no plan is in flight.
        """
        if self._compaction.in_flight:
            return None
        now = self._clock()
        self._expire(now)
        draft = self._next_draft(now, idle)
        if draft is None:
            return self._compact(now) if idle and not self._occupied else None
        self._number += 1
        self._flights[draft.number] = InFlightStep(
            draft.chunks, draft.counts, draft.decodes, draft.suspects, now
        )
        self._stats.planned(draft, now)
        leaves, self._roster.leaves = self._roster.leaves, []
        return draft.plan(leaves)

    def _compact(self, now: float) -> StepPlan | None:
        plan = self._compaction.plan(self._number + 1, self._landed, now, self._roster.leaves)
        if plan is not None:
            self._number += 1
            self._roster.leaves = []
        return plan

    def _next_draft(self, now: float, idle: bool) -> StepBuilder | None:
        if not self._suspects:
            return self._batching.compose(self._number, now, idle)
        if not idle:
            return None
        spans = self._suspects.next()
        return self._trial(spans) if spans else self._batching.compose(self._number, now, idle)

    def _trial(self, spans: list[tuple[Sequence, int]]) -> StepBuilder:
        """The same work that failed before, for fewer sequences."""
        draft = StepBuilder(self._number, suspects=True)
        for sequence, count in spans:
            draft.add_chunk(sequence, count, [])
        self._roster.planned()
        return draft

    def commit(self, plan: StepPlan, result: StepResult) -> list[Delta]:
        """Book the result of the oldest plan in flight."""
        if self._compaction.in_flight:
            self._compaction.landed()
            return self._take_news()
        flight = self._flights.pop(plan.number)
        if flight.suspects:
            self._suspects.acquit()
        deltas = self._take_news()
        now = self._clock()
        self._commit.book(flight, result, now, deltas)
        self._roster.landed(plan.number)
        self._measure(flight, now)
        return deltas + self._take_news()

    def _measure(self, flight: InFlightStep, now: float) -> None:
        """A step begins when it is planned, or when the step before it has landed."""
        if not flight.suspects:
            seconds = now - max(flight.planned, self._landed)
            self._dynamic_chunk.landed(sum(flight.counts), len(flight.decodes), seconds)
        self._landed = now

    def fail(self, plan: StepPlan, error: Exception) -> list[Delta]:
        """The oldest plan raised, the plans behind it did not run, the executor has recovered.

        All running sequences join again where their confirmed KV ends; those of the failed step
        are tried in smaller and smaller groups. An offender is refused with status 500.
        """
        if self._compaction.in_flight:
            logger.error("step %d with copies of cached prefixes failed: %r", plan.number, error)
            self._compaction.failed()
            return self._take_news()
        flight = self._flights[plan.number]
        self._flights.clear()
        self._roster.rejoin(self._number - 1)
        offender = self._suspects.accuse(flight.spans(), flight.suspects)
        logger.error(
            "step %d with %d sequences failed: %r", plan.number, len(flight.spans()), error
        )
        if offender is not None and offender.state is State.RUNNING:
            self._refuse(offender, error)
        return self._take_news()

    # --- control ----------------------------------------------------------------------------

    def flush(self) -> bool:
        """Drop the prefix cache; False while requests live."""
        if self._occupied or self._compaction.in_flight:
            return False
        self._leases.clear()
        return True

    def state(self) -> EngineState:
        load, page_size = self.load(), self.capacity.page_size
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
                ratio=self._admission.ratio,
                evicted_tokens=evicted,
                decoding_tokens=sum(len(s.tokens) for s in self._roster.decoding),
                cpu_seconds=time.process_time(),
            ),
            memory={
                "weight": self.capacity.weight_bytes / 2**30,
                "kvcache": self.capacity.kv_bytes / 2**30,
                "kvcache_resident": self._resident_bytes() / 2**30,
                "token_capacity": float(self.capacity.tokens),
                "graph": self.capacity.graph_bytes / 2**30,
            },
            pid=os.getpid(),
            instructions=self.capacity.instructions,
        )

    def _resident_bytes(self) -> float:
        """Of the KV pool: all of it, or where memory comes at the first touch, pages touched."""
        capacity = self.capacity
        if capacity.cache_share is None:
            return float(capacity.kv_bytes)
        return capacity.kv_bytes * self._leases.touched / capacity.pages

    def load(self) -> Load:
        return Load(
            running=self._roster.running,
            waiting=len(self._roster.waiting),
            used_tokens=self._leases.used * self.capacity.page_size,
            total_tokens=self.capacity.tokens,
        )

    def audit(self) -> list[str]:
        """Findings about rows and pages; empty when each has exactly one explanation."""
        holders = self._roster.runners() + self._roster.leaving
        findings = self._leases.audit()
        rows = [sequence.row for sequence in holders]
        if len(set(rows)) != len(rows) or len(rows) != self._roster.rows.taken:
            findings.append(f"{self._roster.rows.taken} rows are taken, {sorted(rows)} are used")
        leases = {id(sequence.lease) for sequence in holders}
        if len(leases) != self._leases.live:
            findings.append(f"{self._leases.live} leases are open, {len(leases)} have a sequence")
        return findings

    # --- endings ----------------------------------------------------------------------------

    def _finish(self, sequence: Sequence, finish: Finish) -> Delta:
        """End a sequence and tell its client everything that was not said yet."""
        self._roster.end(sequence)
        now = self._clock()
        self._stats.ended(sequence, finish, now)
        self._gatekeeper.finished(now)
        return sequence.answer(finish)

    def _refuse(self, sequence: Sequence, error: Exception | str) -> None:
        """The fault boundary: what went wrong with one request ends only that request."""
        logger.error("request %s is ended: %s", sequence.request.rid, error)
        text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        message = f"internal error while processing the request: {text}"
        self._news.append(self._finish(sequence, Finish(FINISH_ABORT, message=message, status=500)))

    def _expire(self, now: float) -> None:
        """End requests that waited or ran for too long."""
        waiting, running = self.settings.waiting_timeout, self.settings.running_timeout
        if waiting is not None:
            for sequence in self._roster.waiting.older_than(now - waiting):
                self._time_out(sequence, f"timed out after {waiting:g} s in the queue")
        if running is not None:
            for sequence in list(self._roster.live.values()):
                if sequence.started and sequence.started < now - running:
                    self._time_out(sequence, f"timed out after running for {running:g} s")

    def _time_out(self, sequence: Sequence, what: str) -> None:
        finish = Finish(FINISH_ABORT, message=f"the request {what}", status=503, retry_after=1.0)
        self._news.append(self._finish(sequence, finish))

    def _take_news(self) -> list[Delta]:
        news, self._news = self._news, []
        return news

    def news(self) -> list[Delta]:
        """Deltas that came up outside of add, cancel, commit and fail."""
        return self._take_news()
