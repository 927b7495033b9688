"""What sequences hold while they run: rows, pages, and whatever else there is a number of."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Protocol

from vivace.engine.sequence import Sequence
from vivace.kv.leases import Lease, Leases
from vivace.kv.prefix_tree import TOKEN_BYTES


class Resource(Protocol):
    """Something of which there is a number and a sequence needs one while it runs."""

    def fits(self, sequence: Sequence) -> bool: ...

    def take(self, sequence: Sequence) -> None: ...

    def release(self, sequence: Sequence) -> None: ...


class Rows:
    """Rows of the worker; the lowest free one first, so that batches stay compact."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._free = list(range(total))

    @property
    def taken(self) -> int:
        return self.total - len(self._free)

    @property
    def free(self) -> int:
        return len(self._free)

    def fits(self, sequence: Sequence) -> bool:
        return bool(self._free)

    def take(self, sequence: Sequence) -> None:
        sequence.row = heapq.heappop(self._free)

    def release(self, sequence: Sequence) -> None:
        heapq.heappush(self._free, sequence.row)
        sequence.row = -1


@dataclass(frozen=True, slots=True)
class HeldPages:
    tickets: set[int]
    """transfers under way; not empty"""
    lease: Lease
    cached: bytes
    """what stays behind as cache, packed"""


class Pages:
    """KV pages of sequences. `count` is positions to be covered behind `scheduled_len`.

    `drafts`: tokens that a decode span may have behind the known one. `held`: pages whose sequence
    has no use for them any more, but transfers under way have.
    """

    def __init__(self, leases: Leases, drafts: int = 0) -> None:
        self.leases = leases
        self.page_size = leases.page_size
        self.drafts = drafts
        self.held: list[HeldPages] = []

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

    def coverable(self, sequence: Sequence, count: int) -> int:
        """How many of `count` positions can get pages now."""
        assert sequence.lease is not None
        room = (len(sequence.lease.pages) + self.leases.available) * self.page_size
        return min(count, room - sequence.scheduled_len)

    def cover(self, sequence: Sequence, count: int) -> list[int]:
        """Pages appended so that `count` more positions have a place."""
        assert sequence.lease is not None
        end = sequence.scheduled_len + count
        needed = -(-end // self.page_size) - len(sequence.lease.pages)
        pages = self.leases.grow(sequence.lease, needed) if needed > 0 else []
        self.update_limit(sequence)
        return pages

    def update_limit(self, sequence: Sequence) -> None:
        room, last = self.room(sequence), sequence.max_len - 1
        sequence.page_limit = last if room >= last else room - self.drafts

    def room(self, sequence: Sequence) -> int:
        """Positions that its pages have a place for."""
        assert sequence.lease is not None
        return len(sequence.lease.pages) * self.page_size

    def missing(self, sequence: Sequence, drafts: int, stride: int) -> int:
        """Pages without which a decode span with so many drafts has no place, up to the next
        multiple of `stride` positions."""
        assert sequence.lease is not None
        last = sequence.scheduled_len + drafts
        goal = min(last // stride * stride + stride, sequence.max_len)
        return max(0, -(-goal // self.page_size) - len(sequence.lease.pages))

    def publish(self, sequence: Sequence) -> None:
        """Let others use the whole pages computed so far, while the sequence runs on."""
        assert sequence.lease is not None
        computed = min(
            sequence.computed_len, len(sequence.prefix) // TOKEN_BYTES
        )  # less its drafts
        whole = computed // self.page_size * self.page_size
        self.leases.publish(sequence.lease, sequence.prefix[: TOKEN_BYTES * whole])

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
