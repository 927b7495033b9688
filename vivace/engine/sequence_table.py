"""Who waits, who runs, who is leaving, and what each of them holds."""

from __future__ import annotations

from vivace.engine.clients import Clients
from vivace.engine.resources import Pages, Rows
from vivace.engine.sequence import Sequence, State
from vivace.engine.waiting import WaitingQueue


class SequenceTable:
    """All live sequences. Every change of a sequence's state happens here.

    `filling`: running, and known tokens are still to be planned. `decoding`: running, one token
    per step. `arriving`: running, and known tokens are still to be computed (a superset of
    `filling`). `leaving`: ended, but a plan in flight mentions them, so what they hold must stay.
    """

    def __init__(self, rows: Rows, pages: Pages, waiting: WaitingQueue, clients: Clients) -> None:
        self.rows = rows
        self.pages = pages
        self.waiting = waiting
        self.clients = clients
        self.live: dict[int, Sequence] = {}
        self.filling: list[Sequence] = []
        self.decoding: list[Sequence] = []
        self.arriving: dict[int, Sequence] = {}
        self.leaving: list[Sequence] = []
        self.leaves: list[int] = []
        """rows to report as left with the next plan"""
        self._landed = -1
        """number of the last plan whose result is booked"""
        self._stale = False
        """`filling` or `decoding` lists sequences that stopped running"""

    @property
    def running(self) -> int:
        return len(self.live) - len(self.waiting)

    def runners(self) -> list[Sequence]:
        self.prune()
        return self.filling + self.decoding

    def welcome(self, sequence: Sequence) -> None:
        """A new sequence waits."""
        self.waiting.add(sequence)
        self.live[sequence.key] = sequence
        self.clients.came(sequence.client)

    def start(self, sequence: Sequence, now: float) -> None:
        """A waiting sequence that has a lease gets a row. The caller takes it off the queue."""
        self.rows.take(sequence)
        self.clients.started(sequence.client)
        sequence.state = State.RUNNING
        sequence.joined = False
        sequence.target = len(sequence.tokens)
        sequence.started = sequence.started or now
        self.pages.set_edge(sequence)
        self.filling.append(sequence)
        self.arriving[sequence.key] = sequence

    def planned(self) -> None:
        """After chunks were planned: who has no known token left to plan decodes from now on."""
        if not self.filling:
            return
        self.decoding += [s for s in self.filling if s.upper >= s.target]
        self.filling = [s for s in self.filling if s.upper < s.target]

    def arrived(self, sequence: Sequence) -> None:
        """All that was known at the start is computed."""
        self.arriving.pop(sequence.key, None)

    def retract(self, sequence: Sequence) -> None:
        """A running sequence that is in no plan in flight waits again; nothing it knows is lost."""
        self._release(sequence)
        sequence.state = State.WAITING
        sequence.retractions += 1
        self.waiting.add(sequence)

    def end(self, sequence: Sequence) -> None:
        """A sequence is over; what it holds is released as soon as no plan mentions it."""
        if self.live.pop(sequence.key, None) is None:
            return
        self.clients.went(sequence.client)
        if sequence.state is State.WAITING:
            self.waiting.remove([sequence])
            self.pages.give(sequence)
            sequence.state = State.ENDED
            return
        sequence.state = State.ENDED
        self._stale = True
        self.arriving.pop(sequence.key, None)
        if sequence.mentioned > self._landed:
            self.leaving.append(sequence)
        else:
            self._release(sequence)

    def landed(self, number: int) -> None:
        """The result of plan `number` is booked: release who waited for it."""
        self._landed = number
        if not self.leaving:
            return
        for sequence in self.leaving:
            if sequence.mentioned <= number:
                self._release(sequence)
        self.leaving = [s for s in self.leaving if s.mentioned > number]

    def rejoin(self, number: int) -> None:
        """The executor emptied its rows: all that run join again where their KV ends.

        `number`: no plan up to this one is in flight any more.
        """
        self.landed(number)
        self.leaves = []
        self.prune()
        runners = self.filling + self.decoding
        for sequence in runners:
            sequence.joined = False
            sequence.upper = sequence.computed
            sequence.target = len(sequence.tokens)
            self.pages.set_edge(sequence)
        self.filling, self.decoding = runners, []
        self.arriving = {sequence.key: sequence for sequence in runners}

    def prune(self) -> None:
        if self._stale:
            self.filling = [s for s in self.filling if s.state is State.RUNNING]
            self.decoding = [s for s in self.decoding if s.state is State.RUNNING]
            self._stale = False

    def _release(self, sequence: Sequence) -> None:
        if sequence.joined:
            self.leaves.append(sequence.row)
            sequence.joined = False
        self.rows.give(sequence)
        self.clients.stopped(sequence.client)
        self.pages.give(sequence)
        self.arriving.pop(sequence.key, None)
        self._stale = True
