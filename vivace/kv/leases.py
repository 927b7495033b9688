"""The block table of every sequence: which KV page is free, cached, or leased to whom, and how
cached pages move together while nobody needs them.

Every page has exactly one owner. A lease's first `shared` pages belong to the tree and are
protected by a lock on the node where they end; the rest is the lease's own. Only whole pages
are published, so a page that is still being written has one reader, its writer.

Where layers do not need every position, they have pages of their own (`PartialPool`), which the
cache keeps beside those of the first group. The tree, lengths and limits are about that group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from vivace.kv.pages import CacheShare, OutOfPages, PagePool
from vivace.kv.partial_pool import PartialLease, PartialPool
from vivace.kv.prefix_tree import EVICTIONS, TOKEN_BYTES, Match, Node, PrefixTree
from vivace.kv.prefixes import NoPrefixes, Prefixes


class Lease:
    """The pages of one sequence; `parts`: of the other groups. Only `Leases` changes it."""

    __slots__ = ("namespace", "node", "owner", "pages", "parts", "shared")

    def __init__(self, owner: str, namespace: str, match: Match, parts: list[PartialLease]) -> None:
        self.owner = owner
        self.parts = parts
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
        partial: Sequence[PartialPool] = (),
    ) -> None:
        """`cache_share`: pages (see CacheShare); None = the whole pool. `partial`: groups 1, 2 ...
        of layers that do not need every position."""
        self.partial = tuple(partial)
        self.dense = (0, *(i for i, pool in enumerate(self.partial, 1) if not pool.sparse))
        """groups in which a sequence has a page for each of its tokens, or had one"""
        states = (i for i, pool in enumerate(self.partial, 1) if pool.sparse)
        self.sparse = tuple(states) if prefix_cache else ()
        """groups of states, which are saved for others to start from"""
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
    def growable(self) -> int:
        """Pages that `take` can hand out in every dense group."""
        pages = self.available
        for group in self.dense[1:]:
            pages = min(pages, self.partial[group - 1].available)
        return pages

    @property
    def cached(self) -> int:
        """Pages in the prefix cache that no live lease reads."""
        return self._prefixes.evictable

    @property
    def used(self) -> int:
        """Pages that live leases read or write."""
        return self.total - self.available

    @property
    def touched_in(self) -> list[int]:
        """Pages of each group with memory behind them, where that comes at the first touch."""
        return [self._pool.touched, *(pool.touched for pool in self.partial)]

    def measure(self, namespace: str, key: bytes) -> int:
        """Cached pages of a packed prefix behind which a sequence could go on; changes nothing."""
        if not self.partial:
            return self._prefixes.measure(namespace, key)
        return self._usable(self._prefixes.find(namespace, key))

    def _usable(self, pages: list[int]) -> int:
        """Of these pages of a prefix: behind how many every group has what it needs."""
        count, before = len(pages), -1
        while count != before:
            before = count
            for pool in self.partial:
                count = pool.usable(pages[:count])
        return count

    def open(self, owner: str, namespace: str, key: bytes, max_pages: int) -> Lease:
        """A lease on the longest cached prefix of `key`, at most `max_pages`, behind which it can
        go on."""
        stride, usable = TOKEN_BYTES * self.page_size, max_pages
        if self.partial:
            usable = self._usable(self._prefixes.find(namespace, key[: max_pages * stride]))
        match = self._prefixes.match(namespace, key, usable)
        self._prefixes.lock(match.node)
        lease = Lease(owner, namespace, match, [pool.open(match.pages) for pool in self.partial])
        self._live[id(lease)] = lease
        self._share.ask(key[len(match.pages) * stride : max_pages * stride])
        return lease

    def take(self, count: int, group: int = 0) -> list[int]:
        """`count` pages of a group for leases to append; evicts. OutOfPages beyond what the group
        has available."""
        if group:
            pool = self.partial[group - 1]
            return pool.take(count, self._partial_share(pool))
        self._evict(self._pool.shortage(count, self._share.pages))
        return self._pool.take(count)

    def _partial_share(self, pool: PartialPool) -> int:
        """Pages that a group may fill before it drops what is cached: no fewer than in the first
        group, because prefixes shorter than a window need all of theirs."""
        return min(pool.total, self._share.pages)

    def _evict(self, count: int) -> None:
        if count > 0:
            pages = self._prefixes.evict(count, self._share.drop)
            self.evicted += len(pages)
            self._pool.release(pages)
            for pool in self.partial:
                pool.forget(pages)

    def append(self, lease: Lease, pages: list[int], group: int = 0) -> None:
        """Pages from `take` behind those that the lease has in a group."""
        if group:
            self.partial[group - 1].append(lease.parts[group - 1], pages)
        else:
            lease.pages += pages

    def grow(self, lease: Lease, count: int) -> None:
        """Append `count` pages to a lease in every dense group. OutOfPages, and nothing is changed,
        when they are more than `growable`."""
        if count > self.growable:
            raise OutOfPages(f"{count} pages asked for, {self.growable} can be had")
        for group in self.dense:
            self.append(lease, self.take(count, group), group)

    def skip_to(self, lease: Lease, computed: int) -> None:
        """A lease goes on behind `computed` whole pages whose content comes from elsewhere: it gets
        no pages of windows in front of what is needed there."""
        for pool, part in zip(self.partial, lease.parts, strict=True):
            if not pool.sparse:
                first = pool.first_page(computed)
                pool.slide(part, first)
                part.end = max(part.end, first)

    def slide(self, lease: Lease, computed: int) -> None:
        """Give back what a lease does not need behind `computed` whole pages. The last page of a
        group of states stays: the prefix may be continued from there."""
        for pool, part in zip(self.partial, lease.parts, strict=True):
            first = pool.first_page(computed)
            pool.slide(part, min(first, max(part.pages, default=0)) if pool.sparse else first)

    def add_state(self, lease: Lease, place: int, group: int) -> int | None:
        """A page for the state behind page `place` of a lease; None where there is none."""
        pool = self.partial[group - 1]
        if not pool.available:
            return None
        [page] = self.take(1, group)
        lease.parts[group - 1].pages[place] = page
        return page

    def drop_states(self, lease: Lease, computed: int) -> None:
        """States that were to be kept behind more than `computed` whole pages were not."""
        for pool, part in zip(self.partial, lease.parts, strict=True):
            if pool.sparse:
                pool.drop_from(part, computed)

    def publish(self, lease: Lease, key: bytes) -> None:
        """Let others match `key`: whole pages, computed, the start of what the lease holds.

        Where somebody published the same content first, the lease keeps its own pages: a page
        table of a running sequence only grows. They are freed when the lease is closed.
        """
        full = self._whole_pages(key)
        if full <= lease.shared:
            return
        if self._prefixes.measure(lease.namespace, key) != lease.shared:
            return
        node, had = self._prefixes.insert(lease.namespace, key, lease.pages[:full])
        if had == full:  # no prefix cache: nothing was taken over
            return
        self._prefixes.lock(node)
        self._prefixes.unlock(lease.node)
        lease.node = node
        lease.shared = full
        self._keep(lease, lease.pages[:full])

    def _keep(self, lease: Lease, tree_pages: list[int]) -> None:
        for pool, part in zip(self.partial, lease.parts, strict=True):
            pool.keep(part, tree_pages)

    def close(self, lease: Lease, key: bytes = b"") -> None:
        """Give everything back; what `key` covers stays as cache, duplicates are freed.

        pages   [ the tree's ][ somebody published them, too ][ new ][ not in `key` ]
                0       lease.shared                         had   full
        becomes   unlocked            freed                  tree's   freed
        """
        del self._live[id(lease)]
        full = self._whole_pages(key)
        if full > lease.shared:
            node, had = self._prefixes.insert(lease.namespace, key, lease.pages[:full])
            if self.partial:
                self._keep(lease, path_pages(node))
            self._pool.release(lease.pages[lease.shared : had])
            self._pool.release(lease.pages[full:])
        else:
            self._pool.release(lease.pages[lease.shared :])
        for pool, part in zip(self.partial, lease.parts, strict=True):
            pool.close(part)
        self._prefixes.unlock(lease.node)
        lease.pages, lease.parts = [], []
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
        pages = self._prefixes.clear()
        self._pool.release(pages)
        for pool in self.partial:
            pool.forget(pages)

    @property
    def vacancy_in(self) -> list[int]:
        """Pages of each group whose memory could be given back while no lease is open."""
        if self._live:
            return [0] * (1 + len(self.partial))
        first = self._pool.spare + max(0, self._prefixes.evictable - self._share.pages)
        return [first, *(pool.vacancy(self._partial_share(pool)) for pool in self.partial)]

    def compact(self, max_pages: int) -> list[tuple[dict[int, int], int]]:
        """Cached prefixes move to the lowest pages, at most `max_pages` of each group at once.

        Returns for each group (page -> where its content has to be copied, the first page of those
        behind which no memory is needed any more). ValueError while leases are open.
        """
        if self._live:
            raise ValueError(f"{len(self._live)} sequences hold pages")
        self._evict(self._prefixes.evictable - self._share.pages)
        moves, vacant = self._pool.compact(self._prefixes.pages(), max_pages)
        self._prefixes.move(moves)
        for pool in self.partial:
            pool.move_owners(moves)
        others = [pool.compact(max_pages, self._partial_share(pool)) for pool in self.partial]
        return [(moves, vacant), *others]

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
        for index, pool in enumerate(self.partial):
            parts = [(lease.owner, lease.parts[index]) for lease in leases]
            findings += pool.audit(parts, self._prefixes.pages())
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
        groups = zip(self._leases.vacancy_in, self._leases.touched_in, strict=True)
        if all(vacant * MIN_SHARE <= touched for vacant, touched in groups):
            return None
        return last_commit + (TRIM_SECONDS if self._trimmed_since is None else IDLE_SECONDS)

    def begin(self, last_commit: float, now: float) -> list[tuple[dict[int, int], int]] | None:
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
            return [({}, touched) for touched in self._leases.touched_in]
        return self._leases.compact(MAX_COPIES)

    def commit(self) -> None:
        self.in_flight = False

    def fail(self, copying: bool) -> None:
        """Nobody knows which copies were made, and nobody lives who would read them."""
        self.in_flight = False
        if copying:
            self._leases.clear()
