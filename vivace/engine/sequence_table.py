"""All live sequences: who is let in, waits and runs, and which row and pages each of them holds."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from math import inf

from vivace.engine.resources import Pages, Resource, Rows
from vivace.engine.schedule_policy import Clients, WaitingQueue
from vivace.engine.sequence import Sequence, State
from vivace.engine.settings import EngineSettings
from vivace.protocol.messages import (
    FINISH_ABORT,
    MAX_RID_CHARACTERS,
    Cancel,
    Capacity,
    Finish,
    Request,
)


class SequenceTable:
    """Every change of a sequence's state happens here.

    `prefilling`: running, and known tokens are still to be planned. `decoding`: running, a span of
    the last known token per step; who was planned longest ago comes first where they take turns.
    `prefill_pending`: running, and known tokens are still to be computed (a superset of
    `prefilling`). `gated`: they wait, but not in the queue. `finished_in_flight`: ended, but a step
    in flight computes them, so what they hold must stay.
    """

    def __init__(
        self,
        rows: Rows,
        pages: Pages,
        waiting: WaitingQueue,
        clients: Clients,
        others: Iterable[Resource] = (),
    ) -> None:
        """`others`: of which a running sequence needs something, beside its row and pages."""
        self.rows = rows
        self.pages = pages
        self.resources: tuple[Resource, ...] = (rows, *others)
        """taken when a sequence starts, whole; pages come as it goes on"""
        self.waiting = waiting
        self.clients = clients
        self.live: dict[int, Sequence] = {}
        self.gated: dict[int, Sequence] = {}
        self.prefilling: list[Sequence] = []
        self.decoding: list[Sequence] = []
        self.prefill_pending: dict[int, Sequence] = {}
        self.finished_in_flight: list[Sequence] = []
        self.rows_to_free: list[int] = []
        """rows that the worker has to empty with the next plan"""
        self._stale = False
        """`prefilling` or `decoding` lists sequences that stopped running"""

    @property
    def num_running(self) -> int:
        return len(self.live) - self.num_waiting

    @property
    def num_waiting(self) -> int:
        return len(self.waiting) + len(self.gated)

    @property
    def holds_memory(self) -> bool:
        """A sequence holds rows or pages, or may soon, or a transfer does."""
        return bool(self.live or self.finished_in_flight or self.pages.held)

    def running(self) -> list[Sequence]:
        self.prune()
        return self.prefilling + self.decoding

    def add(self, sequence: Sequence) -> None:
        """A new sequence waits."""
        if sequence.gates:
            sequence.refresh_prefix()
            self.gate(sequence)
        else:
            self.waiting.add(sequence)
        self.live[sequence.key] = sequence
        self.clients.request_added(sequence.client)

    def gate(self, sequence: Sequence) -> None:
        """A sequence waits for its gates. The caller takes it off the queue."""
        sequence.state = State.GATED
        self.gated[sequence.key] = sequence

    def open_gates(self) -> None:
        """Whose gates are all open takes its place in the queue."""
        for sequence in list(self.gated.values()):
            if all(gate.is_open() for gate in sequence.gates):
                del self.gated[sequence.key]
                sequence.gates.clear()
                sequence.state = State.WAITING
                self.waiting.add(sequence)

    def older_than(self, moment: float) -> list[Sequence]:
        """Sequences that arrived before `moment` and never ran."""
        waiting = chain(self.waiting, self.gated.values())
        return [s for s in waiting if s.arrival_time < moment and not s.start_time]

    def start(self, sequence: Sequence, now: float) -> None:
        """A waiting sequence that has a lease gets a row. The caller takes it off the queue."""
        for resource in self.resources:
            resource.take(sequence)
        self.clients.row_taken(sequence.client)
        sequence.state = State.RUNNING
        sequence.joined = sequence.steady = sequence.received = False
        sequence.prefill_len = len(sequence.tokens)
        sequence.start_time = sequence.start_time or now
        self.pages.update_limit(sequence)
        self.prefilling.append(sequence)
        self.prefill_pending[sequence.key] = sequence

    def step_planned(self) -> None:
        """Who has no known token left to plan decodes from now on."""
        if not self.prefilling:
            return
        self.decoding += [s for s in self.prefilling if s.scheduled_len >= s.prefill_len]
        self.prefilling = [s for s in self.prefilling if s.scheduled_len < s.prefill_len]

    def prefill_done(self, sequence: Sequence) -> None:
        """All tokens that were known when the sequence got its row are computed."""
        self.prefill_pending.pop(sequence.key, None)
        sequence.steady = not sequence.has_logprobs

    def take_back(self, sequences: list[Sequence], planned: list[int], advanced: list[int]) -> None:
        """Of what a step planned for each of these sequences only so much was computed."""
        if planned == advanced:
            return
        for sequence, count, done in zip(sequences, planned, advanced, strict=True):
            sequence.scheduled_len -= count - done
            behind = sequence.scheduled_len < sequence.prefill_len
            if behind and sequence.state is State.RUNNING and sequence in self.decoding:
                self.decoding.remove(sequence)
                self.prefilling.append(sequence)

    def retract(self, sequence: Sequence) -> None:
        """A running sequence that is in no step in flight waits again; nothing it knows is lost."""
        self._release(sequence)
        sequence.state = State.WAITING
        sequence.retractions += 1
        self.waiting.add(sequence)

    def end(self, sequence: Sequence) -> None:
        """A sequence is over; what it holds is released when no step in flight computes it."""
        if self.live.pop(sequence.key, None) is None:
            return
        self.clients.request_ended(sequence.client)
        if sequence.state in (State.WAITING, State.GATED):
            if self.gated.pop(sequence.key, None) is None:
                self.waiting.remove([sequence])
            self.pages.release(sequence)
            sequence.state = State.ENDED
            return
        sequence.state = State.ENDED
        self._stale = True
        self.prefill_pending.pop(sequence.key, None)
        if sequence.in_flight:
            self.finished_in_flight.append(sequence)
        else:
            self._release(sequence)

    def step_committed(self) -> None:
        """The result of a step is processed: release who waited for it."""
        if not self.finished_in_flight:
            return
        for sequence in self.finished_in_flight:
            if not sequence.in_flight:
                self._release(sequence)
        self.finished_in_flight = [s for s in self.finished_in_flight if s.in_flight]

    def take_rows_to_free(self) -> list[int]:
        rows, self.rows_to_free = self.rows_to_free, []
        return rows

    def rejoin(self) -> None:
        """The executor emptied its rows, and nothing is in flight any more: all that run join again
        where their KV ends."""
        running = self.running()
        for sequence in running + self.finished_in_flight:
            sequence.in_flight = 0
        self.step_committed()
        self.rows_to_free = []
        for sequence in running:
            sequence.joined = sequence.steady = False
            sequence.scheduled_len = sequence.computed_len
            sequence.prefill_len = len(sequence.tokens)
            self.pages.update_limit(sequence)
        self.prefilling, self.decoding = running, []
        self.prefill_pending = {sequence.key: sequence for sequence in running}

    def prune(self) -> None:
        if self._stale:
            self.prefilling = [s for s in self.prefilling if s.state is State.RUNNING]
            self.decoding = [s for s in self.decoding if s.state is State.RUNNING]
            self._stale = False

    def _release(self, sequence: Sequence) -> None:
        if sequence.joined:
            self.rows_to_free.append(sequence.row)
            sequence.joined = False
        for resource in self.resources:
            resource.release(sequence)
        self.clients.row_released(sequence.client)
        self.pages.release(sequence)
        self.prefill_pending.pop(sequence.key, None)
        self._stale = True

    def audit(self) -> list[str]:
        """Findings about rows and pages; empty when each has exactly one explanation."""
        holders = self.running() + self.finished_in_flight
        waiting = [*self.waiting, *self.gated.values()]
        leases = self.pages.leases
        findings = leases.audit()
        rows = [sequence.row for sequence in holders]
        if len(set(rows)) != len(rows) or len(rows) != self.rows.taken:
            findings.append(f"{self.rows.taken} rows are taken, {sorted(rows)} are used")
        held = {id(sequence.lease) for sequence in holders + waiting if sequence.lease}
        held |= {id(each.lease) for each in self.pages.held}
        if len(held) != leases.live:
            findings.append(f"{leases.live} leases are open, {len(held)} have an owner")
        return findings


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
        if request.priority is not None and self._priorities_rejected():
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

    def _priorities_rejected(self) -> bool:
        settings = self._settings
        return settings.abort_on_priority_when_disabled and not settings.priorities

    def _check_fits(self, request: Request) -> Finish | None:
        """Prompts that can never be served here; frontends check first, with more words."""
        capacity, tokens = self._capacity, request.tokens
        known = len(tokens) + len(request.resumed)
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


def _abort(status: int, message: str, retry_after: float | None = None) -> Finish:
    return Finish(FINISH_ABORT, message=message, status=status, retry_after=retry_after)


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
