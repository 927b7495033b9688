"""The block table of every sequence: which KV page is free, cached, or leased to whom, and how
cached pages move together while nobody needs them.

Every page has exactly one owner. A lease's first `shared` pages belong to the tree and are
protected by a lock on the node where they end; the rest is the lease's own. Only whole pages
are published, so a page that is still being written has one reader, its writer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Protocol

from vivace.kv.pages import CacheShare, PagePool
from vivace.kv.prefix_tree import EVICTIONS, TOKEN_BYTES, Match, Node, PrefixTree


class Prefixes(Protocol):
    """What leases ask of a prefix cache: `PrefixTree`, or `NoPrefixes`."""

    evictable: int
    size: int

    def measure(self, namespace: str, key: bytes) -> int: ...
    def match(self, namespace: str, key: bytes, max_pages: int) -> Match: ...
    def insert(self, namespace: str, key: bytes, pages: list[int]) -> tuple[Node, int]: ...
    def lock(self, node: Node) -> None: ...
    def unlock(self, node: Node) -> None: ...
    def evict(self, count: int, dropped: Callable[[bytes], None]) -> list[int]: ...
    def move(self, moves: Mapping[int, int]) -> None: ...
    def clear(self) -> list[int]: ...
    def pages(self) -> list[int]: ...
    def audit(self, holders: list[Node]) -> list[str]: ...


class NoPrefixes:
    """The prefix cache of `--disable-radix-cache`: finds nothing, keeps nothing."""

    def __init__(self) -> None:
        self.evictable = 0
        self.size = 0
        self._root = Node(None, b"", [])

    def measure(self, namespace: str, key: bytes) -> int:
        return 0

    def match(self, namespace: str, key: bytes, max_pages: int) -> Match:
        return Match(self._root, [])

    def insert(self, namespace: str, key: bytes, pages: list[int]) -> tuple[Node, int]:
        return self._root, len(pages)

    def lock(self, node: Node) -> None:
        pass

    def unlock(self, node: Node) -> None:
        pass

    def evict(self, count: int, dropped: Callable[[bytes], None]) -> list[int]:
        return []

    def move(self, moves: Mapping[int, int]) -> None:
        pass

    def clear(self) -> list[int]:
        return []

    def pages(self) -> list[int]:
        return []

    def audit(self, holders: list[Node]) -> list[str]:
        return []


class Lease:
    """The pages of one sequence, in order. Only `Leases` changes it."""

    __slots__ = ("namespace", "node", "owner", "pages", "shared")

    def __init__(self, owner: str, namespace: str, match: Match) -> None:
        self.owner = owner
        self.namespace = namespace
        self.node = match.node
        self.pages = match.pages
        self.shared = len(match.pages)
        """leading pages that belong to the prefix cache"""


class Leases:
    """All pages of one device and their owners."""

    def __init__(
        self,
        pages: int,
        page_size: int,
        *,
        prefix_cache: bool = True,
        eviction: str = "lru",
        cache_share: int | None = None,
    ) -> None:
        """`cache_share`: pages (see CacheShare); None = the whole pool."""
        self.page_size = page_size
        self.total = pages
        self.evicted = 0
        """pages evicted since the start"""
        self._pool = PagePool(pages)
        self._prefixes: Prefixes = (
            PrefixTree(page_size, EVICTIONS.get(eviction)) if prefix_cache else NoPrefixes()
        )
        self._share = CacheShare(pages, cache_share, page_size * TOKEN_BYTES)
        self._live: dict[int, Lease] = {}

    @property
    def live(self) -> int:
        """Leases that are open."""
        return len(self._live)

    @property
    def available(self) -> int:
        """Pages that `take` can hand out: free, or cached and unused."""
        return self._pool.free + self._prefixes.evictable

    @property
    def cached(self) -> int:
        """Pages in the prefix cache that no live lease reads."""
        return self._prefixes.evictable

    @property
    def used(self) -> int:
        """Pages that live leases read or write."""
        return self.total - self.available

    @property
    def touched(self) -> int:
        """Pages with memory behind them, where a device gives it at the first touch."""
        return self._pool.touched

    def measure(self, namespace: str, key: bytes) -> int:
        """Cached pages of a packed prefix; changes nothing."""
        return self._prefixes.measure(namespace, key)

    def open(self, owner: str, namespace: str, key: bytes, max_pages: int) -> Lease:
        """A lease on the longest cached prefix of `key`, at most `max_pages`."""
        match = self._prefixes.match(namespace, key, max_pages)
        self._prefixes.lock(match.node)
        lease = Lease(owner, namespace, match)
        self._live[id(lease)] = lease
        stride = TOKEN_BYTES * self.page_size
        self._share.ask(key[len(match.pages) * stride : max_pages * stride])
        return lease

    def take(self, count: int) -> list[int]:
        """`count` pages for leases to append to; evicts. OutOfPages beyond `available`."""
        pool = self._pool
        fresh = count - pool.spare
        if fresh > 0:
            # More than the share would hold something; never fewer than the pool is short of.
            beyond = self.total - pool.free + count - self._share.pages
            if beyond > 0:
                self._evict(min(beyond, fresh))
        return pool.take(count)

    def _evict(self, count: int) -> None:
        pages = self._prefixes.evict(count, self._share.drop)
        self.evicted += len(pages)
        self._pool.release(pages)

    def put_back(self, pages: list[int]) -> None:
        """Pages from `take` that nobody needed after all."""
        self._pool.release(pages)

    def grow(self, lease: Lease, count: int) -> list[int]:
        """Append `count` pages to a lease and return them."""
        pages = self.take(count)
        lease.pages += pages
        return pages

    def publish(self, lease: Lease, key: bytes) -> None:
        """Let others match `key`: whole pages, computed, the start of what the lease holds.

        Where somebody published the same content first, the lease keeps its own pages: a page
        table of a running sequence only grows. They are freed when the lease is closed.
        """
        full = self._whole_pages(key)
        if full <= lease.shared or self.measure(lease.namespace, key) != lease.shared:
            return
        node, had = self._prefixes.insert(lease.namespace, key, lease.pages[:full])
        if had == full:  # no prefix cache: nothing was taken over
            return
        self._prefixes.lock(node)
        self._prefixes.unlock(lease.node)
        lease.node = node
        lease.shared = full

    def close(self, lease: Lease, key: bytes = b"") -> None:
        """Give everything back; what `key` covers stays as cache, duplicates are freed.

        pages   [ the tree's ][ somebody published them, too ][ new ][ not in `key` ]
                0       lease.shared                         had   full
        becomes   unlocked            freed                  tree's   freed
        """
        del self._live[id(lease)]
        full = self._whole_pages(key)
        if full > lease.shared:
            _, had = self._prefixes.insert(lease.namespace, key, lease.pages[:full])
            self._pool.release(lease.pages[lease.shared : had])
            self._pool.release(lease.pages[full:])
        else:
            self._pool.release(lease.pages[lease.shared :])
        self._prefixes.unlock(lease.node)
        lease.pages = []
        lease.shared = 0

    def count_freed(self, leases: list[Lease]) -> int:
        """How many more pages would be available if these leases were closed."""
        locks: Counter[Node] = Counter()
        for lease in leases:
            node: Node | None = lease.node
            while node is not None:
                locks[node] += 1
                node = node.parent
        cached = sum(len(node.pages) for node, count in locks.items() if node.locks == count)
        return cached + sum(len(lease.pages) - lease.shared for lease in leases)

    def clear(self) -> None:
        """Forget all cached prefixes; ValueError while leases are open."""
        if self._live:
            raise ValueError(f"{len(self._live)} sequences hold pages")
        self._pool.release(self._prefixes.clear())

    @property
    def vacancy(self) -> int:
        """Pages whose memory could be given back while no lease is open."""
        beyond = self._prefixes.evictable - self._share.pages
        return 0 if self._live else self._pool.spare + max(0, beyond)

    def compact(self, max_pages: int) -> tuple[dict[int, int], int]:
        """Cached prefixes move to the lowest pages, at most `max_pages` of them at once.

        Returns (page -> where its content has to be copied, the first page of those behind which
        no memory is needed any more). ValueError while leases are open.
        """
        if self._live:
            raise ValueError(f"{len(self._live)} sequences hold pages")
        self._evict(self._prefixes.evictable - self._share.pages)
        cached = sorted(self._prefixes.pages())
        edge = len(cached)
        low = [page for page in cached if page < edge]
        holes = sorted(set(range(edge)).difference(low))
        moves = dict(zip(reversed(cached[len(low) :][-max_pages:]), holes, strict=False))
        self._pool.move(moves)
        self._prefixes.move(moves)
        left = cached[: edge - len(moves)]
        vacant = max([*left[-1:], *moves.values()], default=-1) + 1
        self._pool.vacate(vacant)
        return moves, vacant

    def forget_returns(self) -> None:
        """The share of the prefix cache is what it was at first."""
        self._share.forget()

    @property
    def share_grown(self) -> bool:
        return self._share.pages > self._share.first

    def audit(self) -> list[str]:
        """Findings; empty when every page is explained exactly once and every lock is held."""
        leases = list(self._live.values())
        owners = [("the prefix cache", self._prefixes.pages())]
        owners += [(lease.owner, lease.pages[lease.shared :]) for lease in leases]
        findings = self._pool.audit(owners)
        for lease in leases:
            if path_pages(lease.node) != lease.pages[: lease.shared]:
                findings.append(f"{lease.owner} reads pages that its lock does not protect")
        return findings + self._prefixes.audit([lease.node for lease in leases])

    def _whole_pages(self, key: bytes) -> int:
        return len(key) // (TOKEN_BYTES * self.page_size)


def path_pages(node: Node) -> list[int]:
    """Pages from the root of the tree to the end of `node`."""
    runs: list[list[int]] = []
    here: Node | None = node
    while here is not None:
        runs.append(here.pages)
        here = here.parent
    return [page for run in reversed(runs) for page in run]


# --- what an idle engine does -----------------------------------------------------------------

IDLE_SECONDS = 60.0
"""without a step, before pages go back: the next requests pay for fresh ones (60,000 faults for
32 prompts of 256 tokens)"""
TRIM_SECONDS = 1.0
"""the same for what the worker keeps from step to step, a few thousand faults, and for all that
loading and the warm-up left behind"""
FORGET_SECONDS = 600.0
"""without a step, before the share of the prefix cache is what it was at first"""
MAX_COPIES = 64
"""pages of one step: some 10 ms"""
MIN_SHARE = 16
"""memory goes back when at least one page in so many is not needed"""


class Compaction:
    """Cached prefixes move together, and memory goes back to the system: that of KV pages nobody
    needs, and what the worker keeps from step to step.

    Only while no lease is open and no step is in flight. `last_commit`: when the engine's last step
    ended, in seconds. `lazy`: the device gives memory to pages at the first touch."""

    def __init__(self, leases: Leases, lazy: bool) -> None:
        self._leases = leases
        self._lazy = lazy
        self.in_flight = False
        self._trimmed_since: float | None = None
        """`last_commit` of the last plan: steps since may have left memory that nobody holds"""

    def due(self, last_commit: float) -> float | None:
        """When there is something to do, if nobody lives."""
        if not self._lazy:
            return None
        if last_commit != self._trimmed_since:
            return last_commit + TRIM_SECONDS
        if (copying := self._copying_due(last_commit)) is not None:
            return copying
        return last_commit + FORGET_SECONDS if self._leases.share_grown else None

    def _copying_due(self, last_commit: float) -> float | None:
        """When prefixes may move; None: too little memory would go back. The first time, after the
        warm-up, it is not worth a longer wait."""
        if self._leases.vacancy * MIN_SHARE <= self._leases.touched:
            return None
        return last_commit + (TRIM_SECONDS if self._trimmed_since is None else IDLE_SECONDS)

    def begin(self, last_commit: float, now: float) -> tuple[dict[int, int], int] | None:
        """What `Leases.compact` returns, to be run as a step; None when nothing is due or all is
        done."""
        due = self.due(last_commit)
        if due is None or due > now:
            return None
        if now >= last_commit + FORGET_SECONDS:
            self._leases.forget_returns()
        copying = self._copying_due(last_commit)
        copies = copying is not None and now >= copying
        if not copies and last_commit == self._trimmed_since:
            return None
        self._trimmed_since = last_commit
        self.in_flight = True
        if not copies:
            return {}, self._leases.touched
        return self._leases.compact(MAX_COPIES)

    def commit(self) -> None:
        self.in_flight = False

    def fail(self, copying: bool) -> None:
        """Nobody knows which copies were made, and nobody lives who would read them."""
        self.in_flight = False
        if copying:
            self._leases.clear()
