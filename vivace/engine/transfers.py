"""KV that goes to another engine, or comes from one, while steps go on."""

from __future__ import annotations

import itertools
import logging

from vivace.engine.sequence import Sequence, State
from vivace.engine.sequence_table import SequenceTable
from vivace.engine.step_builder import NewTokenEstimate
from vivace.protocol.messages import Finish
from vivace.protocol.step import Transfer, TransferEnd

logger = logging.getLogger("vivace.engine")


class TransferGate:
    """Opens when the KV of a sequence has come, or when it never will."""

    def __init__(self) -> None:
        self.begun = False
        self.ended = False
        self.refusal: Finish | None = None

    def is_open(self) -> bool:
        return self.ended


class Transfers:
    """Those under way, by their tickets, and those that begin with the next plan.

    A sequence that receives has pages but no row; one that sends may have ended. Either holds its
    pages until the executor has told of the end.
    """

    def __init__(self, table: SequenceTable, estimate: NewTokenEstimate) -> None:
        self._table = table
        self._estimate = estimate
        self._tickets = itertools.count(1)
        self._under_way: dict[int, Sequence] = {}
        self.due: list[Transfer] = []
        """the next plan begins them"""
        self._begun: dict[int, list[Transfer]] = {}
        """step in flight -> those that began with it"""

    @property
    def under_way(self) -> bool:
        return bool(self._under_way)

    def expect(self, sequence: Sequence) -> None:
        """A new sequence waits for what it is sent."""
        transfer = sequence.request.transfer
        if transfer is not None and transfer.receive and len(sequence.tokens) > 1:
            sequence.gates.append(TransferGate())

    def begin_receives(self) -> None:
        """Whoever waits for KV, and can have the pages for it, gets them."""
        table, pages = self._table, self._table.pages
        for sequence in table.gated.values():
            gate = next((g for g in sequence.gates if isinstance(g, TransferGate)), None)
            if gate is None or gate.begun:
                continue
            demand = self._estimate.running_demand(table.prefilling, table.decoding)
            pages.lease_prefix(sequence)
            wanted = len(sequence.tokens) - 1 - sequence.computed_len
            affordable = self._estimate.affords(sequence, demand, table)
            if not affordable or not pages.receivable(sequence, wanted):
                pages.release(sequence)
                return  # they keep their order
            gate.begun = True
            assert sequence.lease is not None
            first = sequence.lease.shared
            pages.receive(sequence, wanted)
            end = sequence.scheduled_len + wanted
            self.due.append(self._prepare(sequence, sequence.lease.pages[first:], wanted, end))

    def send_prompt(self, sequence: Sequence) -> None:
        """The prompt of a running sequence is computed, and what it had drawn elsewhere."""
        transfer = sequence.request.transfer
        if transfer is None or transfer.receive or sequence.prompt_sent:
            return
        sequence.prompt_sent = True
        assert sequence.lease is not None
        tokens = sequence.computed_len  # windows have slid to there
        count = -(-tokens // self._table.pages.page_size)
        self.due.append(self._prepare(sequence, sequence.lease.pages[:count], tokens, tokens))

    def _prepare(self, sequence: Sequence, pages: list[int], tokens: int, end: int) -> Transfer:
        """The last `tokens` positions in front of `end` go or come in `pages`."""
        ticket = next(self._tickets)
        sequence.holds.add(ticket)
        self._under_way[ticket] = sequence
        assert sequence.request.transfer is not None
        whole = end - end % self._table.pages.page_size  # behind which others may go on, too
        others = self._table.pages.others(sequence, whole)
        return Transfer(ticket, sequence.request.transfer.room, pages.copy(), tokens, others)

    def begin_due(self, number: int) -> tuple[list[Transfer], list[Transfer]]:
        """Sends and receives that begin with this step."""
        due, self.due = self.due, []
        if due:
            self._begun[number] = due
        sends, receives = list[Transfer](), list[Transfer]()
        for one in due:
            transfer = self._under_way[one.ticket].request.transfer
            assert transfer is not None
            (receives if transfer.receive else sends).append(one)
        return sends, receives

    def step_committed(self, number: int) -> None:
        self._begun.pop(number, None)

    def step_failed(self, number: int) -> None:
        """Those of the steps behind it begin with another one: no executor has seen them."""
        self._begun.pop(number, None)
        self.due[:0] = [one for begun in self._begun.values() for one in begun]
        self._begun.clear()

    def end(self, event: TransferEnd) -> None:
        """The executor tells that a transfer has ended."""
        sequence = self._under_way.pop(event.ticket, None)
        if sequence is None:
            logger.error("a transfer %d has ended that nobody began", event.ticket)
            return
        self._table.pages.end_hold(event.ticket)
        sequence.holds.discard(event.ticket)
        if not event.ok:
            what = f"of room {sequence.request.transfer and sequence.request.transfer.room}"
            logger.warning("the KV transfer %s failed: %s", what, event.reason)
        if sequence.state is State.GATED:
            self._received(sequence, event.ok)

    def _received(self, sequence: Sequence, ok: bool) -> None:
        """What has not come the sequence computes itself."""
        for gate in sequence.gates:
            if isinstance(gate, TransferGate):
                gate.ended = True
        if ok:
            sequence.received = True
            sequence.computed_len = sequence.scheduled_len = len(sequence.tokens) - 1
        else:
            sequence.computed_len = sequence.scheduled_len = 0
            self._table.pages.release(sequence)

    def audit(self) -> list[str]:
        """Findings: every hold is of a transfer under way, and the other way round."""
        table = self._table
        owners = [*table.live.values(), *table.finished_in_flight]
        held = [ticket for owner in owners for ticket in owner.holds]
        held += [ticket for each in table.pages.held for ticket in each.tickets]
        if sorted(held) == sorted(self._under_way):
            return []
        return [f"transfers {sorted(self._under_way)} are under way, {sorted(held)} hold pages"]
