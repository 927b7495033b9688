"""Pages of a cache group of which a sequence needs only some: the last ones (of layers with a
window), or single ones (states).

A page has one owner: the sequence that fills it, or the cache. The cache keeps it beside a page of
the prefix tree, whose tokens it belongs to, and knows it by that page's id: it goes when the tree's
page goes, or before, when pages are short and nobody reads it. So the tree alone knows tokens, and
a prefix can be matched where the pages that are needed behind it are all kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from vivace.kv.pages import PagePool


class PartialLease:
    """The pages of one sequence in one group. Only `PartialPool` changes it.

    `pages`: place in the sequence -> page, in ascending order; place i is that of the tokens of
    page i. `reads`: those of them that the cache owns, place -> page of the prefix tree. `end`:
    the place behind the last one that was given a page.
    """

    __slots__ = ("end", "pages", "reads")

    def __init__(self) -> None:
        self.pages: dict[int, int] = {}
        self.reads: dict[int, int] = {}
        self.end = 0


class PartialPool:
    """The pages of one group, and what the cache keeps of them."""

    def __init__(
        self, pages: int, first_page: Callable[[int], int], *, sparse: bool = False
    ) -> None:
        """`first_page`: how many whole pages were computed -> the first place whose page is needed
        to go on behind them. `sparse`: of states; sequences have pages at places of their choice,
        and not one for each of their tokens."""
        self.total = pages
        self.first_page = first_page
        self.sparse = sparse
        self._pool = PagePool(pages)
        self._kept: dict[int, int] = {}
        """page of the prefix tree -> page that is kept beside it"""
        self._readers: dict[int, int] = {}
        """page of the prefix tree -> how many sequences read what is kept beside it; at least 1"""
        self._idle: dict[int, None] = {}
        """pages of the prefix tree whose kept page nobody reads, least recently used first"""

    @property
    def available(self) -> int:
        """Pages that `take` can hand out: free, or kept and unused."""
        return self._pool.free + len(self._idle)

    @property
    def touched(self) -> int:
        """Pages with memory behind them, where a device gives it at the first touch."""
        return self._pool.touched

    def usable(self, tree_pages: Sequence[int]) -> int:
        """Behind how many of these pages, the first ones of a prefix, a sequence can go on."""
        kept, count = self._kept, len(tree_pages)
        if self.sparse:  # whose last place has a state; there may be very many without one
            return next((n for n in range(count, 0, -1) if tree_pages[n - 1] in kept), 0)
        while count:
            needed = range(count - 1, self.first_page(count) - 1, -1)
            missing = next((place for place in needed if tree_pages[place] not in kept), None)
            if missing is None:
                return count
            count = missing  # every longer prefix needs that page, too
        return 0

    def open(self, tree_pages: Sequence[int]) -> PartialLease:
        """What is needed behind this prefix, which is `usable` as a whole."""
        lease, count = PartialLease(), len(tree_pages)
        for place in range(self.first_page(count), count):
            owner = tree_pages[place]
            lease.pages[place], lease.reads[place] = self._kept[owner], owner
            self._readers[owner] = self._readers.get(owner, 0) + 1
            self._idle.pop(owner, None)
        lease.end = count
        return lease

    def append(self, lease: PartialLease, pages: list[int]) -> None:
        """Pages from `take` for the next places."""
        for page in pages:
            lease.pages[lease.end] = page
            lease.end += 1

    def take(self, count: int, share: int) -> list[int]:
        """`count` pages for sequences; evicts. OutOfPages beyond `available`. `share`: as for
        `PagePool.shortage`."""
        self._evict(self._pool.shortage(count, share))
        return self._pool.take(count)

    def _evict(self, count: int) -> None:
        for owner in list(self._idle)[: max(0, count)]:
            del self._idle[owner]
            self._pool.release([self._kept.pop(owner)])

    def slide(self, lease: PartialLease, first: int) -> None:
        """The sequence needs nothing in front of place `first` any more."""
        for place in [place for place in lease.pages if place < first]:
            self._drop(lease, place)

    def drop_from(self, lease: PartialLease, place: int) -> None:
        """What was to be in pages from `place` on did not come about."""
        for late in [late for late in lease.pages if late >= place]:
            self._drop(lease, late)

    def _drop(self, lease: PartialLease, place: int) -> None:
        page, owner = lease.pages.pop(place), lease.reads.pop(place, None)
        if owner is None:
            self._pool.release([page])
        else:
            self._readers[owner] -= 1
            if not self._readers[owner]:
                del self._readers[owner]
                self._idle[owner] = None

    def keep(self, lease: PartialLease, tree_pages: Sequence[int]) -> None:
        """These pages of the prefix tree, the first ones of the sequence, were computed: the cache
        takes over what it has not got, and the sequence reads it on."""
        for place, page in lease.pages.items():
            if place >= len(tree_pages):
                break
            owner = tree_pages[place]
            if place not in lease.reads and owner not in self._kept:
                self._kept[owner] = page
                lease.reads[place] = owner
                self._readers[owner] = 1

    def close(self, lease: PartialLease) -> None:
        """Give everything back; what the cache owns stays."""
        self.drop_from(lease, 0)

    def forget(self, tree_pages: Sequence[int]) -> None:
        """The prefix tree does not have these pages any more. Nobody reads them."""
        for owner in tree_pages:
            page = self._kept.pop(owner, None)
            if page is not None:
                del self._idle[owner]
                self._pool.release([page])

    def vacancy(self, share: int) -> int:
        """Pages whose memory could be given back while nobody has a lease."""
        return self._pool.spare + max(0, len(self._idle) - share)

    def compact(self, max_pages: int, share: int) -> tuple[dict[int, int], int]:
        """As `Leases.compact`, of this group."""
        self._evict(len(self._idle) - share)
        moves, vacant = self._pool.compact(list(self._kept.values()), max_pages)
        self._kept = {owner: moves.get(page, page) for owner, page in self._kept.items()}
        return moves, vacant

    def move_owners(self, moves: Mapping[int, int]) -> None:
        """Pages of the prefix tree have new ids. Nobody has a lease."""
        self._kept = {moves.get(owner, owner): page for owner, page in self._kept.items()}
        self._idle = {moves.get(owner, owner): None for owner in self._idle}

    def audit(
        self, leases: Sequence[tuple[str, PartialLease]], tree_pages: Sequence[int]
    ) -> list[str]:
        """Findings; empty when every page is explained exactly once, and what is kept belongs to a
        page of the prefix tree and has as many readers as are counted."""
        owners = [("the cache", list(self._kept.values()))]
        readers: dict[int, int] = {}
        findings: list[str] = []
        for name, lease in leases:
            own = [page for place, page in lease.pages.items() if place not in lease.reads]
            owners.append((name, own))
            for place, owner in lease.reads.items():
                readers[owner] = readers.get(owner, 0) + 1
                if self._kept.get(owner) != lease.pages.get(place):
                    findings.append(f"{name} reads a page of a group that the cache does not keep")
        findings += self._pool.audit(owners)
        if readers != self._readers or set(self._idle) != set(self._kept).difference(readers):
            findings.append("readers of the kept pages of a group are not those that are counted")
        if not set(self._kept).issubset(tree_pages):
            findings.append("a page is kept beside one that the prefix tree does not have")
        return findings
