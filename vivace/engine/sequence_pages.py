"""Pages of sequences, in every cache group: which they have, need, publish and give back."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from functools import partial

from vivace.engine.sequence import Sequence
from vivace.engine.settings import EngineSettings
from vivace.kv.leases import Lease, Leases
from vivace.kv.partial_pool import PartialPool
from vivace.kv.prefix_tree import TOKEN_BYTES
from vivace.protocol.messages import CacheGroup, Capacity
from vivace.protocol.step import Grant, Save, window_slack


def open_leases(settings: EngineSettings, capacity: Capacity) -> Leases:
    """The book-keeping of all pages of a device."""
    page_size = capacity.page_size
    return Leases(
        capacity.pages,
        page_size,
        prefix_cache=settings.prefix_cache,
        eviction=settings.eviction,
        cache_share=capacity.cache_share,
        partial=[
            PartialPool(group.pages, partial(_first_page, group, page_size), sparse=group.state)
            for group in capacity.others
        ],
    )


def _first_page(group: CacheGroup, page_size: int, pages: int) -> int:
    return group.first_page(pages * page_size, page_size)


@dataclass(frozen=True, slots=True)
class HeldPages:
    tickets: set[int]
    """transfers under way; not empty"""
    lease: Lease
    cached: bytes
    """what stays behind as cache, packed"""


class Pages:
    """KV pages of sequences. `count` is positions to be covered behind `scheduled_len`.

    In groups of windows a sequence has a page wherever it has one in the first group, but for those
    that slid out. `drafts`: tokens that a decode span may have behind the known one. `held`: pages
    whose sequence has no use for them any more, but transfers under way have.
    """

    def __init__(
        self,
        leases: Leases,
        settings: EngineSettings,
        groups: SequenceOf[CacheGroup] = (),
    ) -> None:
        """`groups`: 1, 2 ..."""
        self.leases = leases
        self.page_size = leases.page_size
        self.drafts = settings.num_speculative_tokens
        self.held: list[HeldPages] = []
        self._groups = tuple(groups)
        whole = -(-max(1, settings.state_interval) // self.page_size) * self.page_size
        self.granularity = whole if leases.sparse else self.page_size
        """a prefix can be shared in multiples of so many tokens"""

    @property
    def available_tokens(self) -> int:
        return self.leases.available * self.page_size

    def lease_prefix(self, sequence: Sequence) -> None:
        """Lease the cached prefix of a waiting sequence, unless it has received its KV."""
        if sequence.received:
            return
        max_pages = sequence.max_prefix_len() // self.page_size
        sequence.lease = self.leases.open(
            f"request {sequence.key}", sequence.request.cache_key, sequence.prefix, max_pages
        )
        sequence.computed_len = sequence.scheduled_len = sequence.lease.shared * self.page_size

    def return_prefix(self, sequence: Sequence) -> None:
        """It does not start with what `lease_prefix` leased; what it received it keeps."""
        if not sequence.received:
            self.release(sequence)

    # --- what a span needs ------------------------------------------------------------------

    def coverable(self, sequence: Sequence, count: int) -> int:
        """How many of `count` positions can get pages now."""
        assert sequence.lease is not None
        self.slide(sequence)
        room = (len(sequence.lease.pages) + self.leases.growable) * self.page_size
        return min(count, room - sequence.scheduled_len)

    def cover(self, sequence: Sequence, count: int) -> list[Grant]:
        """Pages appended so that `count` more positions have a place."""
        assert sequence.lease is not None
        end = sequence.scheduled_len + count
        needed = -(-end // self.page_size) - len(sequence.lease.pages)
        if needed > 0:
            return self.grow([sequence], [needed])
        self.update_limit(sequence)
        return []

    def grow(self, sequences: list[Sequence], counts: list[int]) -> list[Grant]:
        """So many pages more for each of them in every dense group, taken in one piece."""
        leases, total = self.leases, sum(counts)
        grants: list[Grant] = []
        for group in leases.dense:
            supply, start = leases.take(total, group), 0
            for sequence, count in zip(sequences, counts, strict=True):
                if count:
                    assert sequence.lease is not None
                    pages = supply[start : start + count]
                    start += count
                    leases.append(sequence.lease, pages, group)
                    grants.append(Grant(sequence.row, pages, group))
        for sequence in sequences:
            self.update_limit(sequence)
        return grants

    def slide(self, sequence: Sequence) -> None:
        """Give back what slid out of windows, and states that later ones follow."""
        if self._groups and sequence.lease is not None and not sequence.holds:
            self.leases.slide(sequence.lease, sequence.computed_len // self.page_size)

    def update_limit(self, sequence: Sequence) -> None:
        assert sequence.lease is not None
        room, most = len(sequence.lease.pages) * self.page_size, sequence.max_len - 1
        places = room if room < most else most
        sequence.page_limit = places - self.drafts
        if places > sequence.reserved_len:
            sequence.reserve()

    def room(self, sequence: Sequence) -> int:
        """Positions that its pages have a place for."""
        assert sequence.lease is not None
        return len(sequence.lease.pages) * self.page_size

    def missing(self, sequences: list[Sequence], drafts: int, stride: int) -> list[int]:
        """For each sequence the pages without which a decode span with so many drafts has no place,
        up to the next multiple of `stride` positions."""
        page_size, counts = self.page_size, list[int]()
        for sequence in sequences:
            assert sequence.lease is not None
            goal = (sequence.scheduled_len + drafts) // stride * stride + stride
            if goal > sequence.max_len:
                goal = sequence.max_len
            lacking = -(-goal // page_size) - len(sequence.lease.pages)
            counts.append(lacking if lacking > 0 else 0)
        return counts

    # --- groups of states -------------------------------------------------------------------

    def cut(self, sequence: Sequence, count: int) -> int:
        """Of a chunk of `count` tokens: up to the last place whose state is saved."""
        end = sequence.scheduled_len + count
        if not self.leases.sparse or sequence.lease is None:
            return count
        last = end // self.granularity * self.granularity
        return last - sequence.scheduled_len if last > sequence.scheduled_len else count

    def save_states(self, sequence: Sequence) -> list[Save]:
        """What to save behind the span that was just planned for a sequence, as far as there are
        pages. If it comes out shorter, `drop_states` forgets that."""
        saves: list[Save] = []
        if not self.leases.sparse or sequence.scheduled_len % self.granularity:
            return saves
        assert sequence.lease is not None
        self.slide(sequence)
        place = sequence.scheduled_len // self.page_size - 1
        for group in self.leases.sparse:
            page = self.leases.add_state(sequence.lease, place, group)
            if page is not None:
                saves.append(Save(sequence.row, page, group))
        return saves

    def drop_states(self, sequence: Sequence, computed: int) -> None:
        """Of what was planned for a sequence only `computed` tokens came about, and steps in flight
        end elsewhere than they should: their states are not those of whole pages."""
        if self.leases.sparse and sequence.lease is not None:
            self.leases.drop_states(sequence.lease, computed // self.page_size)

    # --- what workers and other engines are told ---------------------------------------------

    def others(self, sequence: Sequence, computed: int) -> list[list[int]]:
        """Pages of groups 1, 2 ... that a sequence needs to go on behind `computed` tokens: of
        windows the last ones, of states the one that holds the state there, or none."""
        assert sequence.lease is not None
        found: list[list[int]] = []
        for group, part in zip(self._groups, sequence.lease.parts, strict=True):
            first = group.first_page(computed, self.page_size)
            if not group.state:
                found.append([page for place, page in part.pages.items() if place >= first])
            elif computed and computed % self.page_size == 0 and first in part.pages:
                found.append([part.pages[first]])
            else:
                found.append([])
        return found

    def receivable(self, sequence: Sequence, count: int) -> bool:
        """Can it have pages for `count` positions that come from elsewhere?"""
        assert sequence.lease is not None
        end = sequence.scheduled_len + count
        self.leases.skip_to(sequence.lease, end // self.page_size)
        return all(
            needed <= (self.leases.partial[group - 1] if group else self.leases).available
            for group, needed in self._needed_in(sequence.lease, end)
        )

    def receive(self, sequence: Sequence, count: int) -> None:
        """Pages for positions that come from elsewhere, which are `receivable`."""
        assert sequence.lease is not None
        for group, needed in self._needed_in(sequence.lease, sequence.scheduled_len + count):
            self.leases.append(sequence.lease, self.leases.take(needed, group), group)
        self.update_limit(sequence)

    def _needed_in(self, lease: Lease, end: int) -> list[tuple[int, int]]:
        """(dense group, pages that a lease lacks there up to position `end`)"""
        pages = -(-end // self.page_size)
        had = [
            lease.parts[group - 1].end if group else len(lease.pages) for group in self.leases.dense
        ]
        return [(group, max(0, pages - n)) for group, n in zip(self.leases.dense, had, strict=True)]

    # --- the end ----------------------------------------------------------------------------

    def publish(self, sequence: Sequence) -> None:
        """Let others use the whole pages computed so far, while the sequence runs on; it keeps of a
        window what it needs."""
        assert sequence.lease is not None
        computed = min(
            sequence.computed_len, len(sequence.prefix) // TOKEN_BYTES
        )  # less its drafts
        whole = computed // self.page_size * self.page_size
        self.leases.publish(sequence.lease, sequence.prefix[: TOKEN_BYTES * whole])
        self.slide(sequence)

    def release(self, sequence: Sequence) -> None:
        """Release everything; whole computed pages stay behind as cache. What transfers read or
        write is released when they have ended."""
        if sequence.lease is None:
            return
        valid = 0 if sequence.has_bad_numbers else min(sequence.computed_len, len(sequence.tokens))
        whole = valid // self.page_size * self.page_size
        if TOKEN_BYTES * whole > len(sequence.prefix):
            sequence.refresh_prefix()
        cached = sequence.prefix[: TOKEN_BYTES * whole]
        if sequence.holds:
            self.held.append(HeldPages(sequence.holds, sequence.lease, cached))
            sequence.holds = set()
        else:
            self.leases.close(sequence.lease, cached)
        sequence.lease, sequence.received = None, False
        sequence.computed_len = sequence.scheduled_len = 0

    def end_hold(self, ticket: int) -> None:
        """A transfer has ended: pages that waited for it and no other are released."""
        for each in self.held:
            each.tickets.discard(ticket)
            if not each.tickets:
                self.leases.close(each.lease, each.cached)
        self.held = [each for each in self.held if each.tickets]


def window_reserves(settings: EngineSettings, capacity: Capacity) -> list[WindowReserve]:
    """One for each group of windows."""
    slack = window_slack(settings.depth, settings.num_speculative_tokens)
    return [
        WindowReserve(group, capacity.page_size, slack)
        for group in capacity.others
        if not group.state
    ]


class WindowReserve:
    """A `Resource`: pages of a group of windows for as many sequences as can have all they may come
    to need at once, so that nobody who runs lacks one for long."""

    in_turn = True

    def __init__(self, group: CacheGroup, page_size: int, slack: int) -> None:
        """`slack`: tokens that a sequence may have pages for beside those of its window."""
        self._most = group.row_pages(slack, page_size)
        self._free = self._total = group.pages
        self._page_size = page_size
        self._taken: dict[int, int] = {}

    def fits(self, sequence: Sequence, without: Collection[Sequence] = ()) -> bool:
        return self._need(sequence) <= self._free + sum(self._taken[s.key] for s in without)

    def take(self, sequence: Sequence) -> None:
        need = self._taken[sequence.key] = self._need(sequence)
        self._free -= need

    def release(self, sequence: Sequence) -> None:
        self._free += self._taken.pop(sequence.key)

    def _need(self, sequence: Sequence) -> int:
        return min(self._most, -(-sequence.max_len // self._page_size), self._total)
