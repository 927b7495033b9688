"""Transfers of the oracle: late, failing, and checked when they end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from vivace.engine.oracle_memory import OracleMemory
from vivace.protocol.step import StepPlan, Transfer, TransferEnd


@dataclass
class _UnderWay:
    transfer: Transfer
    arriving: list[int] | None
    """what each position holds where it comes from; None: it is sent"""
    places: list[tuple[int, int, int]]
    """(group, slot, position)"""
    before: list[int]
    """what the slots held when it began"""


@dataclass
class OracleTransfers:
    """The other engines, and the way to them.

    A transfer ends when `end` is called, or by itself after `delay` looks at `events`. What is sent
    must be in its pages until then; what comes is written at the end, over whatever is there.
    """

    memory: OracleMemory
    rooms: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    """room -> KV of each position that comes from there"""
    sent: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    """room -> what went there from the first group, as it was in the pages at the end"""
    delay: int | None = None
    failing: set[int] = field(default_factory=set[int])
    """rooms of which nothing comes or goes"""
    corrupted: list[str] = field(default_factory=list[str])
    """findings: pages that were given to others too early"""
    ring: Callable[[], None] = lambda: None
    _under_way: dict[int, _UnderWay] = field(default_factory=dict[int, _UnderWay])
    _looks: dict[int, int] = field(default_factory=dict[int, int])
    _events: list[TransferEnd] = field(default_factory=list[TransferEnd])

    def begin(self, plan: StepPlan) -> None:
        for transfer in plan.sends:
            self._begin(transfer, None)
        for transfer in plan.receives:
            self._begin(transfer, self.rooms[transfer.room])

    def _begin(self, transfer: Transfer, arriving: list[int] | None) -> None:
        end = transfer.tokens if arriving is None else len(arriving)
        places = self.memory.places(transfer, end)
        self._under_way[transfer.ticket] = _UnderWay(transfer, arriving, places, self._read(places))
        if self.delay is not None:
            self._looks[transfer.ticket] = self.delay

    def _read(self, places: list[tuple[int, int, int]]) -> list[int]:
        return [self.memory.slots[group][slot] for group, slot, _ in places]

    def events(self) -> list[TransferEnd]:
        for ticket in list(self._looks):
            self._looks[ticket] -= 1
            if self._looks[ticket] < 0:
                self.end(ticket)
        events, self._events = self._events, []
        return events

    @property
    def tickets(self) -> list[int]:
        return sorted(self._under_way)

    def end(self, ticket: int) -> None:
        """The transfer is over, as its room wants it."""
        self._looks.pop(ticket, None)
        one = self._under_way.pop(ticket)
        now, room = self._read(one.places), one.transfer.room
        if now != one.before:
            self.corrupted.append(f"pages {one.transfer.pages} changed under transfer {ticket}")
        ok = room not in self.failing
        if one.arriving is None:
            self.sent[room] = now[: one.transfer.tokens]
        elif ok:
            for group, slot, position in one.places:
                self.memory.slots[group][slot] = one.arriving[position]
        self._events.append(TransferEnd(ticket, ok=ok, reason="" if ok else "the peer is gone"))
        self.ring()
