"""All live sequences: who waits and runs, and which row and pages each of them holds."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable
from typing import Protocol

from vivace.engine.schedule_policy import Clients, WaitingQueue
from vivace.engine.sequence import Sequence, State
from vivace.engine.sequence_pages import Pages
from vivace.protocol.messages import UNTIL_FIRST_TOKEN, Finish


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
        self.suspects: set[int] = set()
        """keys of those that run in steps of their own"""
        self.gated: dict[int, Sequence] = {}
        self.prefilling: list[Sequence] = []
        self.decoding: list[Sequence] = []
        self.prefill_pending: dict[int, Sequence] = {}
        self.finished_in_flight: list[Sequence] = []
        self.rows_to_free: list[int] = []
        """rows that the worker has to empty with the next plan"""
        self._last_returned = -1
        """number of the last step whose result is there: those behind it are in flight"""
        self._stale = False
        self.ahead = False
        """somebody who decodes may have several known tokens that no step computes"""
        """`prefilling` or `decoding` lists sequences that stopped running"""

    @property
    def num_running(self) -> int:
        return len(self.live) - self.num_waiting

    @property
    def num_waiting(self) -> int:
        return len(self.waiting) + len(self.gated)

    def all_waiting(self) -> list[Sequence]:
        return [*self.waiting, *self.gated.values()]

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
        if sequence.suspect:
            self.suspects.add(sequence.key)
        self.clients.request_added(sequence.client)

    def gate(self, sequence: Sequence) -> None:
        """A sequence waits for its gates. The caller takes it off the queue."""
        sequence.state = State.GATED
        self.gated[sequence.key] = sequence

    def open_gates(self) -> list[tuple[Sequence, Finish]]:
        """Whose gates are all open takes its place in the queue. Returns who may never have one:
        they are to be ended."""
        refused: list[tuple[Sequence, Finish]] = []
        for sequence in list(self.gated.values()):
            if not all(gate.is_open() for gate in sequence.gates):
                continue
            found = next((gate.refusal for gate in sequence.gates if gate.refusal), None)
            if found is not None:
                refused.append((sequence, found))
            else:
                del self.gated[sequence.key]
                sequence.gates.clear()
                sequence.state = State.WAITING
                self.waiting.add(sequence)
        return refused

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

    def run_ahead(self, sequence: Sequence) -> None:
        """More of its tokens became known than the one that follows what is planned."""
        sequence.prefill_len = len(sequence.tokens)
        self.ahead = True

    def prefill_done(self, sequence: Sequence) -> None:
        """All tokens that were known when the sequence got its row are computed."""
        self.prefill_pending.pop(sequence.key, None)
        stops = self.pages.drafts and sequence.request.sampling.stop  # drafts are told beside them
        sequence.steady = sequence.log_metrics and not (sequence.has_more_than_tokens or stops)

    def clear_suspicion(self, sequence: Sequence) -> None:
        """It drew a token, and the engine lives."""
        if sequence.suspect == UNTIL_FIRST_TOKEN:
            sequence.suspect = 0
            self.suspects.discard(sequence.key)

    def take_back(self, spans: list[Sequence], planned: list[int], advanced: list[int]) -> None:
        """Of what a step planned for each of these sequences only so much was computed."""
        if planned == advanced:
            return
        for sequence, count, done in zip(spans, planned, advanced, strict=True):
            if count == done:
                continue
            sequence.scheduled_len -= count - done
            self.pages.drop_states(sequence, sequence.computed_len + done)
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
        self.suspects.discard(sequence.key)
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
        if self._in_flight(sequence):
            self.finished_in_flight.append(sequence)
        else:
            self._release(sequence)

    def step_returned(self, number: int) -> None:
        """No step up to this one is in flight any more."""
        self._last_returned = number

    def _in_flight(self, sequence: Sequence) -> bool:
        return sequence.last_step > self._last_returned

    def step_committed(self) -> None:
        """The result of a step is processed: release who waited for it."""
        if not self.finished_in_flight:
            return
        for sequence in self.finished_in_flight:
            if not self._in_flight(sequence):
                self._release(sequence)
        self.finished_in_flight = [s for s in self.finished_in_flight if self._in_flight(s)]

    def take_rows_to_free(self) -> list[int]:
        rows, self.rows_to_free = self.rows_to_free, []
        return rows

    def rejoin(self, number: int) -> None:
        """The executor emptied its rows, and no step up to this one is in flight any more: all that
        run join again where their KV ends."""
        running = self.running()
        self.step_returned(number)
        self.step_committed()
        self.rows_to_free = []
        for sequence in running:
            sequence.joined = sequence.steady = False
            sequence.scheduled_len = sequence.computed_len
            sequence.prefill_len = len(sequence.tokens)
            self.pages.drop_states(sequence, sequence.computed_len)
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
        leases = self.pages.leases
        findings = leases.audit()
        rows = [sequence.row for sequence in holders]
        if len(set(rows)) != len(rows) or len(rows) != self.rows.taken:
            findings.append(f"{self.rows.taken} rows are taken, {sorted(rows)} are used")
        held = {
            id(sequence.lease) for sequence in [*holders, *self.all_waiting()] if sequence.lease
        }
        held |= {id(each.lease) for each in self.pages.held}
        if len(held) != leases.live:
            findings.append(f"{leases.live} leases are open, {len(held)} have an owner")
        return findings


class Resource(Protocol):
    """Something of which there is a number, and a sequence needs some while it runs."""

    in_turn: bool
    """a waiting sequence that lacks it holds up those behind it, which need it, too"""

    def fits(self, sequence: Sequence, without: Collection[Sequence] = ()) -> bool:
        """Could the sequence run, if these no longer did?"""
        ...

    def take(self, sequence: Sequence) -> None: ...

    def release(self, sequence: Sequence) -> None: ...


class Rows:
    """Rows of the worker; the lowest free one first, so that batches stay compact."""

    in_turn = True

    def __init__(self, total: int) -> None:
        self.total = total
        self._free = list(range(total))

    @property
    def taken(self) -> int:
        return self.total - len(self._free)

    @property
    def free(self) -> int:
        return len(self._free)

    def fits(self, sequence: Sequence, without: Collection[Sequence] = ()) -> bool:
        return bool(self._free or without)

    def take(self, sequence: Sequence) -> None:
        sequence.row = heapq.heappop(self._free)

    def release(self, sequence: Sequence) -> None:
        heapq.heappush(self._free, sequence.row)
        sequence.row = -1
