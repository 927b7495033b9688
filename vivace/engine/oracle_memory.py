"""The simulated KV memory of the oracle, in every cache group."""

from __future__ import annotations

from vivace.protocol.messages import Capacity
from vivace.protocol.step import Join, StepPlan, Transfer

UNWRITTEN = -1
REFUSED = -2
"""what a draft that was refused leaves behind"""
SLID_OUT = -1
"""slot of a position whose page the row does not have any more"""


class OracleMismatch(AssertionError):
    """The scheduler made the worker compute on something that is not what it should be."""


class OracleMemory:
    """`slots[group]`: a slot of the first group and of windows holds the running hash of all tokens
    up to its position, as real KV depends on its whole prefix; `slots` of a group of states are its
    pages, each with the hash of all tokens that the state has seen."""

    def __init__(self, capacity: Capacity) -> None:
        self.capacity = capacity
        self.page_size = capacity.page_size
        size = self.page_size
        self.slots = [[UNWRITTEN] * capacity.tokens]
        self.slots += [
            [UNWRITTEN] * (group.pages if group.state else group.pages * size)
            for group in capacity.others
        ]
        groups = list(enumerate(capacity.others, 1))
        self._reaches = {number: group.reach for number, group in groups if not group.state}
        """of each group of windows: positions before a span that are read"""
        self.dense = [0, *self._reaches]

    def apply(self, plan: StepPlan) -> None:
        """Copy pages, and forget those that are vacant."""
        for copy in plan.copies:
            width, slots = self._width(copy.group), self.slots[copy.group]
            source, target = copy.source * width, copy.target * width
            slots[target : target + width] = slots[source : source + width]
        for group, page in enumerate(plan.vacant):
            slots, first = self.slots[group], page * self._width(group)
            slots[first:] = [UNWRITTEN] * (len(slots) - first)

    def _width(self, group: int) -> int:
        return self.page_size if group in self.dense else 1

    def row_slots(self, join: Join) -> list[list[int]]:
        """Slots of each position in every dense group; SLID_OUT in front of a window's pages."""
        found = [self.find_slots(join.pages, 0)]
        others = join.others or [[] for _ in self.capacity.others]
        for number, (group, pages) in enumerate(zip(self.capacity.others, others, strict=True), 1):
            before = group.first_page(join.cached, self.page_size) * self.page_size
            slots = [] if group.state else [SLID_OUT] * before + self.find_slots(pages, number)
            found.append(slots)
        return found

    def find_slots(self, pages: list[int], group: int) -> list[int]:
        total = len(self.slots[group]) // self._width(group)
        if any(not 0 <= page < total for page in pages):
            raise OracleMismatch(f"page ids {pages} outside the pool of {total}")
        width = self._width(group)
        return [page * width + offset for page in pages for offset in range(width)]

    def check_prefix(self, key: int, slots: list[list[int]], chain: list[int], end: int) -> int:
        """Every position in front of `end` that a span reads has to hold its hash in `chain`.
        Returns how many were looked at."""
        checked = 0
        for group in self.dense:
            memory = self.slots[group]
            first = max(0, end - self._reaches[group]) if group else 0
            for position, slot in enumerate(slots[group][first:end], first):
                if slot == SLID_OUT or memory[slot] != chain[position]:
                    empty = slot == SLID_OUT or memory[slot] == UNWRITTEN
                    found = "nothing" if empty else "another prefix"
                    raise OracleMismatch(
                        f"request {key}, position {position}: slot {slot} holds {found}"
                        + (f" in group {group}" if group else "")
                    )
            checked += end - first
        return checked

    def check_state(self, join: Join, chain: list[int], left: int | None) -> None:
        """The state that a row starts from: in the page that the join names, or its own one, in
        which it `left`."""
        for group, pages in zip(range(1, len(self.slots)), join.others, strict=False):
            if group in self.dense or not join.cached:
                continue
            found = self.slots[group][pages[0]] if pages else left
            if found != chain[join.cached - 1]:
                raise OracleMismatch(
                    f"request {join.key}: page {pages} of group {group} does not hold the state "
                    f"behind {join.cached} tokens"
                )

    def write(self, slots: list[list[int]], position: int, value: int) -> None:
        for group in self.dense:
            self.slots[group][slots[group][position]] = value

    def places(self, transfer: Transfer, end: int) -> list[tuple[int, int, int]]:
        """(group, slot, position) of all that a transfer of the positions before `end` is about."""
        size, first = self.page_size, (end - transfer.tokens) // self.page_size * self.page_size
        slots = self.find_slots(transfer.pages, 0)
        found = [(0, slot, first + at) for at, slot in enumerate(slots)]
        others = transfer.others or [[] for _ in self.capacity.others]
        for number, (group, pages) in enumerate(zip(self.capacity.others, others, strict=True), 1):
            first = group.first_page(end // size * size, size) * size
            slots = self.find_slots(pages, number)
            found += [(number, slot, first + at) for at, slot in enumerate(slots)]
        return [place for place in found if place[2] < end]
