"""Transfers of the oracle: late, failing, and checked when they end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from vivace.protocol.step import StepPlan, Transfer, TransferEnd


@dataclass
class _UnderWay:
    transfer: Transfer
    arriving: list[int] | None
    """what the slots of its pages will hold; None: it is sent"""
    before: list[int]
    """what they held when it began"""


@dataclass
class OracleTransfers:
    """The other engines, and the way to them.

    A transfer ends when `end` is called, or by itself after `delay` looks at `events`. What is sent
    must be in its pages until then; what comes is written at the end, over whatever is there.
    """

    rooms: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    """room -> KV of each position that comes from there"""
    sent: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    """room -> what went there, as it was in the pages at the end"""
    delay: int | None = None
    failing: set[int] = field(default_factory=set[int])
    """rooms of which nothing comes or goes"""
    corrupted: list[str] = field(default_factory=list[str])
    """findings: pages that were given to others too early"""
    ring: Callable[[], None] = lambda: None
    _under_way: dict[int, _UnderWay] = field(default_factory=dict[int, _UnderWay])
    _looks: dict[int, int] = field(default_factory=dict[int, int])
    _events: list[TransferEnd] = field(default_factory=list[TransferEnd])

    def begin(self, plan: StepPlan, memory: list[int], page_size: int) -> None:
        for transfer in plan.sends:
            self._begin(transfer, None, memory, page_size)
        for transfer in plan.receives:
            arriving = self.rooms[transfer.room][-transfer.tokens :] if transfer.tokens else []
            self._begin(transfer, arriving, memory, page_size)

    def _begin(
        self, transfer: Transfer, arriving: list[int] | None, memory: list[int], page_size: int
    ) -> None:
        before = [memory[slot] for slot in slots(transfer, page_size)]
        self._under_way[transfer.ticket] = _UnderWay(transfer, arriving, before)
        if self.delay is not None:
            self._looks[transfer.ticket] = self.delay

    def events(self, memory: list[int], page_size: int) -> list[TransferEnd]:
        for ticket in list(self._looks):
            self._looks[ticket] -= 1
            if self._looks[ticket] < 0:
                self.end(ticket, memory, page_size)
        events, self._events = self._events, []
        return events

    @property
    def tickets(self) -> list[int]:
        return sorted(self._under_way)

    def end(self, ticket: int, memory: list[int], page_size: int) -> None:
        """The transfer is over, as its room wants it."""
        self._looks.pop(ticket, None)
        one = self._under_way.pop(ticket)
        places, room = slots(one.transfer, page_size), one.transfer.room
        now = [memory[slot] for slot in places]
        if now != one.before:
            self.corrupted.append(f"pages {one.transfer.pages} changed under transfer {ticket}")
        ok = room not in self.failing
        if one.arriving is None:
            self.sent[room] = now
        else:
            for slot, value in zip(places, one.arriving if ok else [], strict=False):
                memory[slot] = value
        self._events.append(TransferEnd(ticket, ok=ok, reason="" if ok else "the peer is gone"))
        self.ring()


def slots(transfer: Transfer, page_size: int) -> list[int]:
    places = [page * page_size + offset for page in transfer.pages for offset in range(page_size)]
    return places[: transfer.tokens]
