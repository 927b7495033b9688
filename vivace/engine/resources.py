"""What can run out: rows of the device, and pages of KV."""

from __future__ import annotations

import heapq

from vivace.engine.sequence import Sequence
from vivace.kv.leases import Leases
from vivace.kv.prefix_tree import TOKEN_BYTES


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

    def take(self, sequence: Sequence) -> None:
        sequence.row = heapq.heappop(self._free)

    def give(self, sequence: Sequence) -> None:
        heapq.heappush(self._free, sequence.row)
        sequence.row = -1


class Pages:
    """KV pages, seen from sequences: `count` is positions to be covered behind `upper`."""

    def __init__(self, leases: Leases) -> None:
        self.leases = leases
        self.page_size = leases.page_size

    @property
    def available_tokens(self) -> int:
        return self.leases.available * self.page_size

    def open(self, sequence: Sequence) -> None:
        """Lease the cached prefix of a waiting sequence."""
        most = sequence.reusable() // self.page_size
        sequence.lease = self.leases.open(
            f"request {sequence.key}", sequence.request.cache_key, sequence.prefix, most
        )
        sequence.computed = sequence.upper = sequence.lease.shared * self.page_size

    def coverable(self, sequence: Sequence, count: int) -> int:
        """How many of `count` positions can get pages now."""
        assert sequence.lease is not None
        room = (len(sequence.lease.pages) + self.leases.available) * self.page_size
        return min(count, room - sequence.upper)

    def cover(self, sequence: Sequence, count: int) -> list[int]:
        """Pages appended so that `count` more positions have a place."""
        assert sequence.lease is not None
        needed = -(-(sequence.upper + count) // self.page_size) - len(sequence.lease.pages)
        pages = self.leases.grow(sequence.lease, needed) if needed > 0 else []
        self.set_edge(sequence)
        return pages

    def set_edge(self, sequence: Sequence) -> None:
        assert sequence.lease is not None
        room = len(sequence.lease.pages) * self.page_size
        sequence.edge = min(room, sequence.limit - 1)

    def publish(self, sequence: Sequence) -> None:
        """Let others use the whole pages computed so far, while the sequence runs on."""
        assert sequence.lease is not None
        whole = sequence.computed // self.page_size * self.page_size
        self.leases.publish(sequence.lease, sequence.prefix[: TOKEN_BYTES * whole])

    def give(self, sequence: Sequence) -> None:
        """Release everything; whole computed pages stay behind as cache."""
        if sequence.lease is None:
            return
        valid = 0 if sequence.tainted else min(sequence.computed, len(sequence.tokens))
        whole = valid // self.page_size * self.page_size
        if TOKEN_BYTES * whole > len(sequence.prefix):
            sequence.refresh_prefix()
        self.leases.close(sequence.lease, sequence.prefix[: TOKEN_BYTES * whole])
        sequence.lease = None
        sequence.computed = sequence.upper = 0
